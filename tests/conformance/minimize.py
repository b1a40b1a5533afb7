"""Shrinking a failing program: fewer outputs, fewer steps, inputs in the place of what led to a value."""

from __future__ import annotations

from collections.abc import Callable

import torch

from smelt.cli.minimize import smallest
from tests.conformance.programs import Input, Program, Step

Fails = Callable[[Program], bool]


def minimize(program: Program, fails: Fails, tries: int = 80) -> Program:
    """A smaller program that fails too, found in at most ``tries`` runs of ``fails``."""
    return smallest(program, _smaller, fails, tries)


def _smaller(program: Program) -> list[Program]:
    """Candidates, the most daring first."""
    found = []
    if len(program.outputs) > 1:
        found += [_live(program, (name,)) for name in program.outputs]
    live = _live(program, program.outputs)
    if len(live.steps) < len(program.steps):
        found.append(live)
    values = _values(program)
    for position in range(len(program.steps) - 1, -1, -1):
        step = program.steps[position]
        rest = [*program.steps[:position], *program.steps[position + 1 :]]
        if step.name is None:
            found.append(program.with_steps(rest, program.outputs, program.inputs))
            continue
        value = values.get(step.name)
        if value is None or step.name in program.outputs:
            continue
        given = Input(step.name, tuple(value.shape), str(value.dtype).removeprefix("torch."), "contiguous", 1)
        found.append(
            _live(program.with_steps(rest, program.outputs, (*program.inputs, given)), program.outputs)
        )
    for step in reversed(program.steps):
        if step.name is not None and step.name not in program.outputs:
            found.append(_live(program, (step.name,)))
    return found


def _live(program: Program, outputs: tuple[str, ...]) -> Program:
    """Only the steps that lead to the outputs; mutations stay while what they touch does."""
    needed = set(outputs)
    kept: list[Step] = []
    for step in reversed(program.steps):
        if step.name is None or step.name in needed:
            kept.append(step)
            needed |= set(step.uses)
    return program.with_steps(kept[::-1], outputs, program.inputs)


def _values(program: Program) -> dict[str, torch.Tensor]:
    names = [step.name for step in program.steps if step.name is not None]
    whole = program.with_steps(program.steps, names, program.inputs)
    try:
        results = whole.function()(*whole.arguments())
    except Exception:
        return {}
    return dict(zip(names, results))
