"""Calls that go past Dynamo.

Before each call Dynamo sets its own state up, goes through the two calls that PyTorch makes of a module's
one, finds its code for the frame, asks the guards and takes its state down again: 0.1 to 0.25 ms for a small
transformer, whose weights have thrown all of this out of the caches. What `smelt.compile` returns remembers
the code that Dynamo wrote, and calls it where Dynamo would: when all its guards say yes (Dynamo's own, asked
as Dynamo asks them), and nothing that stands between the call and Dynamo's frame has changed since
(`smelt.runtime.unchanged`: hooks, classes, functions). Every other call is Dynamo's, as it was.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, get_eval_frame_callback
from torch._dynamo import eval_frame, utils
from torch._dynamo.eval_frame import DynamoStance, OptimizedModule, innermost_backend, innermost_fn
from torch.fx import GraphModule
from torch.nn.modules import module as hooked

from smelt.capture.guards import KNOWN
from smelt.runtime.garbage import garbage_waits
from smelt.runtime.unchanged import Asked, Step, Tree, ready, watched, why_not

MOST_WAYS = 4
"""How many variants of a program (sizes, modes) are called directly."""
MOST_PATIENCE = 64
"""After how many of Dynamo's calls a way past it is looked for again, at the latest."""

_WHOLE = "_smelt_whole"
_COMPILED, _RESUMED = "__compiled_fn_", "__resume_at"
_UTILS = "__import_torch_dot__dynamo_dot_utils"
_OTHER_USES = {"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "MAKE_FUNCTION"}
"""What uses a function's globals and would not find all of them in a `_Globals`."""
_OWN_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _OWN_HOOKS)
_CALLS = {name: vars(nn.Module)[name] for name in ("__call__", "_wrapped_call_impl", "_call_impl")}
"""How PyTorch calls a module, unless somebody has put something else in its place."""


