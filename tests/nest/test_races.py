"""Races of a GPU's programs and lanes: loops whose iterations write one element are found, others are not."""

from __future__ import annotations

import pytest
import sympy
import torch
from sympy import Expr, Integer, Symbol

from smelt.errors import VerificationError
from smelt.nest.ir import Accumulate, Block, For, Guard, Kernel, Let, Param, Stmt, Store, Update
from smelt.nest.races import races
from smelt.nest.verify import verify_blocks
from smelt.symbolic import FloorDiv, Mod

F32 = torch.float32
G, K, J = (Symbol(name, integer=True, nonnegative=True) for name in "gkj")
S = Symbol("s", integer=True, positive=True)
ONE = Let("one", F32, "constant", (1.0,))
Y = Param("y", F32, (Integer(4096),), (Integer(1),), True)


def _kernel(*stmts: Stmt) -> Kernel:
    return Kernel("k", (Y,), (), Block(stmts))


def _store(index: Expr, mode: str | None = None) -> tuple[Stmt, ...]:
    return ONE, Store("y", (index,), "one", mode)


def _loop(var: Symbol, end: Expr | int, thread: str | None, *body: Stmt, begin: Expr | int = 0) -> For:
    return For(var, sympy.sympify(begin), sympy.sympify(end), Block(body), thread=thread)


@pytest.mark.parametrize("thread", ["blockIdx.x", "threadIdx.x", "threadIdx.y"])
@pytest.mark.parametrize("index", [FloorDiv(K, 2), Mod(K, 4), Integer(3)])
def test_two_iterations_that_write_one_element_are_found(thread: str, index: Expr) -> None:
    kernel = _kernel(_loop(K, 8, thread, *_store(index)))
    assert races(kernel) == [f"k is on {thread}: two iterations of k may write the same element of y"]
    with pytest.raises(VerificationError, match=r"(?s)SM0530.*k is on .*may write the same element of y"):
        verify_blocks([kernel])


def test_tiles_that_overlap_are_found() -> None:
    lanes = _loop(K, G * 8 + 9, "threadIdx.x", *_store(K), begin=G * 8)
    assert races(_kernel(_loop(G, 4, "blockIdx.x", lanes))) == [
        "g is on blockIdx.x: two iterations of g may write the same element of y"
    ]


def test_programs_that_share_an_accumulator_are_found_and_lanes_that_do_are_not() -> None:
    def kernel(thread: str) -> Kernel:
        loop = _loop(K, 8, thread, ONE, Update("acc", "one"))
        read = Let("all", F32, "read", ("acc", 0))
        return _kernel(Accumulate("acc", "sum", F32), loop, read, Store("y", (Integer(0),), "all"))

    assert races(kernel("blockIdx.x")) == ["k is on blockIdx.x: programs add to the accumulator acc"]
    assert not races(kernel("threadIdx.x"))


def test_stores_that_combine_and_serial_loops_do_not_race() -> None:
    assert not races(_kernel(_loop(K, 8, "blockIdx.x", *_store(Integer(3), "add"))))
    assert not races(_kernel(_loop(K, 8, None, *_store(Integer(3)))))


def test_elements_are_counted_where_no_rule_shows_that_they_differ() -> None:
    """Rows of batches, in tiles that do not divide them: 3 batches of 70 rows of 4."""
    tile = Mod(G, 3) * 32

    def rows(end: Expr) -> Kernel:
        columns = _loop(J, 4, "threadIdx.x", *_store(FloorDiv(G, 3) * 280 + K * 4 + J))
        return _kernel(_loop(G, 9, "blockIdx.x", _loop(K, end, "threadIdx.y", columns, begin=tile)))

    assert not races(rows(sympy.Min(Integer(70), tile + 32)))
    assert len(races(rows(tile + 32))) == 1
    guarded = Guard(sympy.Lt(K, 70), Block(_store(FloorDiv(G, 3) * 70 + K)))
    assert not races(
        _kernel(_loop(G, 9, "blockIdx.x", _loop(K, tile + 32, "threadIdx.y", guarded, begin=tile)))
    )


def test_sizes_that_are_no_numbers_are_not_counted() -> None:
    tile = Mod(G, S) * 32
    lanes = _loop(K, sympy.Min(S * 20, tile + 32), "threadIdx.y", *_store(K), begin=tile)
    assert len(races(_kernel(_loop(G, S * 2, "blockIdx.x", lanes)))) == 1
