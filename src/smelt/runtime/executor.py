"""Runs plans: the Python source of a plan is written once, and bound to the library, the constants and
ATen.
"""

from __future__ import annotations

import builtins
import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.autograd import profiler

from smelt.errors import SmeltError, ToolchainError
from smelt.runtime import probe, trampoline
from smelt.runtime.arena import ArenaPool, tensor_at
from smelt.runtime.externs import find_overload
from smelt.runtime.folded import Thaw, with_constants
from smelt.runtime.gpu import LAUNCH_ERRORS, DeviceMemory
from smelt.runtime.library import Job, Library, PythonLibrary
from smelt.runtime.plan import Plan
from smelt.runtime.recycle import RECYCLER
from smelt.runtime.source import Source, write_source
from smelt.runtime.watching import Watcher, names_of

Call = Callable[[list[Any]], Sequence[Any]]
Strides = tuple[int, ...]
Timed = Callable[[str, Callable[..., Any]], Callable[..., Any]]


def render(plan: Plan) -> str:
    """The Python source that runs the plan, followed by the source of the folded plans.

    >>> from smelt.runtime.plan import AllocStep, NativeStep, Ref, TensorSpec
    >>> out = AllocStep(TensorSpec("out", "float32", ("s0",), (1,)))
    >>> run = NativeStep("run0", ("x", "out"), ("s0",))
    >>> print(render(Plan(("x", "s0"), ("s0",), (), 0, (), (out, run), (Ref("out"),))))
    def call(args):
        x, s0 = args
        args.clear()
        if _profiler._is_profiler_enabled:
            _watch()
        out = _large((s0,), (1,), _float32)
        if _status := _run0(0, x.data_ptr(), out.data_ptr(), s0):
            _fail(0, _status)
        return (out,)
    <BLANKLINE>

    Raises:
        VerificationError: SM0405, the plan contradicts itself.
        SmeltError: SM0403/SM0404, this torch lacks an operator or its out variant.
    """
    text = write_source(plan).text
    for each in plan.folded:
        text += f"\n\n# ahead, {len(each.uses)} times\n{render(each.plan)}"
    return text


def build(
    plan: Plan,
    library: Library | PythonLibrary | Job | None,
    constants: Mapping[str, torch.Tensor],
    timed: Timed | None = None,
    thaw: Thaw | None = None,
) -> Call:
    """A function ``call(args: list) -> tuple`` that runs the plan; it empties ``args`` (a boxed call).

    ``library`` may still be compiling: the first call waits for it (and raises the compiler's errors). A plan
    without native steps takes None. The function may be called from several threads, and re-entered.
    ``timed`` wraps an ATen operator to count its time (`smelt.runtime.clocks`); ``thaw`` compiles the program
    again if constants change (`smelt.runtime.folded`).

    Raises:
        VerificationError, SmeltError: see `render`; SM0407, a constant is missing.
    """
    source = write_source(plan)
    folded = plan.folded_constants
    memory = None if plan.device is None else DeviceMemory(torch.device(plan.device))
    missing = [name for name in plan.constants if name not in constants and name not in folded]
    if missing:
        raise SmeltError("SM0407", f"the plan needs constants that were not given: {', '.join(missing)}")
    namespace: dict[str, Any] = {
        "_empty": _empty if memory is None else memory.empty,
        "_large": RECYCLER.empty if memory is None else memory.empty,
        "_current_stream": None if memory is None else memory.stream,
        "_view": _view,
        "_as_real": torch.view_as_real,
        "_as_complex": torch.view_as_complex,
        "_grad_enabled": torch.is_grad_enabled,
        "_no_grad": torch.no_grad,
        "_tensor_at": tensor_at,
        "_laid_out": laid_out,
        "_fail": _raiser(source),
        "_profiler": profiler,
        "_watch": Watcher(names_of(plan.notes)) if plan.notes.get("kernels") else _nothing,
        **source.literals,
        **{name: _operator(target, out, timed) for name, (target, out) in source.externs.items()},
        **_bound(source, constants),
        **{name: _bodies(plans, library, constants, timed) for name, plans in source.bodies.items()},
    }
    exec(compile(source.text, "<smelt plan>", "exec"), namespace)
    if source.has_arena:
        kind = ArenaPool if memory is None else memory.pool
        pool = kind(namespace["_arena_bytes"], namespace.get("_arena_tensors"))
        namespace["_acquire"], namespace["_release"] = pool.acquire, pool.release
        namespace["_tensors"] = pool.tensors
    if source.natives:
        trampoline.start()  # compiled in parallel to the library, the first time on a machine
    if isinstance(library, (Library, PythonLibrary)):
        _bind(source, library, namespace)
    else:
        _bind_late(source, library, namespace)
    call: Call = namespace["call"]
    if folded:
        probe.start()  # compiled in parallel to the library, the first time on a machine
        ahead = [build(each.plan, library, constants, timed) for each in plan.folded]
        call = with_constants(
            call, plan.folded, ahead, lambda made: namespace.update(_bound(source, made)), thaw
        )
    if memory is not None:
        call = _on_device(call, memory)
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _on_device(call: Call, memory: DeviceMemory) -> Call:
    def with_current(args: list[Any]) -> Sequence[Any]:
        with memory.current():
            return call(args)

    return with_current