def mark_whole(graph_module: GraphModule, call: Callable[..., Any]) -> None:
    """Note on a compiled graph whether it is all of a program, and Dynamo's code leaves nothing to others."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    setattr(innermost_fn(call), _WHOLE, reason is not None and not reason.graph_break)


def past_dynamo(compiled: Any, backend: Callable[..., Any]) -> Any:
    """What ``torch.compile`` has made of a module or function with ``backend``, calling directly."""
    if not KNOWN or why_not() is not None:
        return compiled
    if type(compiled) is OptimizedModule:
        return CompiledModule(compiled._orig_mod, compiled.dynamo_ctx)
    if not isinstance(compiled, FunctionType) or not hasattr(compiled, "_torchdynamo_orig_callable"):
        return compiled
    ways = Ways(compiled, compiled, backend)

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        return ways(*args, **kwargs)

    call._torchdynamo_wrapper_id = id(call)  # type: ignore[attr-defined]  # it stands for what it wraps
    return call


class CompiledModule(OptimizedModule):
    """What `smelt.compile` makes of a module."""

    _directly: Ways
    _original: nn.Module

    def __init__(self, mod: nn.Module, dynamo_ctx: Any) -> None:
        super().__init__(mod, dynamo_ctx)
        ways = Ways(super().__call__, self.forward, innermost_backend(dynamo_ctx.callback), self)
        object.__setattr__(self, "_directly", ways)  # the class's own would set it in the original
        object.__setattr__(self, "_original", mod)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return self._original(*args, **kwargs)
        return self._directly(*args, **kwargs)


class Way(NamedTuple):
    """How one variant of a program is called."""

    names: Callable[..., dict[str, Any]]
    """The variables of Dynamo's frame, from the call's arguments."""
    still: Asked
    holds: Callable[[dict[str, Any]], bool]
    run: Callable[..., Any]


class Ways:
    """A compiled program's ways past Dynamo."""

    __slots__ = ("backend", "called", "outside", "patience", "program", "slow", "stance", "waits", "ways")

    def __init__(
        self,
        slow: Callable[..., Any],
        compiled: Any,
        backend: Callable[..., Any],
        outside: nn.Module | None = None,
    ) -> None:
        """``slow``: the call through Dynamo; ``compiled``: what ``torch.compile`` made of a function or of a
        module's call; ``outside``: the module that ``slow`` is the call of.
        """
        self.slow, self.backend, self.outside = slow, backend, outside
        self.program = getattr(compiled, "_torchdynamo_orig_callable", None)
        self.ways: list[Way] = []
        self.waits, self.patience = 0, 1
        self.stance: DynamoStance | None = None
        self.called = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for names, still, holds, run in self.ways:
            try:
                found = names(*args, **kwargs)
            except (TypeError, ValueError):  # wrong arguments, an empty cell: the program itself says so
                break
            if still() and self._is_usual() and holds(found):
                return run(*args, **kwargs)
        result = self._through_dynamo(*args, **kwargs)
        if self.waits:
            self.waits -= 1
        elif ready():
            self.waits, self.patience = self.patience, min(2 * self.patience, MOST_PATIENCE)
            self._learn(args, kwargs)
        return result

    def _through_dynamo(self, *args: Any, **kwargs: Any) -> Any:
        if self.called:
            return self.slow(*args, **kwargs)
        self.called = True  # Dynamo compiles
        with garbage_waits():
            return self.slow(*args, **kwargs)

    def _is_usual(self) -> bool:
        """Whether Dynamo would look for its code here: nobody traces, and nobody has told it otherwise."""
        return (
            eval_frame._stance is self.stance
            and get_eval_frame_callback() is None
            and not torch._C._is_tracing()
        )

    def _learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find the code that Dynamo has just run for these arguments."""
        stance = eval_frame._stance
        if stance != DynamoStance():
            return
        self.stance = stance
        self.ways = [way for way in self.ways if way.still()][-MOST_WAYS + 1 :]
        frame, owner = _frame_of(self.program)
        between = [module for module in (self.outside, owner) if module is not None]
        if frame is None or any(map(_has_hooks, between)):
            return

        def bound(function: Callable[..., Any]) -> Callable[..., Any]:
            return function if owner is None else MethodType(function, owner)

        names = bound(_names_of(frame))
        try:
            found = names(*args, **kwargs)
        except (TypeError, ValueError):
            return
        for entry in _debug_get_cache_entry_list(frame.__code__):
            manager = entry.guard_manager
            if entry.backend == self.backend and manager.root.check(found):
                still = watched((manager, Tree()), *_between(frame, between))
                if still is not None and _is_whole(entry.code, frame):
                    run = bound(_with_code(frame, entry.code))
                    self.ways.append(Way(names, still, manager.root.check, run))
                return


def _frame_of(program: Any) -> tuple[FunctionType | None, nn.Module | None]:
    """The function whose frames Dynamo sees when ``program`` is called, and the module that is its first
    argument then; None where one cannot tell, because the call is another than ``nn.Module``'s.
    """
    if isinstance(program, FunctionType):
        return program, None
    owner = getattr(program, "__self__", None)
    if not isinstance(program, MethodType) or not isinstance(owner, nn.Module):
        return None, None
    usual = all(inspect.getattr_static(type(owner), name) is call for name, call in _CALLS.items())
    own = "forward" in vars(owner) or owner._compiled_call_impl is not None
    forward = inspect.getattr_static(type(owner), "forward")
    if (
        own
        or not usual
        or program.__func__ is not _CALLS["__call__"]
        or not isinstance(forward, FunctionType)
    ):
        return None, None
    return forward, owner


def _has_hooks(module: nn.Module) -> bool:
    """Whether PyTorch does more when it calls the module than to call its ``forward``."""
    of_all = (getattr(hooked, name) for name in _GLOBAL_HOOKS)
    return any(vars(module)[name] for name in _OWN_HOOKS) or any(of_all)


def _between(frame: FunctionType, modules: Sequence[nn.Module]) -> Iterator[tuple[Any, Tree]]:
    """All that `_frame_of` and `_has_hooks` have looked at."""
    of_frame, of_hooks, of_all = Tree(), Tree(), Tree()
    of_frame.at(("__code__",)), of_frame.at(("__kwdefaults__",)), of_hooks.at((Step.TYPE,))
    for name, of_every in zip(_OWN_HOOKS, _GLOBAL_HOOKS):
        of_hooks.at((name,)), of_all.at((of_every,))
    yield frame, of_frame
    yield hooked, of_all
    yield from ((module, of_hooks) for module in modules)


def _is_whole(code: CodeType, frame: FunctionType) -> bool:
    """Whether Dynamo's code has one graph that smelt has compiled, and nothing else to compile."""
    graphs = [frame.__globals__.get(name) for name in code.co_names if name.startswith(_COMPILED)]
    whole = len(graphs) == 1 and getattr(graphs[0], _WHOLE, False)
    return whole and not any(name.startswith(_RESUMED) for name in code.co_names)


