"""`load`: a package as a ``torch.nn.Module``. Tensors go to its library as they are, by their addresses."""

from __future__ import annotations

import ctypes
import re
import threading
import weakref
from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import increment_version

from smelt.errors import SmeltError
from smelt.packages.callers.library import ALIGNMENT, E_ARGUMENT, Library, ModelError, Size, Tensor, Tensors
from smelt.packages.opened import WEIGHTS, open_package, refusals, refused

MOST_SHAPES = 64
"""How many sets of shapes a thread remembers the sizes, the workspace and the outputs' shapes for."""


def load(
    path: str | Path,
    *,
    threads: int | None = None,
    level: str | None = None,
    trust_weights: bool = False,
    key: str | Path | None = None,
) -> Loaded:
    """Loads a package as a module that is called with tensors.

    A package is machine code: load only those of people that you trust. What ``key`` checks is in
    docs/package.md.

    Args:
        path: the folder that `smelt.package` has written.
        threads: that a call uses; None: as many as PyTorch does now.
        level: an instruction set by name, as ``"x86-64-v3"``; None: the best that the processor has.
        trust_weights: the weights' digest is not checked, which is quicker.
        key: a public key (PEM): the signature and every file are checked before anything is loaded.

    Raises:
        SmeltError: SM1420 it is no package; SM1421 it has no library for this machine; SM1422 the library
            refuses its weights or this processor; SM1425 files are not as its manifest says; SM1426 the
            signature is missing or wrong.
    """
    return Loaded(path, threads=threads, level=level, trust_weights=trust_weights, key=key)


