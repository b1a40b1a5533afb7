"""The C functions of a package through ctypes, without NumPy. Every package has a copy of this file."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .loading import LoadError, ModelError

ABI_VERSION = 1
ALIGNMENT = 64
STATE, TRUST_WEIGHTS = 1, 1  # flags of a tensor, flags of the options
COMPUTED = -(2**63)  # a dimension that NAME_output_shape knows
E_ARGUMENT = 1


class ShapeError(ModelError, ValueError):
    """An array whose shape does not fit."""


class DtypeError(ModelError, TypeError):
    """An array whose dtype does not fit."""


_ERRORS: dict[int, type[ModelError]] = {
    2: ShapeError,
    3: DtypeError,
    4: LoadError,
    5: LoadError,
    8: LoadError,
}


class Size(NamedTuple):
    """A symbolic size: the shapes of a call's inputs give it a value from ``least`` to ``most``."""

    name: str
    least: int
    most: int


class Tensor(NamedTuple):
    """An input, output or state. Dimensions are numbers, names of sizes, or ``"?"``: computed from sizes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    is_state: bool
    order: tuple[int, ...] | None
    """The dimensions from the outermost in memory to the innermost, where that is not the C order."""

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join(map(str, self.shape))}]"


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class TensorInfo(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", DLDataType),
        ("rank", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("order", ctypes.POINTER(ctypes.c_int32)),
    ]


class SizeInfo(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("least", ctypes.c_int64), ("most", ctypes.c_int64)]


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("threads", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("level", ctypes.c_char_p),
        ("parallel", ctypes.c_void_p),
        ("user", ctypes.c_void_p),
    ]


class Library:
    """The C functions of a package (``include/NAME.h``)."""

    def __init__(self, path: Path, name: str) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise LoadError(f"{path} cannot be loaded: {error}") from error
        self.name = name

        def function(what: str, result: Any, *arguments: Any) -> Any:
            try:
                found = getattr(library, f"{name}_{what}")
            except AttributeError as error:
                raise LoadError(f"{path} is not the library of {name}: {error}") from error
            found.restype, found.argtypes = result, arguments
            return found

        number, pointer, shape = ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64)
        tensors = ctypes.POINTER(DLTensor)
        version = function("abi_version", ctypes.c_int)()
        if version != ABI_VERSION:
            raise LoadError(f"{path} has version {version} of the interface, this file is for {ABI_VERSION}")
        options = ctypes.POINTER(Options)
        self.create = function("create", ctypes.c_int, ctypes.c_char_p, options, ctypes.POINTER(pointer))
        self.destroy = function("destroy", None, pointer)
        self.last_error = function("last_error", ctypes.c_char_p)
        self.counts = {what: function(f"{what}_count", number) for what in ("input", "output", "size")}
        self.infos = {
            what: function(what, ctypes.POINTER(SizeInfo if what == "size" else TensorInfo), number)
            for what in ("input", "output", "size")
        }
        self.sizes = function("sizes", ctypes.c_int, tensors, shape)
        self.output_shape = function("output_shape", ctypes.c_int, shape, number, shape)
        self.workspace_bytes = function("workspace_bytes", ctypes.c_int64, pointer, shape)
        self.run = function("run", ctypes.c_int, pointer, tensors, tensors, pointer, ctypes.c_size_t)
        many = ctypes.POINTER(pointer)
        self.run_pointers = function(
            "run_pointers", ctypes.c_int, pointer, shape, many, many, pointer, ctypes.c_size_t
        )
        self.initial = function("initial", ctypes.c_int, pointer, number, pointer)
        self.level = function("level", ctypes.c_char_p, pointer)

    def open(self, weights: Path, threads: int, level: str | None, trust_weights: bool) -> ctypes.c_void_p:
        """A model that is loaded, for `destroy`."""
        options = Options(ctypes.sizeof(Options), threads, trust_weights * TRUST_WEIGHTS)
        options.level = None if level is None else level.encode()
        handle = ctypes.c_void_p()
        self.check(self.create(os.fsencode(weights), ctypes.byref(options), ctypes.byref(handle)))
        return handle

    def check(self, code: int) -> None:
        if code:
            message = self.last_error().decode("utf-8", "replace")
            raise _ERRORS.get(code, ModelError)(message or f"{self.name}: error {code}", code)

    def sizes_table(self) -> tuple[Size, ...]:
        infos = (self.infos["size"](number).contents for number in range(self.counts["size"]()))
        return tuple(Size(info.name.decode(), info.least, info.most) for info in infos)

    def tensors(self, what: str, sizes: tuple[Size, ...]) -> tuple[Tensor, ...]:
        found = []
        for number in range(self.counts[what]()):
            info = self.infos[what](number).contents
            shape = tuple(
                d if d >= 0 else "?" if d == COMPUTED else sizes[-1 - d].name for d in info.shape[: info.rank]
            )
            order = tuple(info.order[: info.rank]) if info.order else None
            dtype = info.dtype.code, info.dtype.bits
            found.append(Tensor(info.name.decode(), _NAMES[dtype], shape, bool(info.flags & STATE), order))
        return tuple(found)


class Tensors:
    """An array of DLTensor for a list of arrays."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.structs = (DLTensor * max(1, len(tensors)))()
        self.shapes = [(ctypes.c_int64 * max(1, len(tensor.shape)))() for tensor in tensors]
        self.strides = [(ctypes.c_int64 * len(t.shape))() if t.order else None for t in tensors]
        for struct, tensor, shape, strides in zip(self.structs, tensors, self.shapes, self.strides):
            struct.device_type, struct.ndim = 1, len(tensor.shape)
            struct.dtype = DLDataType(*CODES[tensor.dtype], 1)
            struct.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
            struct.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)) if strides else None

    def move(self, addresses: Sequence[int]) -> None:
        """Takes other addresses for arrays of the same shapes."""
        for struct, address in zip(self.structs, addresses):
            struct.data = address

    def set(
        self, addresses: Iterable[int], shapes: Iterable[Sequence[int]], tensors: Sequence[Tensor]
    ) -> None:
        """Takes the addresses and shapes of a call's arrays."""
        for struct, extents, strides, address, shape, tensor in zip(
            self.structs, self.shapes, self.strides, addresses, shapes, tensors
        ):
            struct.data = address
            extents[: len(shape)] = shape
            if strides is not None and tensor.order is not None:
                step = 1
                for dimension in reversed(tensor.order):
                    strides[dimension] = step
                    step *= shape[dimension]


CODES = {  # DLPack's codes and bits
    **{f"int{bits}": (0, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (1, bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits) for bits in (16, 32, 64)},
    **{f"complex{bits}": (5, bits) for bits in (64, 128)},
    "bfloat16": (4, 16),
    "bool": (6, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
}
_NAMES = {codes: name for name, codes in CODES.items()}