def _with_code(frame: FunctionType, code: CodeType) -> FunctionType:
    """The function with Dynamo's code, which calls what smelt has compiled without Dynamo's wrappers around
    it: they tell Dynamo not to look at it, and nobody has told it to look here (`Ways._is_usual`).
    """
    known = frame.__globals__
    if _OTHER_USES.isdisjoint(each.opname for each in dis.get_instructions(code)):
        compiled = [name for name in code.co_names if name.startswith(_COMPILED)]
        known = _Globals(known, {name: innermost_fn(known[name]) for name in compiled})
    function = FunctionType(code, known, frame.__name__, frame.__defaults__, frame.__closure__)
    function.__kwdefaults__ = frame.__kwdefaults__
    return function


class _Globals(dict[str, Any]):
    """The globals of a function, as they are when they are read, but for some that it sees otherwise."""

    def __init__(self, real: dict[str, Any], otherwise: dict[str, Any]) -> None:
        super().__init__(otherwise, __builtins__=real["__builtins__"])
        if _UTILS in real:
            self[_UTILS] = _UtilsWithoutMarks()
        self.real = real

    def __missing__(self, name: str) -> Any:
        return self.real[name]


class _UtilsWithoutMarks:
    """``torch._dynamo.utils`` without the marks that Dynamo's code sets for a profiler around itself."""

    def record_pregraph_bytecode_enter(self) -> None:
        """Nothing."""

    def record_pregraph_bytecode_exit(self, mark: None) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(utils, name)


def _names_of(frame: FunctionType) -> Callable[..., dict[str, Any]]:
    """A function of ``frame``'s arguments that gives its variables by name, as they are when it begins.

    >>> def program(x, *rest, scale=2): ...
    >>> _names_of(program)(1, 2, 3)
    {'x': 1, 'rest': (2, 3), 'scale': 2}
    """
    code = frame.__code__
    at, only = code.co_argcount, code.co_posonlyargcount
    names, keywords = [*code.co_varnames[:at]], [*code.co_varnames[at : at + code.co_kwonlyargcount]]
    behind = [*code.co_varnames[at + len(keywords) :]]
    rest = [f"*{behind.pop(0)}"] if code.co_flags & inspect.CO_VARARGS else ["*"] if keywords else []
    more = [f"**{behind.pop(0)}"] if code.co_flags & inspect.CO_VARKEYWORDS else []
    signature = [*names[:only], *(["/"] if only else []), *names[only:], *rest, *keywords, *more]
    all_names = [*names, *(name.strip("*") for name in (*rest, *keywords, *more) if name != "*")]
    cells = {f"__smelt_{name}": cell for name, cell in zip(code.co_freevars, frame.__closure__ or ())}
    items = [f"{name!r}: {name}" for name in all_names]
    items += [f"{name!r}: __smelt_{name}.cell_contents" for name in code.co_freevars]
    scope: dict[str, Any] = dict(cells)
    exec(f"def names({', '.join(signature)}): return {{{', '.join(items)}}}", scope)
    function: FunctionType = scope["names"]
    function.__defaults__, function.__kwdefaults__ = frame.__defaults__, frame.__kwdefaults__
    return function
