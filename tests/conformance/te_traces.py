"""Random steps on a schedule: every method of `smelt.tir.Schedule`, found by introspection.

A step is a line of Python on ``sch`` that stands by itself, so that a trace is made shorter by leaving lines
out: ``sch.split(sch.get_loops("T0")[1], factors=[None, 4])``. Arguments are drawn by the names of a method's
parameters (`ARGUMENTS`); what a few methods want together, loops of one nest say, is in `TOGETHER`.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smelt import tir
from smelt.nest.ir import AxisKind, Stage
from smelt.nest.primitives.places import shapes_of
from smelt.nest.scopes import members, reads, writes
from smelt.nest.tree import stages
from smelt.tir import Schedule

LOOKUPS = ("block", "child_blocks", "consumers", "loops", "output_blocks", "producers", "sblock", "sref")
NO_STEPS = frozenset(
    (
        *(f"get_{each}" for each in LOOKUPS),
        *("copy", "enter_postproc", "fork_seed", "func", "func_working_on", "get", "mod", "remove_rv"),
        *("seed", "show", "state", "trace", "work_on"),
        "apply",
    )
)
"""What a schedule has that changes no program, and ``apply``, whose steps are drawn themselves."""


def methods() -> list[str]:
    """The methods that are steps."""
    return sorted(
        name
        for name, _ in inspect.getmembers(Schedule, callable)
        if not name.startswith("_") and name not in NO_STEPS
    )


@dataclass(slots=True)
class Drawer:
    """Draws arguments for a schedule as it is. ``wild``: how often they make no sense."""

    sch: Schedule
    draw: random.Random
    wild: float = 0.04

    def stage(self, inner: bool = True) -> Stage:
        body = self.sch.func.kernel.body
        return self.draw.choice(stages(body) if inner else members(body))

    def loops(self, stage: str) -> list[str]:
        """The loops around a stage, as expressions."""
        return [f"sch.get_loops({stage!r})[{n}]" for n in range(len(self.sch.get_loops(stage)))]

    def line(self, method: str) -> str | None:
        """A call of a method; None where the program has nothing for it."""
        stage = self.stage()
        given = TOGETHER[method](self, stage) if method in TOGETHER else None
        if given is not None:
            return f"sch.{method}({given})"
        args = []
        for name, parameter in inspect.signature(getattr(Schedule, method)).parameters.items():
            needed = parameter.default is parameter.empty
            if name == "self" or (not needed and (name not in ARGUMENTS or self.draw.random() < 0.6)):
                continue
            value = WILD[self.draw.randrange(len(WILD))]
            if self.draw.random() > self.wild:
                drawn = ARGUMENTS[name](self, stage)
                if drawn is None:
                    return None
                value = drawn
            args.append(value if parameter.kind is parameter.VAR_POSITIONAL else f"{name}={value}")
        return f"sch.{method}({', '.join(args)})"


WILD = ("None", "-1", "99", "'nowhere'", "3.5", "[]", "sch.get_block(sch.func.name)", "(0, 1)", "object()")


def _loop(drawer: Drawer, stage: Stage) -> str | None:
    found = drawer.loops(stage.name)
    return drawer.draw.choice(found) if found else None


def _other_loop(drawer: Drawer, stage: Stage) -> str | None:
    """A loop of another stage, that of a consumer or a producer rather."""
    near = [*drawer.sch.get_consumers(stage.name), *drawer.sch.get_producers(stage.name)]
    name = drawer.draw.choice(near).hint if near and drawer.draw.random() < 0.9 else drawer.stage().name
    return _loop(drawer, next(each for each in stages(drawer.sch.func.kernel.body) if each.name == name))


def _factors(drawer: Drawer, stage: Stage) -> str:
    del stage
    draw = drawer.draw
    factors: list[Any] = [draw.choice((1, 2, 2, 3, 4, 4, 5, 7, 8, 16)) for _ in range(draw.randint(1, 2))]
    if draw.random() < 0.85:
        factors.insert(draw.choice((0, 0, len(factors))), None)
    return repr(factors)


def _number(*numbers: int) -> Callable[[Drawer, Stage], str]:
    return lambda drawer, stage: repr(drawer.draw.choice(numbers))


def _buffer(drawer: Drawer, stage: Stage) -> str | None:
    names = [*reads(stage), *writes(stage)]
    return repr(drawer.draw.choice(names)) if names else None


def _read(drawer: Drawer, stage: Stage) -> str:
    count = max(len(reads(stage)), 1)
    return repr(drawer.draw.choice([*range(count), *reads(stage)]))


def _layout(count: int, drawer: Drawer, map_of_axes: bool = False) -> str:
    """A map of so many indices: a permutation, perhaps one of them split or two of them fused."""
    draw = drawer.draw
    names = [f"i{n}" for n in range(count)]
    made = list(names)
    draw.shuffle(made)
    kind = draw.choice(
        ("order", "split", "split", "reverse") if not map_of_axes else ("order", "order", "drop")
    )
    if kind == "split" and made:
        at, by = draw.randrange(count), draw.choice((2, 4))
        name = made[at]
        made[at : at + 1] = [f"{name} // {by}", f"{name} % {by}"]
    elif kind == "drop" and len(made) > 1:
        made.pop()
    return f"lambda {', '.join(names)}: ({', '.join(made)}{',' if len(made) == 1 else ''})"


def _index_map(drawer: Drawer, stage: Stage) -> str:
    return _layout(len(stage.axes), drawer, map_of_axes=drawer.draw.random() < 0.7)


def _block(drawer: Drawer, stage: Stage) -> str:
    del drawer
    return repr(stage.name)


def _reduction(drawer: Drawer, stage: Stage) -> Stage:
    found = [each for each in stages(drawer.sch.func.kernel.body) if each.init is not None]
    return drawer.draw.choice(found) if found and drawer.draw.random() < 0.95 else stage


ARGUMENTS: dict[str, Callable[[Drawer, Stage], str | None]] = {
    "block": _block,
    "reduction_block": lambda d, s: repr(_reduction(d, s).name),
    "epilogue_block": _block,
    "block_or_loop": lambda d, s: d.draw.choice([_block(d, s), _loop(d, s)]),
    "target": _loop,
    "loop": _loop,
    "loops": _loop,
    "ordered_loops": _loop,
    "factors": _factors,
    "step": _number(1, 16),
    "preserve_unit_iters": lambda d, s: repr(d.draw.random() < 0.5),
    "preserve_unit_loops": lambda d, s: repr(d.draw.random() < 0.5),
    "disable_predication": lambda d, s: repr(d.draw.random() < 0.5),
    "parting": lambda d, s: repr(d.draw.random() < 0.5),
    "after": _number(1, 1, 2),
    "index": _number(-1, -2, 0),
    "thread_axis": lambda d, s: repr(d.draw.choice(("threadIdx.x", "blockIdx.x", "vthread.x"))),
    "ann_key": lambda d, s: repr(d.draw.choice(("note", "pragma_auto_unroll_max_step"))),
    "ann_val": lambda d, s: repr(d.draw.choice((1, "text", True, [1, 2]))),
    "factor_axis": _number(0, 0, 1, -1),
    "candidates": lambda d, s: "[1, 2, 4]",
    "probs": lambda d, s: "[0.5, 0.25, 0.25]",
    "n": _number(1, 2, 3),
    "max_innermost_factor": _number(4, 16),
    "read_buffer_index": _read,
    "write_buffer_index": lambda d, s: repr(d.draw.choice([0, 0, *writes(s)])),
    "buffer_index": _number(0, 0, 0, 1),
    "storage_scope": lambda d, s: repr(d.draw.choice(("local", "shared", "global"))),
    "consumer_blocks": lambda d, s: f"[{d.stage().name!r}]",
    "buffer": lambda d, s: d.draw.choice([_buffer(d, s), '("read", 0)', '("write", 0)']),
    "index_map": _index_map,
    "pad_value": lambda d, s: d.draw.choice(("None", "0", "0.0", "1")),
    "axis": _number(0, -1, -2),
    "factor": _number(4, 8, 16),
    "offset": _number(0, 1, 3),
    "new_order": lambda d, s: repr(d.draw.sample(range(len(s.axes)), len(s.axes))),
    "padding": lambda d, s: repr([d.draw.choice((1, 2, 4, 8)) for _ in s.axes]),
    "tensor_intrin": lambda d, s: repr(d.draw.choice(sorted(tir.TensorIntrin.registry) or ["none"])),
}
"""How an argument is drawn, by the name of its parameter: text of Python, None where there is nothing."""


def _neighbours(drawer: Drawer, stage: Stage) -> str:
    """Loops of one nest that are around one another."""
    found = drawer.loops(stage.name)
    first = drawer.draw.randint(0, max(len(found) - 2, 0))
    return ", ".join(found[first : drawer.draw.randint(first + 1, len(found)) if found else 0])


def _permuted(drawer: Drawer, stage: Stage) -> str:
    found = drawer.loops(stage.name)
    drawer.draw.shuffle(found)
    kept = found[: drawer.draw.randint(1, len(found))] if found else []
    return ", ".join([*kept, *(["parting=True"] if drawer.draw.random() < 0.4 else [])])


def _siblings(drawer: Drawer, stage: Stage) -> str:
    others = [stage, *(drawer.stage() for _ in range(drawer.draw.randint(1, 2)))]
    depth = drawer.draw.randint(0, 1)
    return ", ".join(found[depth] for each in others if len(found := drawer.loops(each.name)) > depth)


def _begun(drawer: Drawer, stage: Stage) -> str | None:
    stage = _reduction(drawer, stage)
    loop = _loop(drawer, stage)
    return None if loop is None else f"{stage.name!r}, {loop}"


def _factored(drawer: Drawer, stage: Stage) -> str | None:
    stage = _reduction(drawer, stage)
    variables = {s for axis in stage.axes if axis.kind is AxisKind.REDUCE for s in axis.value.free_symbols}
    around = drawer.sch.get_loops(stage.name)
    found = [n for n, loop in enumerate(around) if drawer.sch._loop_var(loop) in variables]
    if not found:
        return None
    return f"sch.get_loops({stage.name!r})[{drawer.draw.choice(found)}], {drawer.draw.choice((0, 0, 1, -1))}"


def _moved(drawer: Drawer, stage: Stage) -> str | None:
    loop = _other_loop(drawer, stage)
    options = "".join(
        f", {name}={ARGUMENTS[name](drawer, stage)}"
        for name in ("preserve_unit_loops", "index")
        if drawer.draw.random() < 0.2
    )
    return None if loop is None else f"{stage.name!r}, {loop}{options}"


def _inlined(drawer: Drawer, stage: Stage) -> str:
    """A block that others read, and that is no reduction."""
    found = [each for each in stages(drawer.sch.func.kernel.body) if each.init is None]
    read = [each for each in found if drawer.sch.get_consumers(each.name)]
    return repr(drawer.draw.choice(read).name if read else stage.name)


def _inlined_back(drawer: Drawer, stage: Stage) -> str:
    """A block that reads what another one computes."""
    found = [each for each in stages(drawer.sch.func.kernel.body) if each.init is None]
    read = [each for each in found if drawer.sch.get_producers(each.name)]
    return repr(drawer.draw.choice(read).name if read else stage.name)


def _moved_in(drawer: Drawer, stage: Stage) -> str | None:
    """`compute_at` of a block that others read."""
    found = [each for each in stages(drawer.sch.func.kernel.body) if drawer.sch.get_consumers(each.name)]
    return _moved(drawer, drawer.draw.choice(found) if found else stage)


def _laid_out(drawer: Drawer, stage: Stage) -> str | None:
    params = {param.name for param in drawer.sch.func.kernel.params}
    names = [name for name in (*writes(stage), *reads(stage)) if name not in params]
    if not names:  # a parameter would lie in another way for those who call
        return None
    name = drawer.draw.choice(names)
    rank = len(shapes_of(drawer.sch.func.kernel)[name])
    pad = ", pad_value=0" if drawer.draw.random() < 0.5 else ""
    return f"{stage.name!r}, {name!r}, {_layout(rank, drawer)}{pad}"


def _axes_map(drawer: Drawer, stage: Stage) -> str:
    return f"{stage.name!r}, {_layout(len(stage.axes), drawer)}"


def _einsum(drawer: Drawer, stage: Stage) -> str:
    stage = _reduction(drawer, stage)
    return f"{stage.name!r}, {[drawer.draw.choice((1, 2, 4, 8)) for _ in stage.axes]!r}"


def _pair(drawer: Drawer, stage: Stage) -> str:
    stage = _reduction(drawer, stage)
    after = drawer.sch.get_consumers(stage.name)
    other = drawer.draw.choice(after).hint if after else drawer.stage().name
    return f"{stage.name!r}, {other!r}"


TOGETHER: dict[str, Callable[[Drawer, Stage], str | None]] = {
    "fuse": _neighbours,
    "reorder": _permuted,
    "merge": _siblings,
    "decompose_reduction": _begun,
    "rfactor": _factored,
    "compute_at": _moved_in,
    "compute_inline": _inlined,
    "reverse_compute_inline": _inlined_back,
    "reverse_compute_at": _moved,
    "transform_layout": lambda d, s: _laid_out(d, s) or "'nowhere', ('write', 0), lambda i: i",
    "transform_block_layout": _axes_map,
    "pad_einsum": _einsum,
    "fuse_reduction_epilogue": _pair,
}
"""Methods whose arguments have to fit one another; None: they are drawn one by one."""

OFTEN = ("split", "split", "fuse", "reorder", "parallel", "vectorize", "unroll", "compute_at", "rfactor")
"""Steps that others build on."""


def next_line(sch: Schedule, draw: random.Random) -> str | None:
    """A step for a schedule as it is."""
    names = methods()
    method = draw.choice(OFTEN) if draw.random() < 0.4 else draw.choice(names)
    # what is looked up for a line is no part of the trace
    return Drawer(sch.copy(), draw).line(method)


__all__ = ["ARGUMENTS", "TOGETHER", "methods", "next_line"]
