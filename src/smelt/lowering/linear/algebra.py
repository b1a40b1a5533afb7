"""Linear algebra in kernels of our own: factorizations are routines, the rest are loop functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy import Expr

from smelt.errors import Unsupported
from smelt.lowering.builder import Builder
from smelt.lowering.dims import broadcast_index, convert
from smelt.lowering.linear.routines import WIDE, computed, count_of, routine
from smelt.lowering.registry import lowers_own
from smelt.lowering.tensor import Complex, Index, Tensor
from smelt.ops import ops
from smelt.symbolic import numel

aten = torch.ops.aten
ONE = sympy.Integer(1)
INFO = torch.int32

# -- small things ------------------------------------------------------------------------------------------


def _real(*tensors: Tensor | Complex) -> None:
    for x in tensors:
        if x.dtype not in (torch.float32, WIDE):
            raise Unsupported(f"linear algebra of {x.dtype} in kernels of our own")


def _turned(x: Tensor) -> Tensor:
    """Transposed matrices."""
    shape = (*x.shape[:-2], x.shape[-1], x.shape[-2])
    return x.view(shape, lambda index: (*index[:-2], index[-1], index[-2]))


def _rounded(ctx: Builder, x: Tensor, dtype: torch.dtype, turned: bool = False) -> Tensor:
    """``x`` in the program's dtype; ``turned``: with the columns of its transposed matrices in memory."""
    found = computed(ctx, lambda index: convert(x.load(index), x.dtype, dtype), x.shape, dtype)
    return _turned(found) if turned else found


def _less(m: Expr, n: Expr) -> Expr:
    """The smaller of two sizes."""
    if m == n:
        return m
    if not (m.is_Integer and n.is_Integer):
        raise Unsupported("linear algebra of matrices of which it is not known whether they are tall or wide")
    return min(m, n)


def _at_least(a: Expr, b: Expr) -> Any:
    return ops.ge(ops.index_expr(a, torch.int64), ops.index_expr(b, torch.int64))


def _equal(a: Expr, b: Expr) -> Any:
    return ops.eq(ops.index_expr(a, torch.int64), ops.index_expr(b, torch.int64))


def _c(value: float, dtype: torch.dtype = WIDE) -> Any:
    return ops.constant(value, dtype)


def _triangle(x: Tensor, upper: bool, unit: bool = False) -> Callable[[Index], Any]:
    """The elements of a triangle, zeros in the other one; ``unit``: ones on the diagonal."""

    def value(index: Index) -> Any:
        i, j = index[-2:]
        inside = _at_least(j, i) if upper else _at_least(i, j)
        found = ops.where(inside, x.load(index), _c(0.0, x.dtype))
        return ops.where(_equal(i, j), _c(1.0, x.dtype), found) if unit else found

    return value


def _identity(ctx: Builder, batch: Sequence[Expr], n: Expr) -> Tensor:
    def value(index: Index) -> Any:
        return ops.where(_equal(index[-2], index[-1]), _c(1.0), _c(0.0))

    return computed(ctx, value, (*batch, n, n))


def _batched(x: Tensor, batch: Sequence[Expr]) -> Tensor:
    """``x`` with more matrices, the same again and again."""
    shape = (*batch, *x.shape[-2:])
    return x if shape == x.shape else x.view(shape, lambda index: broadcast_index(index, x.shape))


def _empty(ctx: Builder, dtype: torch.dtype) -> Tensor:
    """A result that was not asked for: without elements."""
    return computed(ctx, lambda index: _c(0.0, dtype), (sympy.Integer(0),), dtype)


def _fails_if(ctx: Builder, info: Tensor, message: str) -> None:
    """Raises LinAlgError at run time if a number of ``info`` is not 0."""

    def wide(index: Index) -> Any:
        return convert(info.load(index), info.dtype, torch.int64)

    if info.shape:
        inner = lambda index, at: wide(at)  # noqa: E731
        options: dict[str, Any] = {"shape": (), "reduce_shape": info.shape, "dtype": torch.int64}
        (total,) = ctx.reduction("sum", inner, **options)
    else:
        total = computed(ctx, wide, (), torch.int64)
    ctx.check(sympy.Eq(ctx.item(total), 0), message, "LinAlgError")


_NOT_POSITIVE = "The factorization could not be completed because the input is not positive-definite."
_SINGULAR = {
    "linalg.inv": "The diagonal element is zero, the inversion could not be completed because the input "
    "matrix is singular.",
    "torch.linalg.lu_factor": "U is zero on its diagonal: using it to solve a system would divide by zero.",
}
_NOT_SOLVED = "The solver failed because the input matrix is singular."
_NOT_FINITE = "The algorithm failed to converge because the input matrix contained non-finite values."


