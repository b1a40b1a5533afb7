"""Carries in C++: a scan in one lane, in several lanes side by side, and in what is left over of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from smelt.codegen.cpp import print_unit
from smelt.errors import SmeltError
from smelt.nest.ir import Advance, Carry, For, Kernel, Let, LoopKind, Stmt, Store
from tests.codegen.isas import ISAS, compiled
from tests.codegen.support import SIZE, Library, block, number, param, single, var

F32, F64, I64, BOOL, BF16 = torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16
ROWS = 11
ROW, COLUMN = var("i"), var("j")


def column_scan(name: str, lanes: int, carries: list[Carry], dtype: torch.dtype, *turn: Stmt) -> Kernel:
    """Down the columns of x[ROWS, SIZE], ``lanes`` at once; every carry's new value ``n<k>`` is kept."""
    reads = [Let(f"s{k}", carry.dtype, "read", (carry.name, 0)) for k, carry in enumerate(carries)]
    load = Let("x0", dtype, "load", ("x", (ROW, COLUMN)))
    hands = [Advance(carry.name, f"n{k}") for k, carry in enumerate(carries)]
    keeps = [Store(f"y{k}", (ROW, COLUMN), f"n{k}") for k in range(len(carries))]
    scan = For(ROW, number(0), number(ROWS), block(*reads, load, *turn, *hands, *keeps))
    kind = LoopKind.SERIAL if lanes == 1 else LoopKind.VECTOR
    outer = For(COLUMN, number(0), SIZE, block(*carries, scan), kind, lanes)
    outs = [param(f"y{k}", carry.dtype, [ROWS, SIZE], written=True) for k, carry in enumerate(carries)]
    return Kernel(f"{name}_{lanes}", (param("x", dtype, [ROWS, SIZE]), *outs), (SIZE,), block(outer))


def total(lanes: int) -> Kernel:
    turn = (Let("w", F64, "to_dtype", ("x0",)), Let("n0", F64, "add", ("s0", "w")))
    return column_scan("total", lanes, [Carry("c", F64, 0.0)], F32, *turn)


def best(lanes: int) -> Kernel:
    """The largest so far, and the row where it stands."""
    turn = (
        Let("t", BOOL, "ge", ("x0", "s0")),
        Let("r", I64, "index_expr", (ROW,)),
        Let("n0", F32, "where", ("t", "x0", "s0")),
        Let("n1", I64, "where", ("t", "r", "s1")),
    )
    return column_scan("best", lanes, [Carry("c", F32, float("-inf")), Carry("p", I64, 0)], F32, *turn)


def seen(lanes: int) -> Kernel:
    """Whether a number above one has come by, and whether that is so of an odd number of them."""
    turn = (
        Let("one", F32, "constant", (1.0,)),
        Let("t", BOOL, "gt", ("x0", "one")),
        Let("n0", BOOL, "logical_or", ("s0", "t")),
        Let("n1", BOOL, "logical_xor", ("s1", "t")),
    )
    return column_scan("seen", lanes, [Carry("c", BOOL, False), Carry("p", BOOL, True)], F32, *turn)


def held(lanes: int) -> Kernel:
    """A carry that all lanes share the new value of, and a bfloat16 one that keeps its first value."""
    turn = (Let("n0", I64, "index_expr", (ROW,)), Let("n1", BF16, "where", ("t", "s1", "s1")))
    t = Let("t", BOOL, "ge", ("s0", "s0"))
    return column_scan("held", lanes, [Carry("c", I64, 7), Carry("p", BF16, 0.5)], F32, t, *turn)


def products(lanes: int) -> Kernel:
    """Two sums of products that have a factor in common, as the operands of a register tile have."""
    turn = (
        Let("three", F32, "constant", (3.0,)),
        Let("n0", F32, "fma", ("x0", "three", "s0")),
        Let("n1", F32, "fma", ("x0", "x0", "s1")),
    )
    return column_scan("products", lanes, [Carry("c", F32, 0.0), Carry("p", F32, 0.0)], F32, *turn)


@pytest.fixture(scope="module", params=ISAS)
def scans(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    kernels = [make(lanes) for make in (total, best, seen, held, products) for lanes in (1, 4, 8)]
    runs = [single(kernel, kernel.name) for kernel in kernels]
    return compiled(tmp_path_factory.mktemp("carry"), runs, request.param)


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_scans_down_columns(scans: Library, lanes: int) -> None:
    torch.manual_seed(0)
    for n in (1, 3, 8, 13, 16, 29):
        x = torch.randn(ROWS, n)
        y = torch.empty(ROWS, n, dtype=F64)
        scans(f"total_{lanes}", x, y, n)
        assert torch.equal(y, x.double().cumsum(0))
        value, position = torch.empty(ROWS, n), torch.empty(ROWS, n, dtype=I64)
        scans(f"best_{lanes}", x, value, position, n)
        want = x.cummax(0)
        assert torch.equal(value, want.values)
        assert torch.equal(position, want.indices)
        some, odd = torch.empty(ROWS, n, dtype=BOOL), torch.empty(ROWS, n, dtype=BOOL)
        scans(f"seen_{lanes}", x, some, odd, n)
        assert torch.equal(some, (x > 1).cumsum(0) > 0)
        assert torch.equal(odd, (x > 1).cumsum(0) % 2 == 0)
        row, kept = torch.empty(ROWS, n, dtype=I64), torch.empty(ROWS, n, dtype=BF16)
        scans(f"held_{lanes}", x, row, kept, n)
        assert torch.equal(row, torch.arange(ROWS)[:, None].expand(ROWS, n))
        assert (kept == 0.5).all()
        small = torch.randint(-8, 9, (ROWS, n)).float()
        thrice, squares = torch.empty(ROWS, n), torch.empty(ROWS, n)
        scans(f"products_{lanes}", small, thrice, squares, n)
        assert torch.equal(thrice, 3 * small.cumsum(0))
        assert torch.equal(squares, (small * small).cumsum(0))


def test_lanes_that_share_a_carry_are_refused() -> None:
    turn = (Let("s", F64, "read", ("c", 0)), Advance("c", "s"))
    loop = For(COLUMN, number(0), SIZE, block(*turn), LoopKind.VECTOR, 4)
    with pytest.raises(SmeltError, match="SM0807"):
        print_unit([single(Kernel("bad", (), (SIZE,), block(Carry("c", F64, 0.0), loop)))])


def test_the_text_of_a_scan(tmp_path: Path) -> None:
    text = print_unit([single(total(1))]).text
    assert "f64 c0 = 0.0;" in text
    assert "c0 = v" in text
    assert "values<f64, 8> c0 = splat<8>(0.0);" in print_unit([single(total(8))]).text


def test_a_factor_of_several_products_is_held_in_its_register() -> None:
    assert "held(load<8>(in0" in print_unit([single(products(8))]).text
    assert "held(load" not in print_unit([single(total(8))]).text
    assert "held(load" not in print_unit([single(products(1))]).text


def test_only_loops_that_hand_on_a_value_are_said_to_go_round_often() -> None:
    text = print_unit([single(total(8))]).text
    kernel = text[text.index("static void kernel_total_8") :]
    assert kernel.count("for (") > kernel.count("SMELT_OFTEN(") == kernel.count(f"< {ROWS})") > 0