def _bound(source: Source, constants: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The bindings of names in the source to constants and their addresses."""
    tensors = {name: constants[each] for name, each in source.constants.items() if each in constants}
    addresses = {name: constants[each] for name, each in source.pointers.items() if each in constants}
    return {**tensors, **{name: tensor.data_ptr() for name, tensor in addresses.items()}}


def _operator(target: str, out: bool, timed: Timed | None) -> Callable[..., Any]:
    call = find_overload(target, out).call
    return call if timed is None else timed(target, call)


def _bodies(
    plans: Sequence[Plan],
    library: Library | PythonLibrary | Job | None,
    constants: Mapping[str, torch.Tensor],
    timed: Timed | None,
) -> tuple[Call, ...]:
    return tuple(build(plan, library, constants, timed) for plan in plans)


def _nothing() -> None:
    """Watches nothing: the program around it does."""


def _bind(source: Source, library: Library | PythonLibrary, namespace: dict[str, Any]) -> None:
    if isinstance(namespace["_watch"], Watcher):
        namespace["_watch"].bind(library)
    for name, (function, pointers, sizes) in source.natives.items():
        namespace[name] = native_function(library, function, pointers, sizes)


def native_function(
    library: Library | PythonLibrary, name: str, pointers: int, sizes: int
) -> Callable[..., int]:
    """A run of the library as a function of the arena's address, those of ``pointers`` buffers, and ``sizes``
    integers.
    """
    if isinstance(library, PythonLibrary):
        return library.functions[name]
    count = 1 + pointers + sizes
    fast = trampoline.fast_callable(library, name, count)
    if fast is not None:
        return fast
    slow = library.function(name)
    if count <= trampoline.MOST_ARGUMENTS:
        slow.argtypes = [ctypes.c_void_p] * (1 + pointers) + [ctypes.c_int64] * sizes
        return cast(Callable[..., int], slow)
    slow.argtypes = [ctypes.c_void_p]
    table = ctypes.c_int64 * count
    return lambda *values: slow(table(*values))


def _bind_late(source: Source, job: Job | None, namespace: dict[str, Any]) -> None:
    """Binds natives to functions that wait for the library, then bind the real natives and continue."""

    def waiting(name: str) -> Callable[..., int]:
        def first(*args: int) -> int:
            if job is None:
                raise SmeltError(
                    "SM0408", f"the plan calls {name.removeprefix('_')}, and was built without a library"
                )
            _bind(source, job.result(), namespace)
            return namespace[name](*args)

        return first

    namespace.update({name: waiting(name) for name in source.natives})


def _raiser(source: Source) -> Callable[[int, int], None]:
    kinds: dict[str, type[Exception]] = {}
    for kind, _ in {error for errors in source.errors for error in errors}:
        found = getattr(builtins, kind, None) or getattr(torch.linalg, kind, None)
        if not (isinstance(found, type) and issubclass(found, Exception)):
            raise SmeltError("SM0409", f"a check of the plan raises {kind!r}, which is no built-in exception")
        kinds[kind] = found

    def fail(step: int, status: int) -> None:
        errors = source.errors[step]
        if status < 0:
            why = LAUNCH_ERRORS.get(status, f"the driver's error {-status}")
            raise ToolchainError("SM0208", "a kernel cannot be launched", why=why)
        if not 0 < status <= len(errors):
            raise SmeltError("SM0410", f"native step {step} returned {status}, for which it has no message")
        kind, message = errors[status - 1]
        raise kinds[kind](message)

    return fail


def _plain_empty(shape: Sequence[int], strides: Strides, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype)


def _plain_view(tensor: torch.Tensor, shape: Sequence[int], strides: Strides, offset: int) -> torch.Tensor:
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


# PyTorch's own short cuts (a third of the price of empty_strided and as_strided), where this version has them
_guards = getattr(torch._C._dynamo, "guards", None)
_empty: Callable[..., torch.Tensor] = getattr(_guards, "_empty_strided_cpu", _plain_empty)
_view: Callable[..., torch.Tensor] = getattr(_guards, "_reinterpret_tensor", _plain_view)


def laid_out(
    tensor: torch.Tensor | None, shape: Sequence[int], strides: Strides, dtype: torch.dtype, target: str
) -> torch.Tensor:
    """The tensor in the layout that later steps need; a copy if ATen chose another one.

    One of several results may be missing where tracing had an empty one (oneDNN's workspaces).
    """
    if tensor is None and 0 in shape:
        return _plain_empty(shape, strides, dtype)
    if tensor is None:
        raise SmeltError(
            "SM0406",
            f"{target} gave None, and {tuple(shape)} {dtype} was expected",
            why="its fake kernel promises a tensor that its kernel does not give",
            remedy="mend the fake kernel; report this as a bug of smelt where the operator is PyTorch's",
        )
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype is not dtype:
        raise SmeltError(
            "SM0406",
            f"{target} gave {tuple(tensor.shape)} {tensor.dtype}, and {tuple(shape)} {dtype} was expected",
            remedy="report this as a bug of smelt",
        )
    differs = any(size > 1 and a != b for size, a, b in zip(shape, tensor.stride(), strides))
    if tensor.numel() == 0 or not differs:
        return _plain_view(tensor, shape, strides, 0)
    return torch.empty_strided(shape, strides, dtype=dtype, device=tensor.device).copy_(tensor)
