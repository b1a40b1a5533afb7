"""Programs that run autograd themselves (a training step) → ``torch.export``.

``torch.export`` traces above autograd, where a backward is invisible. So the program is traced below autograd
first, with the fake tensors of the running export: sizes stay symbols, and the export knows the assumptions
of tracing about them.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from smelt.capture import lines
from smelt.capture.state import state_of
from smelt.errors import SmeltError


class BackwardCalledError(Exception):
    """A program that is traced above autograd runs it, or takes an optimizer's step."""


@contextmanager
def stopped_at_backward(optimizers: Iterable[Optimizer] = ()) -> Iterator[None]:
    """Inside, a program that runs autograd or takes a step of an optimizer raises `BackwardCalledError`.

    The optimizers' gradients are restored afterwards.

    >>> with stopped_at_backward():
    ...     torch.ones(2, requires_grad=True).sum().backward()
    Traceback (most recent call last):
    smelt.capture.step.BackwardCalledError
    """
    every = list(optimizers)
    updated = [each for optimizer in every for group in optimizer.param_groups for each in group["params"]]
    gradients = [each.grad for each in updated]
    hooks = [each.register_step_pre_hook(_stop) for each in every]
    try:
        with _Watch():
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for parameter, gradient in zip(updated, gradients):
            parameter.grad = gradient


def _stop(*_: Any) -> None:
    raise BackwardCalledError


class _Watch(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.backward, torch.autograd.grad):
            raise BackwardCalledError
        return func(*args, **(kwargs or {}))


