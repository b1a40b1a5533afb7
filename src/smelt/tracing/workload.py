"""The measured work: an inference call or a training step of a program, under eager or under a compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from smelt.tracing.program import Program

Call = Callable[..., Any]
SEED = 0
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True)
class Setup:
    """The options of compilation and runs."""

    train: bool = False
    dynamic: bool | None = None
    options: tuple[tuple[str, object], ...] = ()


def compiled(contender: str, call: Call, setup: Setup) -> Call:
    """``call`` under the contender: ``eager``, ``smelt``, or any backend of `torch.compile` by name."""
    if contender == "eager":
        return call
    if contender == "smelt":
        import smelt

        options: dict[str, Any] = dict(setup.options)
        return smelt.compile(call, dynamic=setup.dynamic, **options)
    return torch.compile(call, backend=contender, dynamic=setup.dynamic)


def prepare(program: Program, setup: Setup) -> None:
    """Sets training mode for a training step (a plain function's floating-point arguments then require
    gradients).
    """
    if not setup.train:
        return
    if isinstance(program.call, torch.nn.Module):
        program.call.train()
    if not any(p.requires_grad for p in parameters(program)):
        for leaf in tree_leaves((program.args, program.kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                leaf.requires_grad_(True)


def parameters(program: Program) -> list[torch.nn.Parameter]:
    """The model's parameters; none for a plain function."""
    return list(program.call.parameters()) if isinstance(program.call, torch.nn.Module) else []


def runner(program: Program, call: Call, setup: Setup) -> Callable[[], Any]:
    """A function that runs ``call`` once: inference without gradients, or one training step with SGD."""
    if not setup.train:

        def infer() -> Any:
            with torch.no_grad():
                return call(*program.args, **program.kwargs)

        return _waited_for(infer, program)

    trained = [p for p in parameters(program) if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE) if trained else None

    def step() -> Any:
        clear_gradients(program)
        result = call(*program.args, **program.kwargs)
        loss_of(result).backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()
        return result

    return _waited_for(step, program)


def _waited_for(run: Callable[[], Any], program: Program) -> Callable[[], Any]:
    """A run that ends when its GPUs have ended it."""
    leaves = (*parameters(program), *tree_leaves((program.args, program.kwargs)))
    devices = {each.device for each in leaves if isinstance(each, torch.Tensor) and each.is_cuda}
    if not devices:
        return run

    def waiting() -> Any:
        result = run()
        for device in devices:
            torch.cuda.synchronize(device)
        return result

    return waiting


def clocked(program: Program, setup: Setup) -> Callable[[], Any]:
    """A run of the program, compiled anew with clocks around its kernels, ATen calls and regions."""
    import smelt

    torch.compiler.reset()
    smelt.reset()
    timed = replace(setup, options=(*setup.options, ("clocks", True)))
    return runner(program, compiled("smelt", program.call, timed), timed)


def clear_gradients(program: Program) -> None:
    """Clears the gradients of parameters and arguments."""
    for tensor in gradient_holders(program).values():
        tensor.grad = None


def gradient_holders(program: Program) -> dict[str, torch.Tensor]:
    """The tensors with gradients, by name: parameters, and arguments that require gradients."""
    found: dict[str, torch.Tensor] = {}
    if isinstance(program.call, torch.nn.Module):
        found.update({name: p for name, p in program.call.named_parameters() if p.requires_grad})
    leaves = tree_leaves((program.args, program.kwargs))
    wanted = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf]
    found.update({f"argument {position}": tensor for position, tensor in enumerate(wanted)})
    return found


def loss_of(result: Any) -> torch.Tensor:
    """The result's own ``.loss`` where it has one, else the sum of its float outputs' mean squares."""
    own = getattr(result, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    outputs = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    terms = [x.pow(2).mean() for x in outputs if x.requires_grad]
    if not terms:
        raise ValueError("no output depends on anything that has a gradient: nothing to train")
    return torch.stack([term.float() for term in terms]).sum()


def as_double(tree: Any) -> Any:
    """The same arguments with every floating-point tensor in float64."""

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        return leaf.detach().double().requires_grad_(leaf.requires_grad)

    return tree_map(convert, tree)
