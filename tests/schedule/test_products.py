"""Matrix products in kernels of our own: numbers, epilogues, odd and dynamic sizes, what stays ATen's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

import smelt
from smelt.codegen.cpp import print_unit
from smelt.config import Config
from smelt.loops.interpreter import run_graph
from smelt.nest.ir import Alloc, For, LoopKind, Prefetch, Run
from smelt.nest.printer import print_run
from smelt.nest.tree import stages, walk
from smelt.runtime import toolchain
from smelt.schedule import Target, schedule
from smelt.schedule.graph import contractions
from smelt.schedule.products import nests as products
from smelt.schedule.products import product_tiles
from smelt.schedule.products.nests import ProductBuilder
from tests.lowering.harness import lowered
from tests.schedule.simulate import simulate
from tests.schedule.test_schedule import check as simulated
from tests.support.agreement import assert_close, assert_gradients, compiled, draw

F = torch.nn.functional


def tiled(report: Any) -> list[str]:
    """The kernels that are products; what is packed before them depends on the machine's vectors."""
    return [name for name in report.kernels if name.endswith("_tiled")]


def kernels_of_avx512(function: Callable[..., Any], *inputs: torch.Tensor) -> int:
    """How many kernels there are with vectors of 64 bytes, packing included, whatever this machine has."""
    scheduled = schedule(lowered(function, *inputs), Config(), Target(64))
    return sum(len(run.calls) for run in scheduled.runs)


CASES: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]], int]] = {
    "product": (lambda x, y: x @ y, [(96, 64), (64, 80)], 1),
    "odd sizes": (lambda x, y: x @ y, [(67, 131), (131, 77)], 1),
    "weights": (lambda x, w, b: F.linear(x, w, b), [(70, 96), (65, 96), (65,)], 1),
    "activation": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [(70, 96), (64, 96), (64,)], 1),
    "residual": (lambda x, w, b, y: F.linear(x, w, b) + y, [(2, 40, 96), (64, 96), (64,), (2, 40, 64)], 1),
    "deep": (lambda x, y: x @ y, [(64, 1000), (1000, 64)], 1),
    "batch": (lambda x, y: x @ y, [(3, 64, 70), (3, 70, 65)], 1),
    "heads": (lambda q, k: q @ k.transpose(-1, -2) * 0.5, [(2, 3, 66, 64), (2, 3, 64, 64)], 1),
    "transposed": (lambda x, y: x.t() @ y, [(70, 64), (70, 65)], 1),
    "computed rows": (lambda x, y: x.exp() @ y, [(70, 64), (64, 65)], 2),
    "used twice": (lambda x, y: (x @ y).relu() + (x @ y).sum(0), [(64, 64), (64, 64)], 3),
    "windows on both sides": (lambda x: x.unfold(0, 64, 1) @ x.unfold(0, 64, 1).mT, [(140,)], 1),
    "then norm": (
        lambda x, w: F.layer_norm(x @ w, (64,)),
        [(70, 64), (64, 64)],
        2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_kernels(name: str) -> None:
    function, shapes, kernels = CASES[name]
    inputs = [draw(*shape, seed=k) for k, shape in enumerate(shapes)]
    _, report = compiled(function, *inputs)
    assert not report.externs
    assert tiled(report)
    assert kernels_of_avx512(function, *inputs) == kernels


def test_one_compile_for_all_sizes() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ w)

    smelt.reset()
    fast = torch.compile(function, backend="smelt", dynamic=True, fullgraph=True)
    for m, k, n in [(80, 70, 90), (64, 300, 64), (7, 5, 3), (2, 1000, 2), (129, 64, 17)]:
        x, w = draw(m, k), draw(k, n, seed=1)
        assert_close(fast(x, w), function(x, w), function(x.double(), w.double()))
    assert len(smelt.reports()) == 1
    assert not smelt.reports()[0].externs


