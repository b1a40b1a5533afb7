"""A compiled model on NumPy arrays: finds a package's library, loads it with ctypes and calls it.

Every package has a copy of this file in ``python/NAME``. It needs NumPy and nothing else; ctypes gives the
interpreter lock back while the model runs, so threads run side by side.

    model = Model("minilm.smelt")
    outputs = model(input_ids, attention_mask)  # arrays, or anything on the CPU with __dlpack__
    outputs.last_hidden_state
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
import weakref
from collections import namedtuple
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .library import ALIGNMENT, E_ARGUMENT, DtypeError, Library, ShapeError, Size, Tensor, Tensors
from .loading import LoadError, ModelError, library_path


class Model:
    """A compiled model. Arrays in, a named tuple of arrays out; no PyTorch.

    ``folder``: the package. ``threads``: that a call uses, 0: all processors. ``level``: an instruction set
    by name, None: the best that the processor has. ``trust_weights``: the weights' digest is not checked,
    which is quicker.

    Any number of threads may call a model at once, where it keeps no states or each thread passes its own.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        threads: int = 0,
        level: str | None = None,
        trust_weights: bool = False,
    ) -> None:
        folder = Path(folder)
        try:
            self.name = str(json.loads((folder / "model.json").read_text("utf-8"))["name"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LoadError(f"{folder} is no package of a model: model.json: {error}") from error
        if not (self.name.isascii() and self.name.isidentifier()):  # it becomes a part of a path
            raise LoadError(f"{folder}: model.json: {self.name!r} is no name of a model")
        self._library = library = Library(library_path(folder, self.name), self.name)
        handle = library.open(folder / "weights.safetensors", threads, level, trust_weights)
        self._handle = handle
        # Not at exit: threads that still run the model then have it to the end.
        weakref.finalize(self, library.destroy, handle).atexit = False

        self.sizes: tuple[Size, ...] = library.sizes_table()
        tensors = library.tensors("input", self.sizes)
        self.inputs = tuple(tensor for tensor in tensors if not tensor.is_state)
        """What a call takes, in this order."""
        self.outputs = library.tensors("output", self.sizes)
        self.state_infos = tuple(tensor for tensor in tensors if tensor.is_state)
        """What a call reads and writes in place."""
        self.states: dict[str, np.ndarray] = {}
        """The states that this object keeps: what is put here by name, or `new_states` at the first call."""
        self._tensors = tensors
        self._writes = [(tensor.name, tensor.is_state) for tensor in tensors]
        self._writes += [(tensor.name, True) for tensor in self.outputs]
        self._dtypes = {tensor.dtype: numpy_dtype(tensor.dtype) for tensor in tensors + self.outputs}
        self._scalars = any(not tensor.shape for tensor in self.inputs)  # their values may be sizes
        self._threads = threading.local()
        names = [re.sub(r"\W", "_", tensor.name, flags=re.ASCII) for tensor in self.outputs]
        self._result = _named_tuple(names)

    @property
    def level(self) -> str:
        """The instruction set in use, as ``"x86-64-v4"``."""
        return str(self._library.level(self._handle).decode())

    def __call__(
        self, *arrays: Any, out: Sequence[Any] | Mapping[str, Any] | np.ndarray | None = None, **named: Any
    ) -> Any:
        """Runs the model: inputs in the order of ``inputs`` or by name, states by name; gives a named tuple.

        ``out``: arrays that get the results, one for each output (None: a new array), or a mapping by name.
        """
        names = [tensor.name for tensor in self.inputs]
        if len(arrays) > len(names):
            raise TypeError(f"{self.name} takes {len(names)} inputs ({', '.join(names)}), not {len(arrays)}")
        given = dict(zip(names, arrays))
        states = {tensor.name: named.pop(tensor.name, None) for tensor in self.state_infos}
        for name, value in named.items():
            if name not in names or name in given:
                problem = "is given twice" if name in given else "is no input"
                raise TypeError(f"{self.name}: {name} {problem}; inputs: {', '.join(names)}")
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise TypeError(f"{self.name}: missing: {', '.join(missing)}")
        return self._result(*self.run([given[name] for name in names], states, out))

    def run(
        self,
        inputs: Sequence[Any],
        states: Mapping[str, Any] | None = None,
        out: Sequence[Any] | Mapping[str, Any] | np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """Runs the model on its inputs in order; states that are not given are those of this object."""
        library, call = self._library, self._call()
        if len(inputs) != len(self.inputs):
            raise TypeError(f"{self.name} takes {len(self.inputs)} inputs, not {len(inputs)}")
        values = iter(inputs)
        kept = self._given_states(states or {})
        arrays = [
            self._written(tensor, kept[tensor.name]) if tensor.is_state else self._read(tensor, next(values))
            for tensor in self._tensors
            if not tensor.is_state or tensor.name in kept
        ]
        if len(arrays) < len(self._tensors):  # states that are nowhere yet, which this object then keeps
            known = [tensor for tensor in self._tensors if not tensor.is_state or tensor.name in kept]
            sizes: dict[str, int] = {}
            for tensor, array in zip(known, arrays):
                sizes.update((d, n) for d, n in zip(tensor.shape, array.shape) if isinstance(d, str))
            self.states.update(self._initial([t for t in self.state_infos if t.name not in kept], sizes))
            return self.run([array for t, array in zip(known, arrays) if not t.is_state], kept, out)
        places = [_address(array) for array in arrays]
        shapes = [array.shape for array in arrays]
        if shapes == call.key and not self._scalars:
            call.inputs.move(places)
        else:
            call.prepare(library, self._handle, places, shapes)
        results = self._results(out, call.extents)
        result_places = [_address(array) for array in results]
        call.outputs.move(result_places)
        if out is not None or self.state_infos:
            self._check_overlap((*arrays, *results), (*places, *result_places))
        given, made = call.inputs.structs, call.outputs.structs
        library.check(library.run(self._handle, given, made, call.workspace, call.workspace_bytes))
        return results

    def new_states(self, **sizes: int) -> dict[str, np.ndarray]:
        """The states before the first call for these sizes: their values in the packaged model, or zeros.

        ``model.states.update(model.new_states(batch=1, length=2048))`` starts again.
        """
        return self._initial(list(self.state_infos), sizes)

    def __repr__(self) -> str:
        return f"<model {self.name}: {', '.join(tensor.name for tensor in self.inputs)} → " + (
            f"{', '.join(tensor.name for tensor in self.outputs)}>"
        )

    def __str__(self) -> str:
        """What the model takes and gives, a line for each."""
        sizes = [(size.name, _range(size)) for size in self.sizes]
        parts = [
            ("inputs", [(tensor.name, str(tensor)) for tensor in self.inputs]),
            ("states (read and written in place)", [(t.name, str(t)) for t in self.state_infos]),
            ("outputs", [(tensor.name, str(tensor)) for tensor in self.outputs]),
            ("sizes", sizes),
        ]
        lines = [f"{self.name} ({self.level})"]
        for title, rows in parts:
            if rows:
                width = max(len(name) for name, _ in rows)
                lines += [f"  {title}", *(f"    {name:{width}}  {text}" for name, text in rows)]
        return "\n".join(lines)

    def _call(self) -> _Call:
        """What this thread's calls use again and again: the C structures and the workspace."""
        call: _Call | None = getattr(self._threads, "call", None)
        if call is None:
            call = self._threads.call = _Call(self._tensors, self.outputs, len(self.sizes))
        return call

    def _given_states(self, states: Mapping[str, Any]) -> dict[str, Any]:
        names = {tensor.name for tensor in self.state_infos}
        given = {name: state for name, state in states.items() if state is not None}
        unknown = [name for name in (*given, *self.states) if name not in names]
        if unknown:
            raise ModelError(f"{self.name} has no state {unknown[0]}; states: {', '.join(sorted(names))}")
        return {**self.states, **given}

    def _read(self, tensor: Tensor, value: Any) -> np.ndarray:
        """An input as an array that the library takes; a copy only where memory is laid out otherwise."""
        if not isinstance(value, np.ndarray):
            value = self._array(tensor, value)
        self._check(tensor, value)
        return _laid_out(value, tensor.order)

    def _array(self, tensor: Tensor, value: Any) -> np.ndarray:
        """Numbers and lists become arrays of the right dtype; other libraries' arrays keep theirs."""
        try:
            if isinstance(value, (list, tuple, int, float, complex)):
                return np.array(value, self._dtypes[tensor.dtype])
            try:
                return np.from_dlpack(value)
            except (BufferError, RuntimeError, TypeError, AttributeError):
                if not hasattr(value, "__array__"):
                    raise
                return np.asarray(value)
        except (ArithmeticError, AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
            what = f"{tensor.name}: {type(value).__name__} is no array of {tensor.dtype} in the CPU's memory"
            raise DtypeError(f"{what}: {error}{_hint(tensor.dtype)}") from error

    def _written(self, tensor: Tensor, value: Any) -> np.ndarray:
        """A state, or memory for an output: used as it is, so nothing may be converted or copied."""
        if not isinstance(value, np.ndarray):
            raise TypeError(
                f"{tensor.name} is written in place: pass a NumPy array, not {type(value).__name__}"
            )
        self._check(tensor, value)
        if not value.flags.writeable or _laid_out(value, tensor.order) is not value:
            what = f"dimensions in memory as {tensor.order}" if tensor.order else "C order"
            raise ModelError(f"{tensor.name} is written in place: it must be writable, aligned, with {what}")
        return value

    def _check(self, tensor: Tensor, array: np.ndarray) -> None:
        dtype = self._dtypes[tensor.dtype]
        if array.dtype not in (dtype, _CONTAINERS.get(tensor.dtype, dtype)):
            raise DtypeError(
                f"{tensor.name}: dtype {array.dtype}, expected {tensor.dtype}; "
                f"convert it: {tensor.name}.astype({dtype.name!r})" + _hint(tensor.dtype)
            )
        if array.ndim != len(tensor.shape):
            raise ShapeError(f"{tensor.name}: shape {list(array.shape)}, expected {tensor}")

    def _initial(self, tensors: Sequence[Tensor], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        states = {}
        for tensor in tensors:
            missing = [d for d in tensor.shape if isinstance(d, str) and d not in sizes]
            if missing:
                raise ShapeError(
                    f"the inputs do not say how large the state {tensor.name} is ({tensor}): "
                    f"give {', '.join(missing)}, as model.states.update(model.new_states({missing[0]}=…)), "
                    f"or the state itself"
                )
            shape = [sizes[d] if isinstance(d, str) else d for d in tensor.shape]
            state = states[tensor.name] = _new(np.zeros, shape, self._dtypes[tensor.dtype], tensor.order)
            if all(isinstance(d, int) for d in tensor.shape):  # of others there is no initial value
                number = self._tensors.index(tensor)
                code = self._library.initial(self._handle, number, _address(state))
                self._library.check(code if code != E_ARGUMENT else 0)  # it has none
        return states

    def _results(self, out: Any, extents: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Arrays for the outputs: those of ``out``, new ones for the rest."""
        if isinstance(out, np.ndarray):
            out = [out]
        elif isinstance(out, Mapping):
            unknown = out.keys() - {tensor.name for tensor in self.outputs}
            if unknown:
                raise ModelError(f"{self.name} has no output {unknown.pop()}")
            out = [out.get(tensor.name) for tensor in self.outputs]
        if out is not None and len(out) != len(self.outputs):
            raise ModelError(f"out has {len(out)} arrays, {self.name} has {len(self.outputs)} outputs")
        results = []
        for number, (tensor, shape) in enumerate(zip(self.outputs, extents)):
            array = None if out is None else out[number]
            if array is None:
                array = _new(np.empty, shape, self._dtypes[tensor.dtype], tensor.order)
            elif self._written(tensor, array).shape != shape:
                what = f"shape {list(array.shape)}, the result has {list(shape)}"
                raise ShapeError(f"out: {tensor.name} has {what}")
            results.append(array)
        return results

    def _check_overlap(self, arrays: Sequence[np.ndarray], places: Sequence[int]) -> None:
        """No memory that the model writes may be that of another array."""
        spans = sorted(
            (place, array.nbytes, name, writes)
            for array, place, (name, writes) in zip(arrays, places, self._writes)
            if array.nbytes
        )
        written_end = end = 0
        last_written = last = ""
        for begin, nbytes, name, writes in spans:
            if begin < written_end or (writes and begin < end):
                other = last_written if begin < written_end else last
                raise ModelError(
                    f"{name} and {other} share memory, and the model writes it; pass a copy of one"
                )
            if begin + nbytes > end:
                end, last = begin + nbytes, name
            if writes:
                written_end, last_written = begin + nbytes, name


class _Call:
    """A thread's calls of one model: C structures, and a workspace, which grows as needed and is used again.

    ``key``: the inputs' shapes that ``extents`` (the outputs' shapes) and the workspace are for.
    """

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: int) -> None:
        self.tensors, self.results = inputs, outputs
        self.inputs, self.outputs = Tensors(inputs), Tensors(outputs)
        self.sizes = (ctypes.c_int64 * max(1, sizes))()
        self.key: list[tuple[int, ...]] | None = None
        self.extents: list[tuple[int, ...]] = []
        self.memory = np.empty(0, np.uint8)
        self.workspace = self.workspace_bytes = 0

    def prepare(
        self,
        library: Library,
        handle: ctypes.c_void_p,
        places: Sequence[int],
        shapes: list[tuple[int, ...]],
    ) -> None:
        """Takes inputs of these shapes, and asks the library for what they need."""
        self.key = None
        self.inputs.set(places, shapes, self.tensors)
        library.check(library.sizes(self.inputs.structs, self.sizes))
        self.extents = []
        for number, (tensor, shape) in enumerate(zip(self.results, self.outputs.shapes)):
            library.check(library.output_shape(self.sizes, number, shape))
            self.extents.append(tuple(shape[: len(tensor.shape)]))
        self.outputs.set([0] * len(self.results), self.extents, self.results)
        needed = library.workspace_bytes(handle, self.sizes)
        if needed < 0:
            library.check(E_ARGUMENT)
        if needed > self.workspace_bytes or not self.workspace:
            self.memory = np.empty(needed + ALIGNMENT, np.uint8)
            address = _address(self.memory)
            self.workspace, self.workspace_bytes = address + -address % ALIGNMENT, needed
        self.key = shapes


_CONTAINERS: dict[str, np.dtype] = {  # dtypes that NumPy lacks: an array of their bits is taken as well
    "bfloat16": np.dtype(np.uint16),
    "float8_e4m3fn": np.dtype(np.uint8),
    "float8_e5m2": np.dtype(np.uint8),
}


def numpy_dtype(name: str) -> np.dtype:
    if name not in _CONTAINERS:
        return np.dtype(name)
    try:
        import ml_dtypes  # type: ignore[import-not-found, import-untyped]
    except ImportError:
        return _CONTAINERS[name]
    dtype: np.dtype = np.dtype(getattr(ml_dtypes, name))
    return dtype


def _address(array: np.ndarray) -> int:
    place: int = array.__array_interface__["data"][0]
    return place


def _named_tuple(names: list[str]) -> Any:
    return namedtuple("Outputs", names, rename=True)


def _hint(dtype: str) -> str:
    if dtype not in _CONTAINERS:
        return ""
    return f". NumPy has no {dtype}: pass its bits as {_CONTAINERS[dtype]}, or use ml_dtypes"


def _laid_out(array: np.ndarray, order: tuple[int, ...] | None) -> np.ndarray:
    """The array itself where its memory is as the library takes it, a copy otherwise."""
    ordered = array if order is None else array.transpose(order)
    if ordered.flags.c_contiguous and ordered.flags.aligned:
        return array
    copy = np.require(ordered, requirements=["C", "A"])
    return copy if order is None else copy.transpose(np.argsort(order))


def _new(make: Any, shape: Sequence[int], dtype: np.dtype, order: tuple[int, ...] | None) -> np.ndarray:
    array: np.ndarray
    if order is None:
        array = make(tuple(shape), dtype)
    else:
        array = make(tuple(shape[d] for d in order), dtype).transpose(np.argsort(order))
    return array


def _range(size: Size) -> str:
    return f"{size.least} … {size.most}" if size.most < 2**62 else f"{size.least} and more"
