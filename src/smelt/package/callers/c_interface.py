"""The C functions of a package (``include/NAME.h``) through ctypes. Packages have a copy of this file."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .loading import LoadError, ModelError

ABI_VERSION = 1
ALIGNMENT = 64
STATE, TRUST_WEIGHTS = 1, 1  # flags of a tensor, flags of the options
COMPUTED = -(2**63)  # a dimension that NAME_output_shape knows


class ShapeError(ModelError, ValueError):
    """An array whose shape does not fit."""


class DtypeError(ModelError, TypeError):
    """An array whose dtype does not fit."""


E_ARGUMENT = 1
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

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join(map(str, self.shape))}]"


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
NAMES = {codes: name for name, codes in CODES.items()}


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
        self.initial = function("initial", ctypes.c_int, pointer, number, pointer)
        self.level = function("level", ctypes.c_char_p, pointer)

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
            if info.order:
                raise LoadError(f"{self.name}: {info.name.decode()} is not in C order; call it from C")
            dtype = info.dtype.code, info.dtype.bits
            found.append(Tensor(info.name.decode(), NAMES[dtype], shape, bool(info.flags & STATE)))
        return tuple(found)


class Call:
    """A thread's calls of one model: C structures, and a workspace, which grows as needed and is used again.

    ``key``: the inputs' shapes that ``extents`` (the outputs' shapes) and the workspace are for.
    """

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: int) -> None:
        self.inputs, self.input_shapes = _structures(inputs)
        self.outputs, self.output_shapes = _structures(outputs)
        self.sizes = (ctypes.c_int64 * max(1, sizes))()
        self.key: list[tuple[int, ...]] | None = None
        self.extents: list[tuple[int, ...]] = []
        self.memory = np.empty(0, np.uint8)
        self.workspace = self.workspace_bytes = 0

    def prepare(self, library: Library, handle: ctypes.c_void_p, shapes: list[tuple[int, ...]]) -> None:
        """Checks inputs of these shapes, and makes everything ready for them but the addresses of outputs."""
        self.key = None
        for place, shape in zip(self.input_shapes, shapes):
            place[: len(shape)] = list(shape)
        library.check(library.sizes(self.inputs, self.sizes))
        self.extents = []
        for number, (place, struct) in enumerate(zip(self.output_shapes, self.outputs)):
            library.check(library.output_shape(self.sizes, number, place))
            self.extents.append(tuple(place[: struct.ndim]))
        needed = library.workspace_bytes(handle, self.sizes)
        if needed < 0:
            library.check(E_ARGUMENT)
        if needed > self.workspace_bytes or not self.workspace:
            self.memory = np.empty(needed + ALIGNMENT, np.uint8)
            address = self.memory.__array_interface__["data"][0]
            self.workspace, self.workspace_bytes = address + -address % ALIGNMENT, needed
        self.key = shapes


def _structures(tensors: Sequence[Tensor]) -> tuple[Any, list[Any]]:
    """An array of DLTensor, and the memory of their shapes."""
    structures = (DLTensor * max(1, len(tensors)))()
    shapes = [(ctypes.c_int64 * max(1, len(tensor.shape)))() for tensor in tensors]
    for struct, tensor, shape in zip(structures, tensors, shapes):
        struct.device_type, struct.ndim = 1, len(tensor.shape)
        struct.dtype = DLDataType(*CODES[tensor.dtype], 1)
        struct.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    return structures, shapes
