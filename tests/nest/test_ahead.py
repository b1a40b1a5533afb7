"""Values computed ahead: of all iterations of inner loops, and of all numbers of 4 bits."""

from __future__ import annotations

import pytest
import torch
from sympy import Expr, Integer

from smelt.nest.interpreter import run_kernel
from smelt.nest.ir import Alloc, Block, For, Kernel, Let, LoopKind, Param, Stmt, Store
from smelt.nest.primitives import ScheduleError, hoist, precompute, tabulate, vectorize
from smelt.nest.tree import find, walk
from smelt.nest.verify import verify
from smelt.symbolic import loop_var

F32, I32, U8, F16 = torch.float32, torch.int32, torch.uint8, torch.float16
ROW, GROUP, LANE = loop_var("row"), loop_var("group"), loop_var("lane")


def _param(name: str, size: int, dtype: torch.dtype = F32) -> Param:
    return Param(name, dtype, (Integer(size),), (Integer(1),), name == "y")


def _loop(var: Expr, end: int, *stmts: Stmt) -> For:
    return For(var, Integer(0), Integer(end), Block(stmts))  # type: ignore[arg-type]


def _values(*masks: int, scaled: str = "scale") -> Kernel:
    """y[row, group, lane] = scale[row, group] * (numbers of the byte's fields)"""
    place = 64 * ROW + 16 * GROUP + LANE
    steps: list[Stmt] = [
        Let("s0", F16, "load", ("scale", (4 * ROW + GROUP,))),
        Let("scale", F32, "to_dtype", ("s0",)),
        Let("byte", U8, "load", ("q", (place,))),
        Let("wide", I32, "to_dtype", ("byte",)),
    ]
    last = scaled
    for number, mask in enumerate(masks):
        steps += [
            Let(f"by{number}", I32, "constant", (4 * number,)),
            Let(f"field{number}", I32, "rshift", ("wide", f"by{number}")),
            Let(f"mask{number}", I32, "constant", (mask,)),
            Let(f"n{number}", I32, "bitwise_and", (f"field{number}", f"mask{number}")),
            Let(f"f{number}", F32, "to_dtype", (f"n{number}",)),
            Let(f"v{number}", F32, "mul", (last, f"f{number}")),
        ]
        last = f"v{number}"
    steps.append(Store("y", (place,), last))
    params = (
        _param("q", 192, U8),
        _param("scale", 12, F16),
        _param("y", 192),
    )
    return Kernel("values", params, (), Block((_loop(ROW, 3, _loop(GROUP, 4, _loop(LANE, 16, *steps))),)))


def _outcome(kernel: Kernel) -> torch.Tensor:
    verify(kernel)
    torch.manual_seed(0)
    q, scale, y = torch.randint(0, 256, (192,), dtype=U8), torch.rand(12).half(), torch.zeros(192)
    run_kernel(kernel, {"q": q, "scale": scale, "y": y})
    return y


@pytest.mark.parametrize("masks", [(15,), (3,), (15, 7)])
def test_functions_of_few_bits_are_looked_up(masks: tuple[int, ...]) -> None:
    plain = _values(*masks)
    made = hoist(tabulate(plain, LANE))
    assert torch.equal(_outcome(made), _outcome(plain))
    found = find(made.body, LANE)
    assert found.kind is LoopKind.VECTOR and found.step == 16
    ops = [stmt.op for stmt in found.body.stmts if isinstance(stmt, Let)]
    assert ops.count("lookup") == len(masks)
    assert ops.count("bitwise_and") == len(masks)  # of the lanes' own numbers


def test_a_number_of_more_bits_is_computed() -> None:
    plain = _values(31)
    assert tabulate(plain, LANE) is plain


def test_a_loop_of_other_lengths_has_no_table() -> None:
    with pytest.raises(ScheduleError, match="16 iterations"):
        tabulate(_values(15), GROUP)


def test_scales_are_computed_ahead_in_vectors() -> None:
    plain = _values(15)
    made, (group,) = precompute(plain, "scale", ROW)
    made = vectorize(made, group, 16)
    assert torch.equal(_outcome(made), _outcome(plain))
    (scratch,) = (stmt for stmt in walk(made.body) if isinstance(stmt, Alloc))
    assert scratch.shape == (4,) and scratch in find(made.body, ROW).body.stmts
    inside = [stmt.op for stmt in find(made.body, LANE).body.stmts if isinstance(stmt, Let)]
    assert inside.count("to_dtype") == 2  # of the byte and of its number


def test_values_are_computed_ahead_for_several_loops() -> None:
    plain = _values(15)
    made, variables = precompute(plain, "v0", ROW)
    assert len(variables) == 2 and torch.equal(_outcome(made), _outcome(plain))


@pytest.mark.parametrize("name", ["by0", "missing"], ids=["the same in all iterations", "no such value"])
def test_what_is_not_computed_ahead(name: str) -> None:
    with pytest.raises(ScheduleError, match="unchanged buffers"):
        precompute(_values(15), name, ROW)


def test_what_the_loop_stores_is_not_computed_ahead() -> None:
    load = Let("v", F32, "load", ("y", (LANE,)))
    more = Let("w", F32, "neg", ("v",))
    body = _loop(ROW, 3, _loop(LANE, 16, load, more, Store("y", (LANE,), "w")))
    with pytest.raises(ScheduleError, match="unchanged buffers"):
        precompute(Kernel("k", (_param("y", 16),), (), Block((body,))), "w", ROW)
