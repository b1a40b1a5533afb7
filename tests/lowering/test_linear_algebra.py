"""Linear algebra of our own against float64: by the interpreter, compiled, with errors and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.torch_export import capture_export
from smelt.contract import export_decompositions
from smelt.errors import VerificationError
from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Extern
from smelt.lowering import lower
from smelt.lowering.linear.routines import REFERENCES
from smelt.nest.ir import Block, For, Kernel, Param, Routine
from smelt.nest.printer import print_kernel
from smelt.nest.verify import verify
from smelt.symbolic import as_expr, loop_var
from tests.lowering.harness import compare_run, flat, lowered

Function = Callable[..., Any]
READ = "aten._local_scalar_dense.default"
"""A check at run time reads a number; packages do that themselves."""


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def _positive(count: int, n: int) -> torch.Tensor:
    x = _numbers(count, n, n)
    return x @ x.mT / max(n, 1) + torch.eye(n, dtype=torch.float64)


def _from_eigenvectors(a: torch.Tensor, upper: bool = False) -> tuple[torch.Tensor, ...]:
    """Eigenvectors have no one sign: their products have."""
    values, vectors = torch.linalg.eigh(a, UPLO="U" if upper else "L")
    return values, (vectors * values.unsqueeze(-2)) @ vectors.mT, vectors.mT @ vectors


def _from_singular_vectors(a: torch.Tensor, full: bool = False) -> tuple[torch.Tensor, ...]:
    u, s, vh = torch.linalg.svd(a, full_matrices=full)
    count = s.shape[-1]
    return s, (u[..., :count] * s.unsqueeze(-2)) @ vh[..., :count, :], u.mT @ u, vh @ vh.mT


def _solved_twice(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    factors, pivots = torch.linalg.lu_factor(a)
    first = torch.linalg.lu_solve(factors, pivots, b)
    second = torch.linalg.lu_solve(factors, pivots, b.mT, left=False, adjoint=True)
    return factors, pivots, first, second, *torch.lu_unpack(factors, pivots)


def _cases(n: int, k: int) -> Iterator[tuple[Function, tuple[torch.Tensor, ...]]]:
    """Functions and operands, square ones of size ``n``."""
    eye = torch.eye(n, dtype=torch.float64)
    square, right = _numbers(3, n, n) / n**0.5 + 2 * eye, _numbers(3, n, k)
    factor = torch.linalg.cholesky(_positive(3, n))
    yield torch.linalg.cholesky_ex, (_positive(3, n),)
    yield partial(torch.linalg.cholesky, upper=True), (_positive(3, n),)
    yield torch.cholesky_solve, (right, factor)
    yield torch.cholesky_inverse, (factor[0],)
    yield torch.linalg.inv_ex, (square,)
    yield torch.linalg.solve, (square, right)
    yield torch.linalg.solve, (square.mT, right)
    yield torch.linalg.solve, (square[0], right[0, :, 0])
    yield torch.linalg.solve, (square[0], right)
    yield partial(torch.linalg.solve, left=False), (square, right.mT)
    yield torch.linalg.det, (square,)
    yield torch.linalg.slogdet, (square.mT,)
    yield _solved_twice, (square, right)
    yield partial(torch.linalg.solve_triangular, upper=False), (factor, right)
    yield partial(torch.linalg.solve_triangular, upper=True, left=False), (factor.mT[0], right.mT)
    yield partial(torch.triangular_solve, upper=False, transpose=True), (right, factor)
    yield _from_eigenvectors, (square + square.mT,)
    yield partial(_from_eigenvectors, upper=True), (square + square.mT,)
    yield torch.linalg.matrix_exp, (square,)


def _rectangles(m: int, n: int) -> Iterator[tuple[Function, tuple[torch.Tensor, ...]]]:
    x = _numbers(2, m, n)
    yield torch.linalg.lu, (x,)
    yield torch.linalg.qr, (x,)
    yield partial(torch.linalg.qr, mode="complete"), (x,)
    yield _from_singular_vectors, (x,)
    yield partial(_from_singular_vectors, full=True), (x,)
    yield torch.linalg.svdvals, (x,)
    yield torch.linalg.pinv, (x,)


def _all(sizes: list[int], rectangles: list[tuple[int, int]]) -> list[tuple[Function, Any]]:
    cases = [case for n in sizes for case in _cases(n, 3)]
    return cases + [case for shape in rectangles for case in _rectangles(*shape)]


@pytest.mark.parametrize("case", _all([5], [(5, 3), (3, 5)]))
def test_loop_graphs(case: tuple[Function, tuple[torch.Tensor, ...]]) -> None:
    """Rows and the interpreter's forms of routines; nothing is left to ATen."""
    function, operands = case

    def call(*given: torch.Tensor) -> Any:
        return function(*given)

    graph = lowered(call, *operands, own=True)
    assert {node.body.target for node in graph.nodes if isinstance(node.body, Extern)} <= {READ}
    compare_run(graph, call, operands, slack=64)


