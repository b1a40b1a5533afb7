"""Hand-written nests: reductions, masks, gathers, scatters, scratch, threads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from sympy import Expr
from torch.utils._sympy.functions import Max

from smelt.codegen.cpp import print_unit
from smelt.errors import SmeltError
from smelt.nest.ir import (
    Accumulate,
    Alloc,
    Argument,
    Block,
    Call,
    For,
    InArena,
    Kernel,
    Let,
    LoopKind,
    Masked,
    Param,
    Run,
    Stmt,
    Store,
    Update,
)
from smelt.symbolic import FloorDiv, Mod
from tests.codegen.isas import ISAS, compiled
from tests.codegen.support import SIZE, Library, block, number, param, single, var

F32, I64, BOOL = torch.float32, torch.int64, torch.bool
SERIAL, PARALLEL, VECTOR, UNROLL = LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.VECTOR, LoopKind.UNROLL
LANES = 8
H, J, K = var("i"), var("j"), var("k")


def load(name: str, buffer: str, *index: Expr, dtype: torch.dtype = F32) -> Let:
    return Let(name, dtype, "load", (buffer, tuple(index)))


def constant(name: str, value: float, dtype: torch.dtype = F32) -> Let:
    return Let(name, dtype, "constant", (value,))


def loop(i: Expr, end: int | Expr, *body: Stmt, kind: LoopKind = SERIAL, step: int = 1) -> For:
    return For(i, number(0), number(end) if isinstance(end, int) else end, block(*body), kind, step)


def kernel(name: str, params: list[Param], *body: Stmt) -> Kernel:
    used = any(SIZE in p.shape for p in params)
    return Kernel(name, tuple(params), (SIZE,) if used else (), Block(body))


KINDS = {
    "sum": F32,
    "prod": F32,
    "max": F32,
    "min": F32,
    "any": BOOL,
    "all": BOOL,
    "argmax": F32,
    "argmin": F32,
    "xor_sum": I64,
    "welford": F32,
    "online_softmax": F32,
}
OUTPUTS = {"welford": 3, "online_softmax": 2}


def reduction(kind: str, rows: str, lanes: int, *, columns: bool = False) -> Kernel:
    """Over the last dimension of (n, 37) (or, ``columns``, over the first of (37, n))."""
    dtype = KINDS[kind]
    out = I64 if kind.startswith("arg") else dtype
    count = OUTPUTS.get(kind, 1)
    shape = [37, SIZE] if columns else [SIZE, 37]
    params = [param("x", dtype, shape)] + [param(f"y{k}", out, [SIZE], written=True) for k in range(count)]
    inner = (J, H) if columns else (H, J)
    step = LANES if lanes > 1 else 1
    vector = VECTOR if lanes > 1 else SERIAL
    reduce_loop = loop(
        J,
        37,
        load("v", "x", *inner, dtype=dtype),
        Update("a", "v", J if kind.startswith("arg") else None),
        kind=SERIAL if columns else vector,
        step=1 if columns else step,
    )
    reads = [Let(f"r{k}", out, "read", ("a", k)) for k in range(count)]
    stores = [Store(f"y{k}", (H,), f"r{k}") for k in range(count)]
    outer = loop(
        H,
        SIZE,
        Accumulate("a", kind, dtype),
        reduce_loop,
        *reads,
        *stores,
        kind=vector if columns else SERIAL,
        step=step if columns else 1,
    )
    return kernel(f"{kind}_{rows}_{lanes}", params, outer)


def expected(kind: str, x: torch.Tensor) -> list[torch.Tensor]:
    if kind == "welford":
        mean = x.double().mean(1)
        return [mean, ((x.double() - mean[:, None]) ** 2).sum(1), torch.full_like(mean, x.shape[1])]
    if kind == "online_softmax":
        top = x.double().amax(1)
        return [top, (x.double() - top[:, None]).exp().sum(1)]
    if kind == "xor_sum":
        result = x[:, 0]
        for column in range(1, x.shape[1]):
            result = result ^ x[:, column]
        return [result]
    double = x.double() if x.dtype is F32 and kind in ("sum", "prod") else x
    functions = {"max": torch.amax, "min": torch.amin}
    return [functions.get(kind, getattr(torch, kind))(double, 1)]


@pytest.fixture(scope="module", params=ISAS)
def reductions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    runs = [
        single(reduction(kind, rows, lanes, columns=rows == "columns"), f"{kind}_{rows}_{lanes}")
        for kind in KINDS
        for rows in ("rows", "columns")
        for lanes in (1, LANES)
    ]
    return compiled(tmp_path_factory.mktemp("reductions"), runs, request.param)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("rows", ["rows", "columns"])
@pytest.mark.parametrize("lanes", [1, LANES])
def test_reduction(reductions: Library, kind: str, rows: str, lanes: int) -> None:
    torch.manual_seed(0)
    dtype = KINDS[kind]
    for count in (1, 7, 8, 19):
        x = torch.randn(count, 37) * 3
        x[0, 5] = x[0, 20] = x[0].max()  # two equal extremes: the first counts
        x[0, 9] = x[0, 33] = x[0].min()
        if dtype is BOOL:
            x = x > (3.0 if kind == "any" else -3.0) * torch.rand(count, 1) * 2
        elif dtype is I64:
            x = (x * 1000).long()
        elif kind == "prod":
            x = 1 + x / 10
        wanted = expected(kind, x)
        outs = [torch.empty(count, dtype=I64 if kind.startswith("arg") else dtype) for _ in wanted]
        given = x.t().contiguous() if rows == "columns" else x
        assert reductions(f"{kind}_{rows}_{lanes}", given, *outs, count) == 0
        for out, want in zip(outs, wanted):
            torch.testing.assert_close(out, want.to(out.dtype), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("lanes", [1, LANES])
def test_nan_and_infinity_in_reductions(reductions: Library, lanes: int) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.randn(6, 37)
    x[0, 20] = x[0, 30] = nan
    x[1, 3] = -inf
    x[2] = -inf
    x[3, 36] = inf
    x[4, 2], x[4, 30] = -inf, inf
    for kind in ("max", "min", "argmax", "argmin", "sum"):
        out = torch.empty(6, dtype=I64 if kind.startswith("arg") else F32)
        reductions(f"{kind}_rows_{lanes}", x, out, 6)
        torch.testing.assert_close(out, expected(kind, x)[0].to(out.dtype), equal_nan=True)
    top, total = torch.empty(6), torch.empty(6)
    reductions(f"online_softmax_rows_{lanes}", x, top, total, 6)
    softmax = (x - top[:, None]).exp() / total[:, None]
    torch.testing.assert_close(softmax, x.softmax(1), equal_nan=True)
    log_softmax = x - top[:, None] - total[:, None].log()
    torch.testing.assert_close(log_softmax, x.log_softmax(1), equal_nan=True)


@pytest.fixture(scope="module", params=ISAS)
def nests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    runs = [single(build(lanes), f"{name}_{lanes}") for name, build in NESTS.items() for lanes in (1, LANES)]
    return compiled(tmp_path_factory.mktemp("nests"), runs, request.param)


def kind_of(lanes: int) -> dict[str, object]:
    return {"kind": VECTOR if lanes > 1 else SERIAL, "step": lanes}


def padded(lanes: int) -> Kernel:
    """y[i] = x[i - 2] where 2 <= i < n + 2, else -1, over n + 5."""
    inside = [
        Let("p", I64, "index_expr", (H,)),
        constant("two", 2, I64),
        constant("size", 0, I64),
        Let("limit", I64, "index_expr", (SIZE + 2,)),
        Let("low", BOOL, "ge", ("p", "two")),
        Let("high", BOOL, "lt", ("p", "limit")),
        Let("inside", BOOL, "logical_and", ("low", "high")),
        Masked("v", F32, "inside", block(load("l", "x", H - 2)), "l", -1.0),
        Store("y", (H,), "v"),
    ]
    return kernel(
        f"padded_{lanes}",
        [param("x", F32, [SIZE]), param("y", F32, [SIZE + 5], written=True)],
        loop(H, SIZE + 5, *inside, **kind_of(lanes)),
    )


def row_mask(lanes: int) -> Kernel:
    """y[i, j] = x[i, j] + 1 where m[i] else 0: one mask for all lanes."""
    body = [
        load("m", "m", H, dtype=BOOL),
        Masked(
            "v",
            F32,
            "m",
            block(load("l", "x", H, J), constant("one", 1.0), Let("s", F32, "add", ("l", "one"))),
            "s",
            0.0,
        ),
        Store("y", (H, J), "v"),
    ]
    shape = [SIZE, 19]
    return kernel(
        f"row_mask_{lanes}",
        [param("m", BOOL, [SIZE]), param("x", F32, shape), param("y", F32, shape, written=True)],
        loop(H, SIZE, loop(J, 19, *body, **kind_of(lanes))),
    )


def embedding(lanes: int) -> Kernel:
    """y[i, j] = w[index[i], j], vectorised along j."""
    row = var("row")
    body = [
        load("n", "index", H, dtype=I64),
        Let("at", I64, "indirect_index", ("n", number(10), True, True), row),
        loop(J, 19, load("v", "w", row, J), Store("y", (H, J), "v"), **kind_of(lanes)),
    ]
    params = [
        param("index", I64, [SIZE]),
        param("w", F32, [10, 19]),
        param("y", F32, [SIZE, 19], written=True),
    ]
    return kernel(f"embedding_{lanes}", params, loop(H, SIZE, *body, kind=PARALLEL))


def take(lanes: int) -> Kernel:
    """y[i] = w[index[i]], vectorised along i: an index per lane."""
    at = var("at")
    body = [
        load("n", "index", H, dtype=I64),
        Let("p", I64, "indirect_index", ("n", number(10), True, True), at),
        load("v", "w", at),
        Store("y", (H,), "v"),
    ]
    params = [param("index", I64, [SIZE]), param("w", F32, [10]), param("y", F32, [SIZE], written=True)]
    return kernel(f"take_{lanes}", params, loop(H, SIZE, *body, **kind_of(lanes)))


def histogram(mode: str):
    def build(lanes: int) -> Kernel:
        at = var("at")
        body = [
            load("n", "index", H, dtype=I64),
            Let("p", I64, "indirect_index", ("n", number(10), True, True), at),
            load("v", "x", H),
            Store("y", (at,), "v", mode),
        ]
        params = [param("index", I64, [SIZE]), param("x", F32, [SIZE]), param("y", F32, [10], written=True)]
        return kernel(f"histogram_{mode}_{lanes}", params, loop(H, SIZE, *body, **kind_of(lanes)))

    return build


def transpose(lanes: int) -> Kernel:
    """y[j, i] = x[i, j]: strided loads."""
    body = [load("v", "x", J, H), Store("y", (H, J), "v")]
    params = [param("x", F32, [SIZE, 5]), param("y", F32, [5, SIZE], written=True)]
    return kernel(f"transpose_{lanes}", params, loop(H, 5, loop(J, SIZE, *body, **kind_of(lanes))))


def scatter_strided(lanes: int) -> Kernel:
    """y[i, j] = x[j, i] vectorised along the columns of x: strided stores of bool and float."""
    body = [
        load("v", "x", J, H),
        constant("zero", 0.0),
        Let("b", BOOL, "gt", ("v", "zero")),
        Store("y", (H, J), "v"),
        Store("b", (H, J), "b"),
    ]
    out = [param("y", F32, [SIZE, 5], written=True), param("b", BOOL, [SIZE, 5], written=True)]
    params = [param("x", F32, [5, SIZE]), *out]
    return kernel(f"scatter_strided_{lanes}", params, loop(J, 5, loop(H, SIZE, *body, **kind_of(lanes))))


def positions(lanes: int) -> Kernel:
    """Index values: linear, divided, and as floats."""
    body = [
        Let("a", I64, "index_expr", (3 * H + 1,)),
        Let("b", torch.int32, "index_expr", (FloorDiv(H, 5) * 10 + Mod(H, 5),)),
        Let("c", F32, "index_expr", (H,)),
        Store("a", (H,), "a"),
        Store("b", (H,), "b"),
        Store("c", (H,), "c"),
    ]
    params = [
        param("a", I64, [SIZE], written=True),
        param("b", torch.int32, [SIZE], written=True),
        param("c", F32, [SIZE], written=True),
    ]
    return kernel(f"positions_{lanes}", params, loop(H, SIZE, *body, **kind_of(lanes)))


def scratch(lanes: int) -> Kernel:
    """A row goes through scratch memory, backwards."""
    params = [param("x", F32, [SIZE, 21]), param("y", F32, [SIZE, 21], written=True)]
    body = [
        Alloc("t", F32, (number(21),)),
        loop(J, 21, load("v", "x", H, J), Store("t", (J,), "v"), **kind_of(lanes)),
        loop(K, 21, load("w", "t", 20 - K), Store("y", (H, K), "w"), **kind_of(lanes)),
    ]
    return kernel(f"scratch_{lanes}", params, loop(H, SIZE, *body, kind=PARALLEL))


def split_sum(lanes: int) -> Kernel:
    """Each of 4 chunks in its own thread, merged in order."""
    params = [param("x", F32, [4, SIZE]), param("m", F32, [3], written=True)]
    chunk = [
        Accumulate("part", "welford", F32),
        loop(J, SIZE, load("v", "x", H, J), Update("part", "v"), **kind_of(lanes)),
        Update("all", "part", merge=True),
    ]
    body = [Accumulate("all", "welford", F32), loop(H, 4, *chunk, kind=PARALLEL)]
    body += [Let(f"r{k}", F32, "read", ("all", k)) for k in range(3)]
    body += [Store("m", (number(k),), f"r{k}") for k in range(3)]
    return kernel(f"split_sum_{lanes}", params, *body)


def collapsed(lanes: int) -> Kernel:
    """Two parallel loops, an unrolled one and a vector loop."""
    params = [param("x", F32, [SIZE, 3, 2, 11]), param("y", F32, [SIZE, 3, 2, 11], written=True)]
    a, b = var("a"), var("b")
    body = [load("v", "x", a, b, H, J), Let("s", F32, "mul", ("v", "v")), Store("y", (a, b, H, J), "s")]
    inner = loop(H, 2, loop(J, 11, *body, **kind_of(lanes)), kind=UNROLL)
    return kernel(
        f"collapsed_{lanes}", params, loop(a, SIZE, loop(b, 3, inner, kind=PARALLEL), kind=PARALLEL)
    )


def collapsed_from_two(lanes: int) -> Kernel:
    """Three parallel loops as one, two of them from 2 on, by threes; what they leave out stays."""
    params = [param("x", F32, [SIZE, 2, 8, 11]), param("y", F32, [SIZE, 2, 8, 11], written=True)]
    a, b, c = var("a"), var("b"), var("c")
    body = [load("v", "x", a, b, c, J), Let("s", F32, "mul", ("v", "v")), Store("y", (a, b, c, J), "s")]
    inner = For(c, number(2), number(8), block(loop(J, 11, *body, **kind_of(lanes))), PARALLEL, 3)
    middle = loop(b, 2, inner, kind=PARALLEL)
    return kernel(f"collapsed_from_two_{lanes}", params, For(a, number(2), SIZE, block(middle), PARALLEL, 3))


QUOTIENT = FloorDiv(SIZE * SIZE, FloorDiv(SIZE, number(4)))


def collapsed_by_a_quotient(lanes: int) -> Kernel:
    """Two parallel loops, the inner one as long as a quotient by what is not a number."""
    params = [param("x", F32, [2, QUOTIENT, 11]), param("y", F32, [2, QUOTIENT, 11], written=True)]
    a, b = var("a"), var("b")
    body = [load("v", "x", a, b, J), Let("s", F32, "mul", ("v", "v")), Store("y", (a, b, J), "s")]
    inner = loop(b, QUOTIENT, loop(J, 11, *body, **kind_of(lanes)), kind=PARALLEL)
    return Kernel(
        f"collapsed_by_a_quotient_{lanes}", tuple(params), (SIZE,), block(loop(a, 2, inner, kind=PARALLEL))
    )


def bfloat(lanes: int) -> Kernel:
    low = torch.bfloat16
    params = [param("x", low, [SIZE]), param("w", torch.float16, [1]), param("y", low, [SIZE], written=True)]
    body = [
        load("x", "x", H, dtype=low),
        load("w", "w", number(0), dtype=torch.float16),
        Let("xf", F32, "to_dtype", ("x",)),
        Let("wf", F32, "to_dtype", ("w",)),
        Let("p", F32, "mul", ("xf", "wf")),
        Let("r", low, "to_dtype", ("p",)),
        Store("y", (H,), "r"),
    ]
    return kernel(f"bfloat_{lanes}", params, loop(H, SIZE, *body, **kind_of(lanes)))


NESTS = {
    "padded": padded,
    "row_mask": row_mask,
    "embedding": embedding,
    "take": take,
    "add": histogram("add"),
    "atomic_add": histogram("atomic_add"),
    "transpose": transpose,
    "scatter_strided": scatter_strided,
    "positions": positions,
    "scratch": scratch,
    "split_sum": split_sum,
    "collapsed": collapsed,
    "collapsed_from_two": collapsed_from_two,
    "collapsed_by_a_quotient": collapsed_by_a_quotient,
    "bfloat": bfloat,
}
both = pytest.mark.parametrize("lanes", [1, LANES])
SIZES = (1, 7, 8, 9, 16, 29)


@both
def test_masked_load_of_padding(nests: Library, lanes: int) -> None:
    for n in SIZES:
        x, y = torch.randn(n), torch.empty(n + 5)
        assert nests(f"padded_{lanes}", x, y, n) == 0
        assert torch.equal(y, torch.nn.functional.pad(x, (2, 3), value=-1.0))


@both
def test_mask_that_is_the_same_for_all_lanes(nests: Library, lanes: int) -> None:
    m, x, y = torch.tensor([True, False, True]), torch.randn(3, 19), torch.empty(3, 19)
    assert nests(f"row_mask_{lanes}", m, x, y, 3) == 0
    assert torch.equal(y, (x + 1) * m[:, None])


@both
def test_indirect_index(nests: Library, lanes: int) -> None:
    for n in SIZES:
        index, w = torch.randint(-10, 10, (n,)), torch.randn(10, 19)
        y = torch.empty(n, 19)
        assert nests(f"embedding_{lanes}", index, w, y, n) == 0
        assert torch.equal(y, w[index])
        z = torch.empty(n)
        assert nests(f"take_{lanes}", index, w[:, 0].contiguous(), z, n) == 0
        assert torch.equal(z, w[index, 0])


@both
@pytest.mark.parametrize("bad", [10, -11, 2**40])
def test_index_out_of_range_is_an_error(nests: Library, lanes: int, bad: int) -> None:
    index, w = torch.randint(0, 10, (29,)), torch.randn(10, 19)
    index[28] = bad
    for name, table, out in (
        ("embedding", w, torch.empty(29, 19)),
        ("take", w[:, 0].clone(), torch.empty(29)),
    ):
        failed = nests(f"{name}_{lanes}", index, table, out, 29)
        assert nests.unit.errors[f"{name}_{lanes}"][failed - 1] == (
            "IndexError",
            "index out of range in self",
        )
        assert nests(f"{name}_{lanes}", index, table, out, 28) == 0


@both
@pytest.mark.parametrize("mode", ["add", "atomic_add"])
def test_scatter_add_counts_duplicates(nests: Library, lanes: int, mode: str) -> None:
    index, x, y = torch.randint(0, 10, (61,)), torch.randn(61), torch.zeros(10)
    assert nests(f"{mode}_{lanes}", index, x, y, 61) == 0
    torch.testing.assert_close(y, torch.zeros(10).index_add(0, index, x))


@both
def test_strided_loads_and_stores(nests: Library, lanes: int) -> None:
    for n in SIZES:
        x, y = torch.randn(n, 5), torch.empty(5, n)
        nests(f"transpose_{lanes}", x, y, n)
        assert torch.equal(y, x.t())
        z, b = torch.empty(n, 5), torch.empty(n, 5, dtype=torch.bool)
        nests(f"scatter_strided_{lanes}", y, z, b, n)
        assert torch.equal(z, x)
        assert torch.equal(b, x > 0)


@both
def test_index_values(nests: Library, lanes: int) -> None:
    for n in SIZES:
        a, b, c = torch.empty(n, dtype=I64), torch.empty(n, dtype=torch.int32), torch.empty(n)
        nests(f"positions_{lanes}", a, b, c, n)
        i = torch.arange(n)
        assert torch.equal(a, 3 * i + 1)
        assert torch.equal(b, (i // 5 * 10 + i % 5).int())
        assert torch.equal(c, i.float())


@both
def test_scratch_memory(nests: Library, lanes: int) -> None:
    x, y = torch.randn(40, 21), torch.empty(40, 21)
    nests(f"scratch_{lanes}", x, y, 40)
    assert torch.equal(y, x.flip(1))


@both
def test_accumulators_of_threads_are_merged_in_order(nests: Library, lanes: int) -> None:
    x = torch.randn(4, 1001) + 3
    results = []
    for _ in range(5):
        m = torch.empty(3)
        nests(f"split_sum_{lanes}", x, m, 1001)
        results.append(m)
    assert all(torch.equal(m, results[0]) for m in results)
    wanted = torch.tensor([x.double().mean(), x.double().var(correction=0) * 4004, 4004]).float()
    torch.testing.assert_close(results[0], wanted, rtol=1e-5, atol=0)


@both
def test_parallel_loops_collapse(nests: Library, lanes: int) -> None:
    x, y = torch.randn(5, 3, 2, 11), torch.empty(5, 3, 2, 11)
    nests(f"collapsed_{lanes}", x, y, 5)
    assert torch.equal(y, x * x)


@both
@pytest.mark.parametrize("size", [2, 3, 9])
def test_parallel_loops_begin_anywhere_in_any_steps(nests: Library, lanes: int, size: int) -> None:
    x, y = torch.randn(size, 2, 8, 11), torch.full((size, 2, 8, 11), -1.0)
    nests(f"collapsed_from_two_{lanes}", x, y, size)
    wanted = torch.full_like(y, -1.0)
    wanted[2::3, :, 2::3] = x[2::3, :, 2::3] ** 2
    assert torch.equal(y, wanted)


@both
@pytest.mark.parametrize("size", [4, 9])
def test_parallel_loops_as_long_as_a_quotient(nests: Library, lanes: int, size: int) -> None:
    x = torch.randn(2, size * size // (size // 4), 11)
    y = torch.empty_like(x)
    nests(f"collapsed_by_a_quotient_{lanes}", x, y, size)
    assert torch.equal(y, x * x)


@both
def test_low_precision_rounds_once(nests: Library, lanes: int) -> None:
    x, w = torch.randn(29).bfloat16(), torch.tensor([0.7], dtype=torch.float16)
    y = torch.empty(29, dtype=torch.bfloat16)
    nests(f"bfloat_{lanes}", x, w, y, 29)
    assert torch.equal(y, (x.float() * w.float()).bfloat16())


def test_equal_kernels_are_printed_once(tmp_path: Path) -> None:
    def renamed(source: str, target: str, name: str) -> Kernel:
        body = loop(H, SIZE, load("v", source, H), Let("r", F32, "exp", ("v",)), Store(target, (H,), "r"))
        return kernel(name, [param(source, F32, [SIZE]), param(target, F32, [SIZE], written=True)], body)

    first, second = renamed("x", "y", "exp"), renamed("buf3", "buf4", "exp_1")
    calls = (
        Call(first, (Argument(0), InArena(number(64)))),
        Call(second, (InArena(number(64)), Argument(1))),
    )
    run = Run("twice", ("a", "b"), (SIZE,), calls)
    unit = print_unit([run])
    assert unit.text.count("static void kernel_") == 1
    assert unit.text.count("kernel_exp(") == 3
    assert unit.errors == {"twice": ()}


def test_places_in_the_arena_are_computed_once() -> None:
    """What is printed again and again takes compilers long, most of all where it is not optimized."""
    largest = Max(4 * SIZE, FloorDiv(SIZE + 3, number(8)) * 64)
    body = loop(H, SIZE, load("v", "x", H), Store("y", (H,), "v"))
    copy = kernel("copy", [param("x", F32, [SIZE]), param("y", F32, [SIZE], written=True)], body)
    places = [InArena(expr) for expr in (number(0), largest, 2 * largest, largest + 64)]
    calls = tuple(Call(copy, pair) for pair in pairwise(places))
    text = print_unit([Run("moved", (), (SIZE,), calls)]).text
    entry = text[text.index("i64 moved(") :]
    assert entry.count("max_of(") == entry.count("/8") == 1
    assert entry.count("kernel_copy(") == 3


def test_a_loop_of_one_turn_is_a_block() -> None:
    inner = loop(J, 1, load("v", "x", H + J), Store("y", (H + J,), "v"))
    copy = kernel("copy", [param("x", F32, [8]), param("y", F32, [8], written=True)], loop(H, 8, inner))
    text = print_unit([single(copy)]).text.split("static void kernel_copy", 1)[1]
    assert text.count("for (") == 1 and "const i64 d1 = 0;" in text


def test_what_places_in_the_arena_are_divided_by_is_declared(tmp_path: Path) -> None:
    """ConvNeXt with ``dynamic=True`` was refused by the compiler: nobody had declared its dividers."""
    rows = FloorDiv(SIZE, number(4))
    place = 64 * FloorDiv(rows * rows, FloorDiv(SIZE, number(2)) + 1) + 64 * FloorDiv(SIZE, rows)
    body = loop(H, SIZE, load("v", "x", H), Store("y", (H,), "v"))
    copy = kernel("copy", [param("x", F32, [SIZE]), param("y", F32, [SIZE], written=True)], body)
    calls = Call(copy, (Argument(0), InArena(place))), Call(copy, (InArena(place), Argument(1)))
    library = Library(tmp_path, [Run("moved", ("a", "b"), (SIZE,), calls)])
    arena = torch.empty(4096, dtype=torch.uint8)
    for size, at in ((1, 0), (9, 256), (40, 512)):  # where the size is 1, one of them is 0
        x, y = torch.randn(size), torch.empty(size)
        assert library("moved", x, y, size, arena=arena) == 0
        assert torch.equal(x, y)
        assert torch.equal(arena[at : at + 4 * size].view(torch.float32), x)


def test_unsafe_reduction_between_threads_is_refused() -> None:
    body = [
        Accumulate("a", "sum", F32),
        loop(H, SIZE, load("v", "x", H), Update("a", "v"), kind=PARALLEL),
        Let("r", F32, "read", ("a", 0)),
        Store("y", (number(0),), "r"),
    ]
    bad = kernel("bad", [param("x", F32, [SIZE]), param("y", F32, [1], written=True)], *body)
    with pytest.raises(SmeltError, match="SM0807"):
        print_unit([single(bad)])


def test_unknown_names_are_refused() -> None:
    out = param("y", F32, [SIZE], written=True)
    with pytest.raises(SmeltError, match="SM0805"):
        print_unit([single(kernel("bad", [out], loop(H, SIZE, Store("y", (H,), "nothing"))))])
    with pytest.raises(SmeltError, match="SM0801"):
        print_unit([single(kernel("bad", [out], loop(H, SIZE, constant("c", 1.0), Store("y", (J,), "c"))))])
    with pytest.raises(SmeltError, match="SM0806"):
        wrong = loop(H, SIZE, Let("c", F32, "nonsense", ()), Store("y", (H,), "c"))
        print_unit([single(kernel("bad", [out], wrong))])


@pytest.mark.parametrize(("size", "rest"), [(SIZE, True), (8 * SIZE, False), (8 * SIZE + 4, True)])
def test_a_loop_of_whole_vectors_has_no_rest(size: Expr, rest: bool) -> None:
    params = [param("x", F32, [size]), param("y", F32, [size], written=True)]
    body = loop(J, size, load("v", "x", J), Store("y", (J,), "v"), kind=VECTOR, step=8)
    text = print_unit([single(Kernel("copied", tuple(params), (SIZE,), block(body)))]).text
    assert ("first<8>(s0" in text) is rest
