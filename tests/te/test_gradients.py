"""Gradients of functions of loops, against PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.nest.ir import Kernel
from smelt.ops import ops
from smelt.script.module import PrimFunc
from smelt.te.operators import operator
from smelt.te.products import products_of
from tests.nest.staging import F32, Program
from tests.te.test_building import accumulating, affine


def product() -> Kernel:
    program = Program(A=(5, 4), B=(4, 6))
    program.reduce("C", (5, 6), (4,), lambda i, j, k: ops.mul(ops.load("A", [i, k]), ops.load("B", [k, j])))
    program.compute("D", (5, 6), lambda i, j: ops.maximum(ops.load("C", [i, j]), ops.constant(0.0, F32)))
    return program.kernel("D")


def several() -> Kernel:
    """Two results, of which one is read again; an argument that is used three times, and broadcast."""
    program = Program(A=(5, 4), B=(4,))
    program.compute("T", (5, 4), lambda i, j: ops.tanh(ops.mul(ops.load("A", [i, j]), ops.load("B", [j]))))
    program.reduce("S", (5,), (4,), lambda i, k: ops.mul(ops.load("T", [i, k]), ops.load("A", [i, k])))

    def last(i: Any, j: Any) -> Any:
        share = ops.truediv(ops.load("T", [i, j]), ops.exp(ops.load("S", [i])))
        return ops.sub(share, ops.sqrt(ops.exp(ops.load("A", [i, j]))))

    program.compute("U", (5, 4), last)
    return program.kernel("T", "U")


def in_torch(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    t = torch.tanh(a * b)
    return t, t / (t * a).sum(1, keepdim=True).exp() - a.exp().sqrt()


CASES: dict[str, tuple[Kernel, Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "affine": (affine(), lambda a: a * 2 + 1, ((7,),)),
    "product": (product(), lambda a, b: torch.relu(a @ b), ((5, 4), (4, 6))),
    "several": (several(), in_torch, ((5, 4), (4,))),
}


@pytest.mark.parametrize("name", CASES)
def test_derived_gradients(name: str) -> None:
    kernel, function, shapes = CASES[name]
    op = operator(f"smelt_gradients::{name}", PrimFunc(kernel))
    args = [torch.randn(shape, requires_grad=True) for shape in shapes]

    def gradients(call: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        results = call(*args)
        results = results if isinstance(results, tuple) else (results,)
        return torch.autograd.grad(sum((r * r).sum() for r in results), args)  # type: ignore[arg-type]

    wanted = gradients(function)
    smelt.reset()
    for found in (gradients(op), gradients(smelt.compile(lambda *args: op(*args)))):
        for a, b in zip(found, wanted):
            torch.testing.assert_close(a, b)
    assert not any(report.fallbacks for report in smelt.reports())
    torch.library.opcheck(op.overload, tuple(args))


def test_a_product_s_gradients_are_products() -> None:
    op = operator("smelt_gradients::products", PrimFunc(product()))
    assert len(products_of(op.backward.kernel)) == 3  # the product again, and one for each operand


def test_a_gradient_of_ones_own() -> None:
    program = Program(A=(3,), G=(3,))
    program.compute("R", (3,), lambda i: ops.mul(ops.load("G", [i]), ops.constant(5.0, F32)))
    forward = Program(A=(3,))
    forward.compute("B", (3,), lambda i: ops.neg(ops.load("A", [i])))
    op = operator(
        "smelt_gradients::own", PrimFunc(forward.kernel("B")), gradient=PrimFunc(program.kernel("R"))
    )
    x = torch.randn(3, requires_grad=True)
    op(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [5, 5, 5]


def test_refused_gradients() -> None:
    window = Program(A=(6,))
    window.reduce("B", (4,), (3,), lambda i, k: ops.load("A", [i + k]))
    highest = Program(A=(6, 2))
    highest.reduce("B", (6,), (2,), lambda i, k: ops.load("A", [i, k]), "max")
    rounded = Program(A=(6,))
    rounded.compute("B", (6,), lambda i: ops.floor(ops.load("A", [i])))
    wrong = {
        "window": (window.kernel("B"), (torch.randn(6),), r"reads A\[i0 \+ r0\]"),
        "highest": (highest.kernel("B"), (torch.randn(6, 2),), "is a max over elements"),
        "rounded": (rounded.kernel("B"), (torch.randn(6),), "computes floor"),
        "both": (accumulating(), (torch.randn(6), torch.randn(6)), "it reads what it writes"),
    }
    for name, (kernel, args, why) in wrong.items():
        op = operator(f"smelt_gradients::{name}", PrimFunc(kernel))
        op(*args)
        with pytest.raises(smelt.SmeltError, match=f"(?s)SM1047: no gradient of .*{why}"):
            op(args[0].requires_grad_(), *args[1:]).sum().backward()