def _run_all(cases: list[Function], operands: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
    return [each for f, x in zip(cases, operands, strict=True) for each in flat(f(*x))]


@pytest.mark.parametrize(
    ("sizes", "rectangles", "dtype"),
    [([33], [(9, 4)], torch.float32), ([1, 7], [(4, 9)], torch.float64)],
)
def test_compiled(sizes: list[int], rectangles: list[tuple[int, int]], dtype: torch.dtype) -> None:
    """All functions in one program, against eager in float64, or against eager's own numbers there."""
    torch._dynamo.reset()
    functions, wide = zip(*_all(sizes, rectangles))
    operands = [tuple(x.to(dtype) for x in each) for each in wide]
    program = torch.compile(
        partial(_run_all, functions), backend="smelt", options={"own": True}, dynamic=False
    )
    got, eager = program(operands), _run_all(functions, operands)
    exact = _run_all(functions, [tuple(x.double() for x in each) for each in operands])
    report = smelt.reports()[-1]
    assert not report.fallbacks and set(report.externs) <= {READ}
    for place, (mine, theirs, truth) in enumerate(zip(got, eager, exact, strict=True)):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert 1 in mine.shape or mine.stride() == theirs.stride()
        if not mine.is_floating_point():
            assert torch.equal(mine, theirs)
            continue
        error, own = (torch.linalg.vector_norm(x.double() - truth).item() for x in (mine, theirs))
        least = 200 * torch.finfo(dtype).eps if dtype == torch.float64 else 2 * torch.finfo(dtype).eps
        assert error <= 4 * own + least * torch.linalg.vector_norm(truth).item(), place


@pytest.mark.parametrize(
    ("function", "operands", "message"),
    [
        (torch.linalg.cholesky, (-torch.eye(3),), "not positive-definite"),
        (torch.linalg.inv, (torch.zeros(2, 3, 3),), "singular"),
        (torch.linalg.solve, (torch.zeros(3, 3), torch.ones(3)), "singular"),
        (torch.linalg.eigvalsh, (torch.full((3, 3), torch.nan),), "failed to converge"),
        (torch.linalg.svdvals, (torch.full((3, 2), torch.nan),), "failed to converge"),
    ],
)
def test_eagers_errors(function: Function, operands: tuple[torch.Tensor, ...], message: str) -> None:
    torch._dynamo.reset()
    run = torch.compile(function, backend="smelt", options={"own": True}, dynamic=False)
    for call in (run, function):
        with pytest.raises(torch.linalg.LinAlgError, match=message):
            call(*operands)


def test_info_tells_where_a_factorization_ended() -> None:
    torch._dynamo.reset()
    a = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, 1.0, -1.0])), torch.eye(3)])
    run = torch.compile(
        lambda a: (torch.linalg.cholesky_ex(a).info, torch.linalg.lu_factor_ex(a * (a > 0)).info),
        backend="smelt",
        options={"own": True},
    )
    assert [x.tolist() for x in run(a)] == [[0, 3, 0], [0, 3, 0]]


def test_singular_matrices_have_orthonormal_vectors() -> None:
    """The vectors of singular values that are 0 are completed to a basis."""
    torch._dynamo.reset()
    run = torch.compile(_from_singular_vectors, backend="smelt", options={"own": True}, dynamic=False)
    low = _numbers(6, 2) @ _numbers(2, 5)
    for x in (low, torch.zeros(6, 5, dtype=torch.float64)):
        s, again, u, v = run(x)
        torch.testing.assert_close(again, x)
        torch.testing.assert_close(u, torch.eye(5, dtype=torch.float64))
        torch.testing.assert_close(v, torch.eye(5, dtype=torch.float64))
        torch.testing.assert_close(s, torch.linalg.svdvals(x))


def test_gradients() -> None:
    """Backward rows meet the factors that forward rows have saved."""
    torch._dynamo.reset()

    def total(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        spd = a @ a.mT + torch.eye(4, dtype=a.dtype)
        parts = torch.linalg.solve(a, b), torch.linalg.det(a), torch.linalg.slogdet(a)[1]
        parts = *parts, torch.linalg.cholesky(spd), torch.linalg.inv(a), torch.linalg.qr(a)[1]
        parts = *parts, torch.linalg.eigvalsh(spd), torch.linalg.svdvals(a)
        return sum((x.square().sum() for x in parts), torch.zeros((), dtype=a.dtype))

    run = torch.compile(total, backend="smelt", options={"own": True}, dynamic=False)
    for turned in (False, True):
        a, b = _numbers(2, 4, 4) + 3 * torch.eye(4, dtype=torch.float64), _numbers(2, 4, 2)
        given = [(a.mT if turned else a).requires_grad_(), b.requires_grad_()]
        mine, theirs = (torch.autograd.grad(f(*given), given) for f in (run, total))
        for x, y in zip(mine, theirs):
            torch.testing.assert_close(x, y)


def test_exported_programs_keep_their_checks() -> None:
    """Their graphs have no tokens, which order effects."""

    class Solved(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.linalg.solve(a, torch.linalg.cholesky(a)) @ b

    a, b = _positive(2, 4), _numbers(2, 4, 1)
    program = capture_export(torch.export.export(Solved(), (a, b)), export_decompositions())
    assert [each.role for each in program.inputs] == ["user", "user"]
    graph = lower(program.graph_module, own=True)
    torch.testing.assert_close(run_graph(graph, [a, b])[0], Solved()(a, b))
    with pytest.raises(torch.linalg.LinAlgError, match="positive-definite"):
        run_graph(graph, [-a, b])


def _kernel(inside: bool, written: bool) -> Kernel:
    n = as_expr(4)
    params = (
        Param("a", torch.float64, (n,), (as_expr(1),)),
        Param("b", torch.float64, (n,), (as_expr(1),), written),
    )
    called = Routine("linear_order", "linear", (n,), ("a",), ("b",), REFERENCES["order"])
    body = Block((called,))
    if inside:
        body = Block((For(loop_var("i"), as_expr(0), n, body),))
    return Kernel("k", params, (), body)


def test_routines_are_verified_and_printed() -> None:
    assert "b = linear_order(4, a)" in print_kernel(_kernel(False, True))
    verify(_kernel(False, True))
    for kernel, what in (
        (_kernel(True, True), "inside of a loop"),
        (_kernel(False, False), "whether b is written"),
    ):
        with pytest.raises(VerificationError, match=what):
            verify(kernel)