@lowers_own(aten._linalg_check_errors.default)
def check_errors(ctx: Builder, info: Tensor, api: str, *, is_matrix: bool) -> None:
    """Eager's exception, without the number of the matrix and of the row."""
    why = _NOT_POSITIVE if "cholesky" in api else _SINGULAR.get(api, _NOT_SOLVED)
    _fails_if(ctx, info, f"{api}: {why}")


# -- Cholesky ----------------------------------------------------------------------------------------------


@lowers_own(aten.linalg_cholesky_ex.default)
def cholesky_ex(
    ctx: Builder, x: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    _real(x)
    numbers = (count_of(x), x.shape[-1])
    results = [(WIDE, x.shape), (INFO, x.shape[:-2])]
    factor, info = routine(ctx, "cholesky", numbers, [x if upper else _turned(x)], results)
    if check_errors:
        _fails_if(ctx, info, f"linalg.cholesky_ex: {_NOT_POSITIVE}")
    return _rounded(ctx, factor, x.dtype, turned=not upper), info


@lowers_own(aten.cholesky.default)
def cholesky(ctx: Builder, x: Tensor, upper: bool = False) -> Tensor:
    factor, info = cholesky_ex(ctx, x, upper=upper)
    _fails_if(ctx, info, f"cholesky: {_NOT_POSITIVE}")
    return factor


@lowers_own(aten.cholesky_solve.default, aten._cholesky_solve_helper.default)
def cholesky_solve(ctx: Builder, b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    _real(b, factor)
    batch = ctx.shape[:-2]
    lower = _batched(_turned(factor) if upper else factor, batch)
    found = _substituted(ctx, lower, _batched(b, batch), upper=False)
    return _rounded(ctx, _substituted(ctx, _turned(lower), found, upper=True), b.dtype)


@lowers_own(aten.cholesky_inverse.default)
def cholesky_inverse(ctx: Builder, factor: Tensor, upper: bool = False) -> Tensor:
    _real(factor)
    lower = _turned(factor) if upper else factor
    ones = _identity(ctx, factor.shape[:-2], factor.shape[-1])
    found = _substituted(ctx, lower, ones, upper=False)
    return _rounded(ctx, _substituted(ctx, _turned(lower), found, upper=True), factor.dtype)


# -- triangular matrices -----------------------------------------------------------------------------------


def _substituted(ctx: Builder, a: Tensor, b: Tensor, upper: bool, unit: bool = False) -> Tensor:
    numbers = (count_of(b), *b.shape[-2:], int(upper), int(unit))
    return routine(ctx, "triangular", numbers, [a, b], [(WIDE, b.shape)])[0]


@lowers_own(aten.linalg_solve_triangular.default)
def solve_triangular(
    ctx: Builder, a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    _real(a, b)
    a, b = (_batched(x, ctx.shape[:-2]) for x in (a, b))
    if left:
        return _rounded(ctx, _substituted(ctx, a, b, upper, unitriangular), b.dtype)
    found = _substituted(ctx, _turned(a), _turned(b), not upper, unitriangular)
    return _rounded(ctx, found, b.dtype, turned=True)


@lowers_own(aten.triangular_solve.default)
def triangular_solve(
    ctx: Builder,
    b: Tensor,
    a: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Tensor, Tensor]:
    _real(a, b)
    a, b = (_batched(x, ctx.shape[:-2]) for x in (a, b))
    used = _turned(a) if transpose else a
    found = _substituted(ctx, used, b, upper != transpose, unitriangular)
    return _rounded(ctx, found, b.dtype), _rounded(ctx, a, a.dtype)


# -- elimination -------------------------------------------------------------------------------------------


def _eliminated(ctx: Builder, x: Tensor) -> tuple[Tensor, ...]:
    """The factors in float64, the pivots, the order of rows, and the first pivot that is 0."""
    _real(x)
    *batch, m, n = x.shape
    results = [
        (WIDE, x.shape),
        (INFO, (*batch, _less(m, n))),
        (torch.int64, (*batch, m)),
        (INFO, tuple(batch)),
    ]
    return routine(ctx, "lu", (count_of(x), m, n), [x], results)


def _is_row_major(ctx: Builder) -> bool:
    """Whether the operand is: then ATen's determinants have factors of the transposed matrices."""
    return bool(ctx.operand.is_contiguous())


def _order_of(ctx: Builder, pivots: Tensor, m: Expr) -> Tensor:
    few = pivots.shape[-1]
    shape = (*pivots.shape[:-1], m)
    return routine(ctx, "order", (numel(pivots.shape[:-1]), m, few), [pivots], [(torch.int64, shape)])[0]


def _solved(ctx: Builder, factors: Tensor, order: Tensor, b: Tensor, turned: bool) -> Tensor:
    """The solution for factors of a matrix, or, ``turned``, of its transposed one."""
    batch = b.shape[:-2]
    factors = _batched(factors, batch)
    if order.shape[:-1] != batch:
        rows = order
        shape = (*batch, rows.shape[-1])
        order = rows.view(shape, lambda index: broadcast_index(index, rows.shape))
    numbers = (count_of(b), *b.shape[-2:], int(turned))
    return routine(ctx, "lu_solve", numbers, [factors, order, b], [(WIDE, b.shape), (WIDE, b.shape)])[0]


@lowers_own(aten._linalg_solve_ex.default)
def solve_ex(
    ctx: Builder, a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, ...]:
    _real(a, b)
    factors, pivots, order, info = _eliminated(ctx, a)
    if check_errors:
        _fails_if(ctx, info, f"torch.linalg.solve_ex: {_NOT_SOLVED}")
    is_vector = len(b.shape) == 1 or (len(b.shape) == len(a.shape) - 1 and b.shape == a.shape[:-1])
    shape = (*ctx.shape, ONE) if is_vector else ctx.shape
    given = b.view((*b.shape, ONE), lambda index: index[:-1]) if is_vector else b
    given = _batched(given, shape[:-2])
    found = _solved(ctx, factors, order, given if left else _turned(given), not left)
    result = _rounded(ctx, found, b.dtype, turned=not left)
    if is_vector:
        solved = result
        result = solved.view(ctx.shape, lambda index: (*index, sympy.Integer(0)))
    return result, _rounded(ctx, factors, a.dtype), pivots, info


@lowers_own(aten.linalg_inv_ex.default)
def inv_ex(ctx: Builder, a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    factors, _, order, info = _eliminated(ctx, a)
    if check_errors:
        _fails_if(ctx, info, f"linalg.inv_ex: {_SINGULAR['linalg.inv']}")
    found = _solved(ctx, factors, order, _identity(ctx, a.shape[:-2], a.shape[-1]), False)
    return _rounded(ctx, found, a.dtype), info


@lowers_own(aten.linalg_lu_factor_ex.default)
def lu_factor_ex(
    ctx: Builder, a: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    if not pivot:
        raise Unsupported("elimination without pivoting")
    factors, pivots, _, info = _eliminated(ctx, a)
    if check_errors:
        _fails_if(ctx, info, f"linalg.lu_factor_ex: {_SINGULAR['torch.linalg.lu_factor']}")
    return _rounded(ctx, factors, a.dtype), pivots, info


def _unpacked(ctx: Builder, factors: Tensor, order: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The permutation, the lower and the upper triangle."""
    *batch, m, n = factors.shape
    few = _less(m, n)

    def permutation(index: Index) -> Any:
        row = ops.index_expr(index[-2], torch.int64)
        return ops.where(ops.eq(order.load((*index[:-2], index[-1])), row), _c(1.0, dtype), _c(0.0, dtype))

    def triangle(shape: Sequence[Expr], upper: bool) -> Tensor:
        value = _triangle(factors, upper, unit=not upper)
        return computed(ctx, lambda index: convert(value(index), factors.dtype, dtype), shape, dtype)

    lower, upper = triangle((*batch, m, few), False), triangle((*batch, few, n), True)
    return computed(ctx, permutation, (*batch, m, m), dtype), lower, upper


@lowers_own(aten.linalg_lu.default)
def lu(ctx: Builder, a: Tensor, *, pivot: bool = True) -> tuple[Tensor, ...]:
    if not pivot:
        raise Unsupported("elimination without pivoting")
    factors, _, order, _ = _eliminated(ctx, a)
    return _unpacked(ctx, factors, order, a.dtype)


@lowers_own(aten.lu_unpack.default)
def lu_unpack(
    ctx: Builder, factors: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, ...]:
    _real(factors)
    found = _unpacked(ctx, factors, _order_of(ctx, pivots, factors.shape[-2]), factors.dtype)
    wanted = (unpack_pivots, unpack_data, unpack_data)
    return tuple(each if is_there else _empty(ctx, each.dtype) for each, is_there in zip(found, wanted))


@lowers_own(aten.linalg_lu_solve.default)
def lu_solve(
    ctx: Builder, factors: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    _real(factors, b)
    order = _order_of(ctx, pivots, factors.shape[-1])
    given = _batched(b, ctx.shape[:-2])
    found = _solved(ctx, factors, order, given if left else _turned(given), adjoint == left)
    return _rounded(ctx, found, b.dtype, turned=not left)


def _diagonal(ctx: Builder, kind: str, x: Tensor, value: Callable[[Index, Any], Any]) -> Tensor:
    """A reduction of ``value(index, element)`` over the diagonal of each matrix."""

    def inner(index: Index, at: Index) -> Any:
        return value((*index, *at), x.load((*index, at[0], at[0])))

    return ctx.reduction(kind, inner, shape=x.shape[:-2], reduce_shape=x.shape[-1:], dtype=WIDE)[0]


def _exchanged(pivots: Tensor, index: Index) -> Any:
    """-1 where a row is exchanged with another one, 1 where it stays."""
    own = ops.index_expr(index[-1] + 1, torch.int64)
    stays = ops.eq(convert(pivots.load(index), INFO, torch.int64), own)
    return ops.where(stays, _c(1.0), _c(-1.0))


@lowers_own(aten._linalg_det.default)
def det(ctx: Builder, a: Tensor) -> tuple[Tensor, ...]:
    factors, pivots, *_ = _eliminated(ctx, _turned(a) if _is_row_major(ctx) else a)
    found = _diagonal(ctx, "prod", factors, lambda index, x: ops.mul(x, _exchanged(pivots, index)))
    return _rounded(ctx, found, a.dtype), _rounded(ctx, factors, a.dtype), pivots


@lowers_own(aten._linalg_slogdet.default)
def slogdet(ctx: Builder, a: Tensor) -> tuple[Tensor, ...]:
    factors, pivots, *_ = _eliminated(ctx, _turned(a) if _is_row_major(ctx) else a)

    def sign(index: Index, x: Any) -> Any:
        return ops.mul(ops.sign(x), _exchanged(pivots, index))

    signs = _diagonal(ctx, "prod", factors, sign)
    logarithm = _diagonal(ctx, "sum", factors, lambda index, x: ops.log(ops.abs(x)))
    found = [_rounded(ctx, each, a.dtype) for each in (signs, logarithm, factors)]
    return *found, pivots


# -- orthogonal matrices -----------------------------------------------------------------------------------


def _reflected(ctx: Builder, a: Tensor) -> tuple[Tensor, Tensor]:
    """Reflectors below the triangle that they make of ``a``, and their factors."""
    _real(a)
    *batch, m, n = a.shape
    results = [(WIDE, a.shape), (WIDE, (*batch, _less(m, n))), (WIDE, (*batch, n))]
    packed, factors, _ = routine(ctx, "householder", (count_of(a), m, n), [a], results)
    return packed, factors


def _orthogonal(ctx: Builder, packed: Tensor, factors: Tensor, columns: Expr) -> Tensor:
    *batch, m, n = packed.shape
    numbers = (count_of(packed), m, n, factors.shape[-1], columns)
    results = [(WIDE, (*batch, m, columns)), (WIDE, (*batch, columns))]
    return routine(ctx, "orthogonal", numbers, [packed, factors], results)[0]


@lowers_own(aten.linalg_qr.default)
def qr(ctx: Builder, a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    packed, factors = _reflected(ctx, a)
    *batch, m, n = a.shape
    size = m if mode == "complete" else _less(m, n)
    value = _triangle(packed, True)
    upper = computed(ctx, lambda i: convert(value(i), WIDE, a.dtype), (*batch, size, n), a.dtype)
    if mode == "r":
        return _empty(ctx, a.dtype), upper
    return _rounded(ctx, _orthogonal(ctx, packed, factors, size), a.dtype), upper


@lowers_own(aten.geqrf.default)
def geqrf(ctx: Builder, a: Tensor) -> tuple[Tensor, ...]:
    return tuple(_rounded(ctx, each, a.dtype) for each in _reflected(ctx, a))


@lowers_own(aten.linalg_householder_product.default)
def householder_product(ctx: Builder, packed: Tensor, factors: Tensor) -> Tensor:
    _real(packed)
    return _rounded(ctx, _orthogonal(ctx, packed, factors, packed.shape[-1]), packed.dtype)


# -- eigenvalues and singular values -----------------------------------------------------------------------


@lowers_own(aten._linalg_eigh.default)
def eigh(ctx: Builder, a: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:  # noqa: N803
    _real(a)
    *batch, n, _ = a.shape
    symmetric = _symmetric(ctx, a, UPLO.upper() == "U")
    results = [(WIDE, (*batch, n)), (WIDE, a.shape), (INFO, tuple(batch)), (WIDE, (*batch, n + 2, n))]
    values, vectors, info, _ = routine(ctx, "eigh", (count_of(a), n), [symmetric], results)
    _fails_if(ctx, info, f"linalg.eigh: {_NOT_FINITE}")
    found = _rounded(ctx, values, a.dtype)
    return found, _rounded(ctx, vectors, a.dtype, turned=True) if compute_v else _empty(ctx, a.dtype)


def _symmetric(ctx: Builder, a: Tensor, upper: bool) -> Tensor:
    """The symmetric matrices of which ``a`` has one triangle."""

    def value(index: Index) -> Any:
        *outer, i, j = index
        near, far = a.load(index), a.load((*outer, j, i))
        return convert(ops.where(_at_least(j, i) if upper else _at_least(i, j), near, far), a.dtype, WIDE)

    return computed(ctx, value, a.shape)


def _singular(ctx: Builder, a: Tensor, full: bool) -> tuple[Tensor, Tensor, Tensor]:
    """``U`` transposed or ``V`` transposed in float64 as they are, rows of singular vectors; ``S``."""
    _real(a)
    *batch, m, n = a.shape
    few = _less(m, n)
    wide = few != n
    length = n if wide else m
    rows = length if full else few
    results = [(WIDE, (*batch, rows, length)), (WIDE, (*batch, few)), (WIDE, (*batch, few, few))]
    numbers = (count_of(a), length, few, rows)
    given = [a if wide else _turned(a)]
    left, values, right, info = routine(ctx, "svd", numbers, given, [*results, (INFO, tuple(batch))])
    _fails_if(ctx, info, f"linalg.svd: {_NOT_FINITE}")
    return (right, values, left) if wide else (left, values, right)


@lowers_own(aten._linalg_svd.default)
def svd(
    ctx: Builder,
    a: Tensor,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    u, s, v = _singular(ctx, a, full_matrices and compute_uv)
    values = _rounded(ctx, s, a.dtype)
    if not compute_uv:
        return _empty(ctx, a.dtype), values, _empty(ctx, a.dtype)
    # the first of both has been made from the columns of the tall one of `a` and its transposed matrices
    return _rounded(ctx, u, a.dtype, turned=True), values, _rounded(ctx, v, a.dtype)


@lowers_own(aten.linalg_pinv.atol_rtol_tensor)
def pinv(
    ctx: Builder,
    a: Tensor,
    *,
    atol: Tensor | None = None,
    rtol: Tensor | None = None,
    hermitian: bool = False,
) -> Tensor:
    """Singular values that are at most ``max(atol, rtol * the largest)`` count as 0."""
    _real(a)
    u, s, v = _singular(ctx, _symmetric(ctx, a, False) if hermitian else a, False)
    *batch, m, n = a.shape
    default = 0.0 if atol is not None else torch.finfo(a.dtype).eps * float(max(m, n))

    def bound(x: Tensor | None, index: Index, default: float) -> Any:
        if x is None:
            return _c(default)
        return convert(x.load(broadcast_index(index, x.shape)), x.dtype, WIDE)

    def term(index: Index, at: Index) -> Any:
        *outer, i, j = index
        value = s.load((*outer, *at))
        largest = s.load((*outer, sympy.Integer(0)))
        least = ops.maximum(bound(atol, outer, 0.0), ops.mul(bound(rtol, outer, default), largest))
        inverse = ops.where(ops.gt(value, least), ops.truediv(_c(1.0), value), _c(0.0))
        return ops.mul(ops.mul(v.load((*outer, *at, i)), inverse), u.load((*outer, *at, j)))

    shape = (*batch, n, m)
    (found,) = ctx.reduction("sum", term, shape=shape, reduce_shape=s.shape[-1:], dtype=WIDE)
    return _rounded(ctx, found, a.dtype)


@lowers_own(aten.linalg_matrix_exp.default)
def matrix_exp(ctx: Builder, a: Tensor) -> Tensor:
    _real(a)
    *batch, n, _ = a.shape
    work = [(WIDE, (*batch, 6 * n, n)), (torch.int64, (*batch, n)), (INFO, (*batch, n))]
    found = routine(ctx, "exponential", (count_of(a), n), [a], [(WIDE, a.shape), *work])[0]
    return _rounded(ctx, found, a.dtype)