class Loaded(torch.nn.Module):
    """A package's model. It has no gradients: its inputs must not require them.

    A call takes ``inputs`` in order or by name, and gives a tensor, or a named tuple of several. States that
    the package has a value for are buffers, by their names in the packaged model; a call writes them in place
    as it does states that the caller passes. Threads may call one model at once, if it has no buffers. A seed
    that is not given comes from PyTorch's generator (`torch.manual_seed`).
    """

    def __init__(
        self,
        path: str | Path,
        *,
        threads: int | None = None,
        level: str | None = None,
        trust_weights: bool = False,
        key: str | Path | None = None,
    ) -> None:
        super().__init__()
        package = open_package(path, key)
        self._arguments = (str(path), threads, level, trust_weights, None if key is None else str(key))
        self._library = library = _library(package.library, package.name)
        with refusals():
            weights = package.folder / WEIGHTS
            count = torch.get_num_threads() if threads is None else threads
            self._handle = library.open(weights, count, level, trust_weights)
            # Not at exit: threads that still run the model then have it to the end.
            weakref.finalize(self, library.destroy, self._handle).atexit = False
            self.sizes: tuple[Size, ...] = library.sizes_table()
            """The symbolic sizes: name, least, most."""
            self._tensors = library.tensors("input", self.sizes)
            self.outputs: tuple[Tensor, ...] = library.tensors("output", self.sizes)
            """What a call gives."""
        self.levels: tuple[str, ...] = tuple(package.model.get("levels", ()))
        """The instruction sets that the package has code for, the best one first."""
        self.name = package.name
        self._dtypes = {each.dtype: getattr(torch, each.dtype) for each in self._tensors + self.outputs}
        self._buffer_names = dict(self._registered(self._initial()))
        self.inputs: tuple[Tensor, ...] = tuple(
            each for number, each in enumerate(self._tensors) if number not in self._buffer_names
        )
        """What a call takes, in this order: name, dtype, shape over sizes, and whether it is written."""
        self._names = [each.name for each in self.inputs]
        self._seed = package.seed
        self._threads = threading.local()
        names = [re.sub(r"\W", "_", each.name, flags=re.ASCII) for each in self.outputs]
        make: Any = namedtuple
        self._result = make("Outputs", names, rename=True)
        self._is_single = names == ["output"]

    @property
    def level(self) -> str:
        """The instruction set in use, as ``"x86-64-v4"``."""
        return str(self._library.level(self._handle).decode())

    @torch.compiler.disable
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model.

        Raises:
            SmeltError: SM1423 arguments that do not fit, SM1424 one requires a gradient, SM1427 an error of
                the model itself.
        """
        tensors = self._given(args, kwargs)
        if torch.is_grad_enabled():
            self._check_gradients(tensors)
        addresses = self._addresses(tensors)
        written = [tensor for tensor, each in zip(tensors, self._tensors) if each.is_state]
        if written:
            self._check_overlap(tensors, addresses)
        call = self._call()
        try:
            shapes = call.prepared(tensors, addresses)
            results = [
                _new(shape, self._dtypes[each.dtype], each.order)
                for each, shape in zip(self.outputs, shapes.outputs)
            ]
            call.run(shapes, addresses, [result.data_ptr() for result in results])
        except ModelError as error:
            raise refused(error) from error
        if written:
            increment_version(written)
        return results[0] if self._is_single else self._result(*results)

    def extra_repr(self) -> str:
        taken = ", ".join(f"{each.name}: {each}" for each in self.inputs)
        given = ", ".join(f"{each.name}: {each}" for each in self.outputs)
        return f"{self.name} ({self.level}), {taken} -> {given}"

    def __reduce__(self) -> Any:
        """A copy, or another process, loads the package again; buffers go with it."""
        return _again, (*self._arguments, self.state_dict())

    def _initial(self) -> list[tuple[int, torch.Tensor]]:
        """The states that the package has a value for."""
        found = []
        for number, each in enumerate(self._tensors):
            shape = [d for d in each.shape if isinstance(d, int)]
            if each.is_state and len(shape) == len(each.shape):
                value = _new(shape, self._dtypes[each.dtype], each.order)
                code = self._library.initial(self._handle, number, value.data_ptr())
                if code != E_ARGUMENT:
                    with refusals():
                        self._library.check(code)
                    found.append((number, value))
        return found

    def _registered(
        self, values: Iterable[tuple[int, torch.Tensor]]
    ) -> Iterator[tuple[int, tuple[torch.nn.Module, str]]]:
        """Registers buffers by their names in the packaged model; gives each one's module and name there."""
        modules: dict[tuple[str, ...], torch.nn.Module] = {(): self}
        for number, value in values:
            *path, last = self._tensors[number].name.split(".")
            for depth in range(len(path)):
                holder, place = modules[tuple(path[:depth])], tuple(path[: depth + 1])
                if place not in modules:
                    modules[place] = torch.nn.Module()
                    holder.add_module(_free(holder, path[depth]), modules[place])
            holder = modules[tuple(path)]
            name = _free(holder, last)
            holder.register_buffer(name, value)
            yield number, (holder, name)

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call in the library's order, as it takes them."""
        values = list(args)
        if len(args) != len(self.inputs) or kwargs:
            values = self._by_name(args, kwargs)
        given = iter(values)
        return [
            self._fitting(each, getattr(*self._buffer_names[number]), buffer=True)
            if number in self._buffer_names
            else self._fitting(each, next(given))
            for number, each in enumerate(self._tensors)
        ]

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        listed = ", ".join(self._names)
        if len(args) > len(self.inputs):
            raise _wrong(f"{self.name} takes {len(self.inputs)} inputs ({listed}), not {len(args)}")
        given = dict(zip(self._names, args))
        for name, value in kwargs.items():
            if name not in self._names or name in given:
                problem = "is given twice" if name in given else f"is no input; inputs: {listed}"
                raise _wrong(f"{self.name}: {name} {problem}")
            given[name] = value
        if self._seed is not None and self._seed not in given:
            given[self._seed] = torch.randint(-(2**63), 2**63 - 1, ())
        if missing := [name for name in self._names if name not in given]:
            raise _wrong(f"{self.name}: missing: {', '.join(missing)}")
        return [given[name] for name in self._names]

    def _fitting(self, each: Tensor, value: Any, buffer: bool = False) -> torch.Tensor:
        """A value as the library takes it: itself, or (of what is only read) a contiguous copy.

        Raises:
            SmeltError: SM1423.
        """
        dtype = self._dtypes[each.dtype]
        if type(value) is not torch.Tensor:
            value = _as_tensor(each, value, dtype)
        if value.dtype is not dtype or not value.is_cpu or value.layout is not torch.strided:
            kind = "the buffer " * buffer
            if value.layout is not torch.strided or not value.is_cpu:
                raise _wrong(
                    f"{kind}{each.name} is a {value.layout} tensor on {value.device}", "x.cpu().to_dense()"
                )
            raise _wrong(f"{kind}{each.name} has dtype {value.dtype}, expected {dtype}", f"x.to({dtype})")
        if value.dim() != len(each.shape):
            raise _wrong(f"{each.name} has shape {list(value.shape)}, expected {each}")
        ordered = value if each.order is None else value.permute(each.order)
        if ordered.is_contiguous() and not value.is_conj() and not value.is_neg():
            return value
        if each.is_state:
            layout = "contiguous" if each.order is None else f"contiguous with its dimensions as {each.order}"
            raise _wrong(f"{each.name} is written in place: it must be {layout}", "pass x.contiguous()")
        copy = ordered.resolve_conj().resolve_neg().contiguous()
        return copy if each.order is None else copy.permute(_inverse(each.order))

    def _check_gradients(self, tensors: Sequence[torch.Tensor]) -> None:
        for each, tensor in zip(self._tensors, tensors):
            if tensor.requires_grad:
                raise SmeltError(
                    "SM1424",
                    f"{each.name} requires a gradient, and the package {self.name} has none",
                    why="a package is compiled code without autograd",
                    remedy=f"call it under torch.no_grad(), or pass {each.name}.detach(); to train, package "
                    "a training step (docs/package.md)",
                )

    def _addresses(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        try:
            return [tensor.data_ptr() for tensor in tensors]
        except RuntimeError as error:  # of vmap and other transforms
            raise _wrong(f"{self.name} takes plain tensors: {error}") from error

    def _check_overlap(self, tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> None:
        """Memory that a call writes may be in no other argument."""
        spans = sorted(
            (address, tensor.nbytes, each.is_state, each.name)
            for address, tensor, each in zip(addresses, tensors, self._tensors)
            if tensor.numel()
        )
        end, last, last_written = 0, "", False
        for begin, nbytes, is_written, name in spans:
            if begin < end and (is_written or last_written):
                raise _wrong(f"{name} and {last} share memory, and a call writes it", "pass a copy of one")
            if begin + nbytes > end:
                end, last, last_written = begin + nbytes, name, is_written

    def _call(self) -> _Call:
        call: _Call | None = getattr(self._threads, "call", None)
        if call is None:
            call = self._threads.call = _Call(
                self._library, self._handle, self._tensors, self.outputs, self.sizes
            )
        return call


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The sizes of a set of inputs' shapes, the bytes of workspace, and the outputs' shapes."""

    sizes: Any
    workspace: int
    outputs: tuple[tuple[int, ...], ...]


class _Call:
    """A thread's C structures for one model, and its workspace, which grows as needed and is used again."""

    def __init__(
        self,
        library: Library,
        handle: ctypes.c_void_p,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        sizes: Sequence[Size],
    ) -> None:
        self.library, self.handle = library, handle
        self.tensors, self.results, self.count = inputs, outputs, len(sizes)
        self.structs = Tensors(inputs)
        self.inputs: Any = (ctypes.c_void_p * max(1, len(inputs)))()
        self.outputs: Any = (ctypes.c_void_p * max(1, len(outputs)))()
        self.known: dict[Any, _Prepared] = {}
        names = {each.name for each in sizes}
        self.numbers = [at for at, each in enumerate(inputs) if not each.shape and each.name in names]
        self.memory = torch.empty(0, dtype=torch.uint8)

    def prepared(self, tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> _Prepared:
        """What the library says to these shapes, and to numbers that are sizes; asked once for each set."""
        shapes = tuple(tensor.shape for tensor in tensors)
        key = (shapes, *(int(tensors[number]) for number in self.numbers))
        found = self.known.get(key)
        if found is None:
            if len(self.known) == MOST_SHAPES:
                self.known.pop(next(iter(self.known)))
            found = self.known[key] = self._ask(addresses, shapes)
        return found

    def _ask(self, addresses: Sequence[int], shapes: Sequence[Sequence[int]]) -> _Prepared:
        library = self.library
        sizes = (ctypes.c_int64 * max(1, self.count))()
        self.structs.set(addresses, shapes, self.tensors)
        library.check(library.sizes(self.structs.structs, sizes))
        workspace = library.workspace_bytes(self.handle, sizes)
        if workspace < 0:
            library.check(E_ARGUMENT)
        found = []
        for number, each in enumerate(self.results):
            shape = (ctypes.c_int64 * max(1, len(each.shape)))()
            library.check(library.output_shape(sizes, number, shape))
            found.append(tuple(shape[: len(each.shape)]))
        return _Prepared(sizes, workspace, tuple(found))

    def run(self, shapes: _Prepared, inputs: list[int], outputs: list[int]) -> None:
        self.inputs[: len(inputs)] = inputs
        self.outputs[: len(outputs)] = outputs
        if self.memory.nbytes < shapes.workspace + ALIGNMENT:
            self.memory = torch.empty(shapes.workspace + ALIGNMENT, dtype=torch.uint8)
        address = self.memory.data_ptr()
        address += -address % ALIGNMENT
        library = self.library
        library.check(
            library.run_pointers(
                self.handle, shapes.sizes, self.inputs, self.outputs, address, shapes.workspace
            )
        )


def _library(path: Path, name: str) -> Library:
    try:
        return Library(path, name)
    except ModelError as error:
        raise SmeltError(
            "SM1421",
            str(error),
            remedy="build it on this machine: make -C PACKAGE, or make the package again",
        ) from error


def _again(
    path: str, threads: int | None, level: str | None, trust: bool, key: str | None, state: dict[str, Any]
) -> Loaded:
    model = load(path, threads=threads, level=level, trust_weights=trust, key=key)
    model.load_state_dict(state)
    return model


def _as_tensor(each: Tensor, value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A parameter, a number, or something with ``__dlpack__`` as a plain tensor; the memory stays the same.

    Raises:
        SmeltError: SM1423.
    """
    if isinstance(value, (torch.nn.Parameter, torch.nn.Buffer)):
        return value
    if isinstance(value, (bool, int, float, complex)) and not each.shape and not each.is_state:
        return torch.tensor(value, dtype=dtype)
    if not isinstance(value, torch.Tensor) and hasattr(value, "__dlpack__"):
        try:
            return torch.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise _wrong(
                f"{each.name}: {type(value).__name__} cannot be read through DLPack: {error}"
            ) from error
    raise _wrong(f"{each.name} is a {type(value).__name__}, expected a plain tensor, {each}")


def _new(shape: Sequence[int], dtype: torch.dtype, order: Sequence[int] | None) -> torch.Tensor:
    if order is None:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.empty([shape[d] for d in order], dtype=dtype).permute(_inverse(order))


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _free(module: torch.nn.Module, name: str) -> str:
    """The name, with ``_`` at its end where the module has one like it."""
    while not name or hasattr(module, name):
        name += "_"
    return name


def _wrong(what: str, remedy: str | None = None) -> SmeltError:
    return SmeltError("SM1423", what, remedy=remedy)