@pytest.mark.parametrize(
    "function, shapes",
    [
        (lambda x, y: x @ y, [(8, 256), (256, 256)]),
        (lambda x, y: x.double() @ y.double(), [(64, 64), (64, 64)]),
        (lambda x, y: F.conv2d(x, y), [(1, 3, 8, 8), (2, 3, 3, 3)]),
    ],
)
def test_what_stays_atens(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    _, report = compiled(function, *(draw(*shape, seed=k) for k, shape in enumerate(shapes)))
    assert sum(report.externs.values()) == 1


@pytest.mark.parametrize(
    "shapes",
    [
        [(1, 16), (16, 16)],
        [(3, 1), (1, 5)],
        [(1, 128), (128, 128)],
        [(40, 512), (512, 10)],
        [(2000, 8), (8, 4)],
        [(6, 300), (300, 1)],
        [(20, 4, 5), (20, 5, 3)],
    ],
)
def test_small_and_narrow_products_are_ours(shapes: list[tuple[int, ...]]) -> None:
    """ATen's call would take longer than the product, or ATen is slow for such sizes."""
    x, w = (draw(*shape, seed=k) for k, shape in enumerate(shapes))
    _, report = compiled(lambda x, w: (x @ w).relu(), x, w)
    assert not report.externs


def test_an_epilogue_with_loops_of_its_own() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = (x @ w).unsqueeze(-1)
        return product * 2, product + y

    inputs = draw(70, 64), draw(64, 66, seed=1), draw(66, 9, seed=2)
    exact = function(*(each.double() for each in inputs))
    torch._dynamo.reset()
    got = torch.compile(function, backend="smelt", fullgraph=True)(*inputs)
    for results in zip(got, function(*inputs), exact, strict=True):
        assert_close(*results)
    assert tiled(smelt.reports()[-1]) == ["mm_tiled"]
    assert kernels_of_avx512(function, *inputs) == 1


def test_the_option_leaves_all_to_aten() -> None:
    smelt.reset()
    x = draw(64, 64)
    torch.compile(lambda x: x @ x, backend="smelt", options={"contractions": False})(x)
    assert sum(smelt.reports()[-1].externs.values()) == 1


def test_gradients() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(70, 96), torch.nn.GELU(), torch.nn.Linear(96, 64))
    assert_gradients(model, draw(65, 70))


def test_threads_change_nothing() -> None:
    x, w = draw(130, 300), draw(300, 200, seed=1)
    torch._dynamo.reset()
    fast = torch.compile(lambda x, w: (x @ w).tanh(), backend="smelt")
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(fast(x, w))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_the_nest_computes_it_too() -> None:
    """Run by the nest's interpreter, before and after the loop decisions."""
    graph = lowered(lambda x, y: (x @ y).relu(), draw(15, 34), draw(34, 40))
    simulated(graph, [draw(15, 34) / 8, draw(34, 40, seed=1) / 8], Config(parallel_grain=1))


@pytest.mark.parametrize("rows", [40, 43, 301])
def test_whole_tiles_and_the_rows_that_are_left(rows: int) -> None:
    inputs = [draw(rows, 64), draw(64, 70, seed=1), draw(70, seed=2), draw(rows, 70, seed=3)]
    _, report = compiled(lambda x, y, b, z: (x @ y + b).relu() * z, *inputs)
    assert not report.externs


@pytest.mark.parametrize(
    "shared, depth, sizes", [(True, 64, (300, 301, 304, 307, 2, 5)), (False, 65, (40, 43, 48, 3, 300))]
)
def test_one_compile_for_whole_tiles_and_rests(shared: bool, depth: int, sizes: tuple[int, ...]) -> None:
    """Panels that a kernel packs for all threads, and panels that each thread packs for itself."""

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (x @ w + b).relu() * 2

    w, b = draw(depth, 400, seed=1), draw(400, seed=2)
    smelt.reset()
    fast = torch.compile(function, backend="smelt", options={"verify": True})
    for rows in sizes:
        x = draw(rows, depth, seed=rows)
        torch._dynamo.mark_dynamic(x, 0)
        assert_close(fast(x, w, b), function(x, w, b), function(x.double(), w.double(), b.double()))
    (report,) = smelt.reports()
    assert not report.externs
    assert ("mm" in report.kernels) is shared


