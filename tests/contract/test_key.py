"""The content hash: same program, same key (in any process); any difference that matters, another key."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.capture import Program, capture_function, export
from smelt.contract import contract, decompositions, export_decompositions, graph_key

aten = torch.ops.aten


def key(function: Callable[..., Any], *args: Any, dynamic: bool = False) -> str:
    return graph_key(contract(capture_function(function, args, decompositions(), dynamic=dynamic)))


def base(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).softmax(-1)


def test_equal_programs_have_equal_keys() -> None:
    x = torch.ones(3, 4)
    assert key(base, x) == key(base, x)
    assert key(base, x) == key(lambda renamed: (renamed * 2 + 1).softmax(-1), torch.zeros(3, 4))


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x: (x * 3 + 1).softmax(-1), (torch.ones(3, 4),)),
        (lambda x: (x * 2.0 + 1).softmax(-1), (torch.ones(3, 4),)),
        (lambda x: (x * 2 + 1).softmax(0), (torch.ones(3, 4),)),
        (lambda x: (x * 2 - 1).softmax(-1), (torch.ones(3, 4),)),
        (base, (torch.ones(4, 4),)),
        (base, (torch.ones(3, 4, dtype=torch.float64),)),
        (base, (torch.ones(4, 3).t(),)),
        (base, (torch.ones(24)[12:].view(3, 4),)),
        (lambda x: base(x).neg(), (torch.ones(3, 4),)),
        (lambda x: (base(x), base(x)), (torch.ones(3, 4),)),
        (lambda x, y: base(x), (torch.ones(3, 4), torch.ones(1))),
    ],
    ids=[
        "literal",
        "type",
        "dim",
        "operator",
        "shape",
        "dtype",
        "strides",
        "offset",
        "more",
        "outputs",
        "inputs",
    ],
)
def test_what_matters_changes_the_key(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    assert key(function, *args) != key(base, torch.ones(3, 4))


def test_mutation_changes_the_key() -> None:
    def changing(x: torch.Tensor) -> torch.Tensor:
        result = x + 1
        x.copy_(result)
        return result

    assert key(changing, torch.ones(3)) != key(lambda x: x + 1, torch.ones(3))


def test_constants_count_by_their_contents() -> None:
    def with_constant(*values: float) -> str:
        return key(lambda x: x + torch.tensor(values), torch.ones(2))

    assert with_constant(1.0, 2.0) == with_constant(1.0, 2.0)
    assert with_constant(1.0, 2.0) != with_constant(1.0, 3.0)
    assert with_constant(0.0, 1.0) != with_constant(-0.0, 1.0)


def test_roles_and_kind_change_the_key_names_do_not() -> None:
    program = contract(capture_function(base, [torch.ones(3, 4)]))
    variants = [
        dataclasses.replace(program, kind="forward"),
        dataclasses.replace(program, output_roles=("saved",)),
        dataclasses.replace(program, inputs=(dataclasses.replace(program.inputs[0], static=True),)),
    ]
    keys = {graph_key(each) for each in [program, *variants]}
    assert len(keys) == 4
    assert graph_key(dataclasses.replace(program, name="another")) == graph_key(program)


def test_one_key_for_all_sizes_of_a_dynamic_program() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1).softmax(0) * x.shape[0]

    assert key(f, torch.ones(5, 6), dynamic=True) == key(f, torch.ones(7, 9), dynamic=True)
    assert key(f, torch.ones(5, 6), dynamic=True) != key(f, torch.ones(5, 6))


def test_symbols_are_told_apart() -> None:
    def rows(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0]

    def columns(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[1]

    assert key(rows, torch.ones(5, 6), dynamic=True) != key(columns, torch.ones(5, 6), dynamic=True)


def exported(low: int | None, high: int | None) -> Program:
    dim = torch.export.Dim("rows", min=low, max=high)
    shapes = ({0: dim},)
    return contract(
        export(torch.nn.ReLU(), (torch.ones(5, 3),), None, export_decompositions(), dynamic_shapes=shapes)
    )


def test_known_ranges_of_sizes_count() -> None:
    assert graph_key(exported(2, 64)) == graph_key(exported(2, 64))
    assert graph_key(exported(2, 64)) != graph_key(exported(2, 128))


_SCRIPT = """
import torch
from smelt.capture import capture_function
from smelt.contract import contract, decompositions, graph_key
torch.set_num_threads(1)
for _ in range({earlier}):
    capture_function(lambda x: x.view(-1), [torch.ones(3, 4)], dynamic=True)
def f(x, y):
    z = (x.reshape(-1) * y.shape[0] + x.shape[0] * x.shape[1] - y.shape[0]).softmax(0)
    return z, torch.cat([x, y], 0) + torch.tensor([1.0]), torch.zeros(x.shape[0] + y.shape[0])
program = capture_function(f, [torch.ones(5, 6), torch.ones(7, 6)], decompositions(), dynamic=True)
print(graph_key(contract(program)))
"""


@pytest.mark.long
def test_the_key_is_the_same_in_every_process() -> None:
    def in_process(seed: str, earlier: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT.format(earlier=earlier)],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    first, second = in_process("1", 0), in_process("2", 3)
    assert len(first) == 64
    assert first == second


def test_names_of_symbols_do_not_matter() -> None:
    """The same sums and products under names that SymPy sorts the other way round."""
    import sympy

    from smelt.contract.key import _Writer

    def written(first: str, second: str) -> list[str]:
        a, b = sympy.symbols([first, second], integer=True, positive=True)
        writer = _Writer()
        return [writer._expr(each) for each in (a, b, a * b + 2 * a, a + b, sympy.Max(a, b) * b**2)]

    assert written("s0", "s1") == written("s9", "s1")