class Step(nn.Module):
    """A program that runs autograd, as a module that ``torch.export`` can trace.

    Parameters, buffers, and tensors of optimizers' states are its buffers, under their own names. Each call
    begins without gradients (``.grad`` is None), and the final ``.grad`` is no result.
    """

    program: _Program

    def __init__(self, program: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["program"] = _Program(program)  # no submodule: its tensors are held here
        for path, tensor in self.program.tensors.items():
            _hold(self, path, tensor.detach())
        call = program.forward if isinstance(program, nn.Module) else program

        @functools.wraps(call)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._traced(args, kwargs)

        self.forward = forward

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, nesting = pytree.tree_flatten((args, kwargs))
        state = [self.get_buffer(path) for path in self.program.tensors]
        given = [*state, *leaves]
        wanted = [each.requires_grad for each in self.program.tensors.values()]
        wanted += [isinstance(each, Tensor) and each.requires_grad for each in leaves]
        mode = detect_fake_mode(given)
        returned: list[Any] = []

        def flat(*values: Any) -> list[Any]:
            inner_args, inner_kwargs = pytree.tree_unflatten(values[len(state) :], nesting)
            with torch.enable_grad(), lines.of_operators():
                result = self.program.compute(values[: len(state)], inner_args, inner_kwargs)
            results, spec = pytree.tree_flatten(result)
            returned[:] = [spec]
            return [each.detach() if isinstance(each, Tensor) else each for each in results]

        with _disable_current_modes(), torch._C.DisableTorchFunction(), ExitStack() as stack:
            if mode is not None:
                stack.enter_context(mode)
            inner = [_like(value, grad) for value, grad in zip(given, wanted)]
            stack.enter_context(enable_python_dispatcher())
            traced = make_fx(flat, tracing_mode="real")(*inner)
        _check(traced)
        _complete_lines(traced)
        with preserve_node_meta():
            results = Interpreter(traced).run(*given)
        return pytree.tree_unflatten(results, returned[0])


class _Program(nn.Module):
    """The program, called with the tensors of its state."""

    call: Callable[..., Any]

    def __init__(self, program: Callable[..., Any]) -> None:
        super().__init__()
        state = state_of(program)
        self.__dict__["call"] = program
        self.optimizers = {name: _State(each) for name, each in state.optimizers.items()}
        self.parts = state.modules
        for name, module in self.parts.items():
            self.add_module(f"part_{name}", module)
        named = [*self.named_parameters(), *self.named_buffers()]
        self.own = [name for name, _ in named]
        self.tensors = {self._path(name): tensor for name, tensor in named}
        paths = {id(tensor): path for path, tensor in self.tensors.items()}
        for name, optimizer in self.optimizers.items():
            self.tensors.update(optimizer.tensors(name, paths))

    @staticmethod
    def _path(name: str) -> str:
        part, _, rest = name.removeprefix("part_").partition(".")
        return f"{part}.{rest}" if part else rest

    def compute(self, state: Sequence[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of the program with these tensors, in the order of ``tensors``."""
        own = dict(zip(self.own, state))
        current = {id(tensor): value for tensor, value in zip(self.tensors.values(), state)}
        return torch.func.functional_call(self, own, (current, own, args, kwargs))

    def forward(
        self, current: Mapping[int, Tensor], own: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        with ExitStack() as stack:
            for optimizer in self.optimizers.values():
                stack.enter_context(optimizer.swapped(current))
            result = self.call(*args, **kwargs)
        with torch.no_grad():
            for name, value in own.items():  # a buffer that was assigned to
                path, _, last = name.rpartition(".")
                now = getattr(self.get_submodule(path), last)
                if now is not value and isinstance(now, Tensor):
                    value.copy_(now)
        return result


class _State:
    """The state of one optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def tensors(self, name: str, paths: Mapping[int, str]) -> dict[str, Tensor]:
        """Path → tensor, for all tensors in the optimizer's state.

        Raises:
            SmeltError: SM0721, a parameter that belongs to no module of the program.
        """
        found: dict[str, Tensor] = {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in paths:
                    raise SmeltError(
                        "SM0721",
                        f"{name} updates a tensor of the shape {list(parameter.shape)}",
                        why="it is no parameter of a module that the program uses",
                    )
                for key, value in self.optimizer.state.get(parameter, {}).items():
                    if isinstance(value, Tensor):
                        found[f"{name}.state.{paths[id(parameter)]}.{key}"] = value
        return found

    @contextmanager
    def swapped(self, current: Mapping[int, Tensor]) -> Iterator[None]:
        """Inside, the optimizer updates the tensors of ``current`` (by the ``id`` of its own).

        Raises:
            SmeltError: SM0721, the step adds state that is not in the module.
        """
        optimizer = self.optimizer
        groups = [group["params"] for group in optimizer.param_groups]
        state = optimizer.state
        given = {
            current[id(parameter)]: {
                key: current.get(id(value), value) for key, value in state.get(parameter, {}).items()
            }
            for parameters in groups
            for parameter in parameters
        }
        for group, parameters in zip(optimizer.param_groups, groups):
            group["params"] = [current[id(parameter)] for parameter in parameters]
        optimizer.state = defaultdict(dict, {key: dict(value) for key, value in given.items() if value})
        try:
            yield
            for parameter, after in optimizer.state.items():
                _write_back(type(optimizer).__name__, given.get(parameter, {}), after)
        finally:
            optimizer.state = state
            for group, parameters in zip(optimizer.param_groups, groups):
                group["params"] = parameters


def _write_back(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Copies new tensors into the old ones.

    Raises:
        SmeltError: SM0721, there is no old tensor, or it is a number.
    """
    for key, value in after.items():
        old = before.get(key)
        if value is old:
            continue
        if isinstance(old, Tensor) and isinstance(value, Tensor):
            with torch.no_grad():
                old.copy_(value)
        elif old is None and isinstance(value, Tensor):
            raise SmeltError(
                "SM0721",
                f"the first step of {name} makes its state ({key})",
                why="the program would make it anew at every call",
                remedy="take one step, then export",
            )
        elif old != value:
            raise SmeltError("SM0721", f"{name} keeps a number that changes ({key}), which would be fixed")


def _hold(root: nn.Module, path: str, tensor: Tensor) -> None:
    """Registers a buffer; ``a.b.c`` is registered in a nested module."""
    *parents, last = path.split(".")
    for each in parents:
        if each not in root._modules:
            root.add_module(each, nn.Module())
        root = root.get_submodule(each)
    root.register_buffer(last, tensor)


def _like(value: Any, grad: bool) -> Any:
    """A tensor of the same form, without history."""
    if not isinstance(value, Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.requires_grad_(grad)


def _check(traced: GraphModule) -> None:
    """Checks that only arguments and state of the program are written to.

    Raises:
        SmeltError: SM0721, another tensor is written to.
    """
    for node in traced.graph.find_nodes(op="get_attr"):
        for user in node.users:
            schema = getattr(user.target, "_schema", None)
            if schema is not None and schema.is_mutable and user.args and user.args[0] is node:
                raise SmeltError(
                    "SM0721",
                    "the program writes to a tensor that is no argument and belongs to no module",
                    where=_line(user),
                    remedy="make it an argument, or a parameter or buffer of a module",
                )


def _line(node: Node) -> str | None:
    found = re.search(r'File ".*?([^/\\"]+)", line (\d+), in (\S+)', node.stack_trace or "")
    return None if found is None else f"{found[1]}:{found[2]} in {found[3]}"


def _complete_lines(traced: GraphModule) -> None:
    """Gives nodes that torch adds (parts of a result, for example) the line of their source."""
    for node in traced.graph.nodes:
        if node.op == "call_function" and not node.stack_trace:
            known = [each.stack_trace for each in node.all_input_nodes if each.stack_trace]
            node.stack_trace = known[-1] if known else node.stack_trace