def tiles(run: Run) -> list[tuple[str | int, ...]]:
    """The forms of a run's register tiles: rows, columns, lanes of a vector, and what is done with sums."""
    made = [stage.text for call in run.calls for stage in stages(call.kernel.body)]
    return [text.form[1:5] for text in made if text is not None]


def test_the_last_tile_has_the_rows_that_are_left() -> None:
    """43 are eight times five and three; no place is clamped."""
    graph = lowered(lambda x, w: (x @ w.t()).relu(), draw(43, 64), draw(64, 64))
    (run,) = schedule(graph, Config(), Target(32)).runs
    assert tiles(run) == [(5, 16, 8, "store"), (3, 16, 8, "store")]
    assert "Min" not in print_run(run)


def test_the_nest_is_a_register_tile() -> None:
    graph = lowered(lambda x, w: x @ w.t(), draw(42, 64), draw(64, 64))
    (run,) = schedule(graph, Config(), Target(32)).runs
    assert tiles(run) == [(6, 16, 8, "store")]
    text = print_run(run)
    assert text.count("fma(") == 1 and text.count("stage tile") == 1
    assert "panel" in text and "tile" in text
    assert "store_transposed" in print_unit([run]).text


def scratch(run: Run) -> list[str]:
    """The scratch memory of a run's kernels, by name."""
    return [stmt.buffer for call in run.calls for stmt in walk(call.kernel.body) if isinstance(stmt, Alloc)]


@pytest.mark.parametrize(
    ("shape", "relu", "at_once"),
    [
        ((12, 64, 32), False, True),
        ((15, 64, 32), False, True),  # the last tile has three rows
        ((12, 260, 16), False, True),  # more terms than a register sums
        ((12, 64, 38), False, False),  # the last panel is not full
        ((12, 64, 32), True, False),
    ],
)
def test_what_nothing_follows_is_stored_at_once(
    shape: tuple[int, int, int], relu: bool, at_once: bool
) -> None:
    rows, depth, columns = shape
    graph = lowered(
        lambda x, w: (x @ w.t()).relu() if relu else x @ w.t(), draw(rows, depth), draw(columns, depth)
    )
    scheduled = schedule(graph, Config(), Target(32))
    (run,) = scheduled.runs
    assert ("tile" not in scratch(run)) is at_once
    given = [draw(rows, depth), draw(columns, depth, seed=1)]
    (got,) = simulate(graph, scheduled, given, plain=False)
    (want,) = run_graph(graph, given)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


def test_rows_that_lie_side_by_side_are_read_where_they_are() -> None:
    """As those of a gradient do in a weight's gradient; a large lhs is laid out anew."""

    def gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.t() @ y

    assert kernels_of_avx512(gradient, draw(128, 768), draw(128, 4096)) == 2  # one packs the other operand
    assert kernels_of_avx512(gradient, draw(128, 3072), draw(128, 4096)) == 3
    compiled(gradient, draw(70, 100), draw(70, 110))
    compiled(gradient, draw(700, 49), draw(700, 90))


def test_what_every_thread_reads_is_packed_before() -> None:
    """Many rows and few columns: the panels are a kernel's, and threads share the rows."""
    graph = lowered(lambda x, w: x @ w.t(), draw(300, 100), draw(70, 100))
    (run,) = schedule(graph, Config(), Target(32)).runs
    assert [call.kernel.name for call in run.calls] == ["mm", "mm_tiled"]
    for rows, columns, depth in ((300, 70, 100), (130, 400, 33), (257, 64, 40)):
        compiled(lambda x, w: (x @ w.t()).relu(), draw(rows, depth), draw(columns, depth, seed=1))


@pytest.mark.parametrize(("rows", "step"), [(128, 2), (250, 2), (8192, None)])
def test_the_next_panel_is_prefetched(rows: int, step: int | None) -> None:
    """A part with each tile, all of it in the end; not where there are very many."""
    inputs = draw(rows, 96), draw(64, 96, seed=1)
    (run,) = schedule(lowered(lambda x, w: x @ w.t(), *inputs), Config(), Target(64)).runs
    product = run.calls[-1].kernel
    found = [stmt.index[0] for stmt in walk(product.body) if isinstance(stmt, Prefetch)]
    assert len(found) == (step is not None)
    assert all(step in index.as_coefficients_dict().values() for index in found)


@pytest.mark.parametrize("depth", [96, 1000, 2100])
def test_what_the_next_panel_is_packed_from_is_prefetched(depth: int) -> None:
    """All of it, while tiles use the one before; not where a panel's columns lie side by side."""
    rows, columns, inputs = 96, 160, (draw(96, depth), draw(160, depth, seed=1))
    (run,) = schedule(lowered(lambda x, w: x @ w.t(), *inputs), Config(), Target(64)).runs
    product = run.calls[-1].kernel
    loops = {stmt.var: stmt for stmt in walk(product.body) if isinstance(stmt, For)}
    (fetched,) = {stmt.index[0] for stmt in walk(product.body) if isinstance(stmt, Prefetch)}
    panel = next(var for var, loop in loops.items() if loop.kind is LoopKind.PARALLEL)
    width = next(int(p.shape[-1]) for p in walk(product.body) if isinstance(p, Alloc) and p.buffer == "panel")
    lines = {int(place) // 16 for place in _values(fetched.subs(panel, 0), loops)}
    assert lines >= set(range(width * depth // 16, 2 * width * depth // 16))
    (run,) = schedule(
        lowered(lambda x, w: x @ w, draw(rows, depth), draw(depth, columns)), Config(), Target(64)
    ).runs
    assert not any(isinstance(stmt, Prefetch) for stmt in walk(run.calls[-1].kernel.body))


def _values(index: Any, loops: dict[Any, For]) -> list[int]:
    """An index in all iterations of the loops around it, which are given outermost first."""
    needed = set(index.free_symbols)
    for loop in reversed(loops.values()):
        if loop.var in needed:
            needed |= {*loop.begin.free_symbols, *loop.end.free_symbols}
    turns: list[dict[Any, int]] = [{}]
    for var, loop in loops.items():
        if var in needed:
            ends = [(int(loop.begin.subs(turn)), int(loop.end.subs(turn))) for turn in turns]
            turns = [{**turn, var: k} for turn, (begin, end) in zip(turns, ends) for k in range(begin, end)]
    at = sympy.lambdify(sorted(needed, key=str), index, modules=[{"Min": min}, "math"])
    return [int(at(*(turn[var] for var in sorted(needed, key=str)))) for turn in turns]


@pytest.mark.parametrize("depth", [1, 12])
def test_large_tiles(depth: int) -> None:
    """Three registers wide where two multiply-adds of 64 bytes begin in a cycle; the numbers are the same,
    packed here or ahead.
    """
    x, w = draw(33, depth), draw(depth, 96, seed=1)
    graph = lowered(lambda x, w: (x @ w).relu(), x, w)
    for at_once, shape in ((1, (7, 32)), (2, (7, 48))):
        scheduled = schedule(graph, Config(), Target(64, multiply_adds=at_once))
        inside = list(walk(scheduled.runs[0].calls[-1].kernel.body))
        tile = next(stmt for stmt in inside if isinstance(stmt, Alloc) and stmt.buffer == "tile")
        assert tuple(tile.shape) == shape
        (got,) = simulate(graph, scheduled, [x, w])
        torch.testing.assert_close(got, (x.double() @ w.double()).relu().float(), rtol=1e-5, atol=1e-5)


def test_a_product_of_a_product() -> None:
    """What the second one reads is in memory, however cheap it is to compute."""
    _, report = compiled(
        lambda x, y, z: (x @ y) @ z, draw(64, 70), draw(70, 80, seed=1), draw(80, 64, seed=2)
    )
    assert not report.externs
    _, report = compiled(lambda x, y: (x + 1) @ (y * 2), draw(64, 70), draw(70, 80, seed=1))
    assert not report.externs


def test_equal_products_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers: the first two are equal but for their buffers, the third has another epilogue."""
    built: list[str] = []
    real = ProductBuilder.build

    def counted(self: ProductBuilder) -> Any:
        built.append(self.source)
        return real(self)

    monkeypatch.setattr(ProductBuilder, "build", counted)

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        first, second, third, b, c, d = weights
        return F.linear(F.linear(F.linear(x, first, b).relu(), second, c).relu(), third, d).tanh()

    inputs = [
        draw(70, 64),
        *(draw(64, 64, seed=n) / 8 for n in range(3)),
        *(draw(64, seed=n) for n in range(3)),
    ]
    assert len(tiled(compiled(function, *inputs)[1])) == 3
    graph = lowered(function, *inputs)
    built.clear()
    schedule(graph, Config(), Target(32))
    assert len(built) == 2


@pytest.mark.parametrize("rows", [1, 2, 5, 31])
def test_few_rows_of_weights_that_are_packed_ahead(rows: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 77), torch.nn.GELU()).eval()
    exact = torch.nn.Sequential(torch.nn.Linear(300, 77), torch.nn.GELU()).double().eval()
    exact.load_state_dict(model.state_dict())
    x = draw(rows, 300)
    for freezing in (True, False):
        smelt.reset()
        fast = torch.compile(model, backend="smelt", options={"freezing": freezing, "verify": True})
        with torch.no_grad():
            assert_close(fast(x), model(x), exact(x.double()))
        assert bool(smelt.reports()[-1].externs) is (rows > 8 and not freezing)


def _frozen(model: torch.nn.Module, x: torch.Tensor, *others: torch.Tensor) -> None:
    """Compile with packed weights, in a new cache; compare with float64. ``others``: of other sizes."""
    exact = copy.deepcopy(model).double()
    smelt.reset()
    options = {"freezing": True, "verify": True}
    fast = torch.compile(model, backend="smelt", options=options, dynamic=bool(others))
    with torch.no_grad():
        for each in (x, *others):
            assert_close(fast(each), model(each), exact(each.double()))
    assert len(smelt.reports()) == 1


@pytest.mark.parametrize("rows", [9, 37, 150])
@pytest.mark.parametrize("terms", [512, 700, 1900])
def test_panels_too_long_for_the_cache_are_gone_through_in_parts(
    rows: int, terms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(products, "LONG_BYTES", 1 << 12)
    done = _calls(monkeypatch, "_by_parts")
    _frozen(torch.nn.Sequential(torch.nn.Linear(terms, 77), torch.nn.GELU()).eval(), draw(rows, terms))
    assert len(done) == 2  # full panels, and the last one


def test_parts_of_a_convolutions_taps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(products, "LONG_BYTES", 1 << 12)
    done = _calls(monkeypatch, "_by_parts")
    model = torch.nn.Sequential(torch.nn.Conv2d(192, 76, 3, 2, 1), torch.nn.ReLU()).eval()
    _frozen(model, draw(1, 192, 14, 14))
    assert len(done) == 2  # full panels, and the last one


def test_parts_for_rows_whose_number_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(products, "LONG_BYTES", 1 << 12)
    done = _calls(monkeypatch, "_by_parts")
    model = torch.nn.Sequential(torch.nn.Linear(1100, 77), torch.nn.GELU()).eval()
    _frozen(model, draw(40, 1100), *(draw(rows, 1100) for rows in (41, 3, 530, 300)))
    assert len(done) == 2  # full panels, and the last one


@pytest.mark.parametrize(
    ("model", "shape", "others"),
    [
        (torch.nn.Linear(64, 96), (1008, 64), []),
        (torch.nn.Linear(64, 96), (1008, 64), [(1009, 64), (950, 64), (3, 64), (2030, 64)]),
        (torch.nn.Conv2d(64, 96, 3, padding=1, stride=2), (1, 64, 48, 48), []),
        (
            torch.nn.Sequential(torch.nn.Conv2d(64, 96, 1), torch.nn.Conv2d(96, 64, 3, padding=1)),
            (1, 64, 48, 32),
            [(1, 64, 47, 31), (1, 64, 5, 70)],
        ),
    ],
)
def test_rows_in_blocks_around_packed_panels(
    model: torch.nn.Module,
    shape: tuple[int, ...],
    others: list[tuple[int, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With other sizes the last block has fewer rows; a line of an image may be what blocks are made of."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(products, "CACHED_BYTES", 1)
    monkeypatch.setattr(products, "ROWS_BYTES", 1 << 16)
    blocks = _calls(monkeypatch, "_rows_together")
    _frozen(model.eval(), draw(*shape), *(draw(*other) for other in others))
    assert any(blocks)


def _calls(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """What calls of a builder's method give from now on."""
    given: list[Any] = []
    method = getattr(ProductBuilder, name)

    def recorded(self: ProductBuilder, *args: Any) -> Any:
        given.append(method(self, *args))
        return given[-1]

    monkeypatch.setattr(ProductBuilder, name, recorded)
    return given


@pytest.mark.parametrize("terms", [24, 64, 600])
def test_tiles_of_few_terms_use_a_panel_together(
    terms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A panel of 600 terms has no room in the first cache."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    together = _calls(monkeypatch, "_tiles_together")
    _frozen(
        torch.nn.Sequential(torch.nn.Conv2d(terms, 88, 1), torch.nn.ReLU()).eval(), draw(1, terms, 15, 19)
    )
    assert len(together) == 1 and (together[0] > 1) is (terms < 600)


@pytest.mark.parametrize("freezing", [True, False])
@pytest.mark.parametrize(("registers", "more", "last"), [(3, 0, 3), (8, 0, 2), (6, 4, 1), (5, 1, 3)])
def test_the_last_panel_has_registers_for_its_columns_alone(
    registers: int,
    more: int,
    last: int,
    freezing: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of panels of three registers, with so many columns."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    lanes = toolchain.find().vector_bytes // 4
    for module in (product_tiles, contractions):
        monkeypatch.setattr(module, "panel_width", lambda *_, **__: 3 * lanes)
    summed = _calls(monkeypatch, "_summed")
    columns = registers * lanes + more
    x, w = draw(300, 70), draw(70, columns, seed=1)
    if freezing:
        _frozen(torch.nn.Linear(70, columns).eval(), x)
    else:
        torch._dynamo.reset()
        fast = smelt.compile(torch.mm, dynamic=False, verify=True)(x, w)
        assert_close(fast, x @ w, x.double() @ w.double())
    assert set(summed) == {3 * lanes, last * lanes}


def test_one_compile_for_few_rows_and_many() -> None:
    model = torch.nn.Linear(64, 80).eval()
    exact = torch.nn.Linear(64, 80).double().eval()
    exact.load_state_dict(model.state_dict())
    smelt.reset()
    fast = torch.compile(model, backend="smelt", options={"freezing": True})
    with torch.no_grad():
        for rows in (3, 50, 7, 1000):
            x = draw(rows, 64)
            torch._dynamo.mark_dynamic(x, 0)
            assert_close(fast(x), model(x), exact(x.double()))
    (report,) = smelt.reports()
    assert not report.externs


def test_a_column_whose_readers_need_its_whole_row() -> None:
    """The result has one column: loops over its rows are loops over its elements, and yet no epilogue."""

    def function(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        inner = a[:, 1:] - (x @ w) * a[0, 1:]
        return torch.slice_scatter(a, inner, 1, 1)

    compiled(function, draw(5, 4), draw(4, 1, seed=1), draw(5, 5, seed=2))


def test_products_of_nothing() -> None:
    for shapes in [((0, 8), (8, 8)), ((8, 0), (0, 8)), ((3, 0), (0, 0)), ((0, 40, 8), (0, 8, 8))]:
        x, w = (draw(*shape) for shape in shapes)
        torch._dynamo.reset()
        fast = torch.compile(lambda x, w: (x @ w) + 1, backend="smelt", fullgraph=True)
        assert torch.equal(fast(x, w), (x @ w) + 1)
