"""Items and groups as text, and a check that each reads only buffers that are written before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smelt.errors import Problem, VerificationError
from smelt.loops.printer import index_text
from smelt.nest.printer import print_kernel
from smelt.schedule.grouping.items import Item, Work
from smelt.schedule.memory.execution import Execution, Grouped


def print_work(work: Work) -> str:
    """A line for each item: its loops, outermost first, its reads and writes."""
    return "\n".join([*map(_line, work.items), *_inlined(work)]) + "\n"


def print_groups(grouped: Grouped) -> str:
    """The items of each group below the loops that they share."""
    lines = []
    for position, group in enumerate(grouped.groups):
        product = " with a product" if group.product is not None else ""
        lines.append(f"group {position}{product}: loops ({index_text(group.prefix)})")
        lines += ["    " + _line(item) for item in group.all_items]
    return "\n".join([*lines, *_inlined(grouped.work)]) + "\n"


def print_execution(execution: Execution) -> str:
    """The kernels built so far, and the storage of each buffer."""
    kernels = [print_kernel(built.kernel) for built in execution.built.values()] or ["no kernel yet\n"]
    storage = [f"{name}: {where}\n" for name, where in sorted(execution.storage.items())]
    roots = [f"{name} has the memory of {other}\n" for name, other in sorted(execution.roots.items())]
    offsets = [
        f"{name} begins at byte {offset}\n" for name, offset in sorted(execution.arena.offsets.items())
    ]
    steps = [f"{step}\n" for step in execution.scheduled.plan.steps]
    return "".join([*kernels, *storage, *roots, *offsets, *steps])


def _line(item: Item) -> str:
    reads = ", ".join(dict.fromkeys(read.buffer for read in item.reads)) or "nothing"
    writes = ", ".join(name or "_" for name in item.writes) or "nothing"
    loops = f"loops ({index_text(item.ordered_sizes)})"
    return f"{writes} = {type(item.body).__name__.lower()} {loops} of {reads}  # {item.node.origin.op}"


def _inlined(work: Work) -> Iterator[str]:
    for name in work.inlined:
        yield f"{name} is computed where it is read"


def verify_work(work: Work) -> None:
    """Checks that each item reads buffers that are given, inlined or written by an earlier item.

    Raises:
        VerificationError: SM0526, with every problem.
    """
    _verify(work, work.items)


def verify_groups(grouped: Grouped | Execution) -> None:
    """`verify_work`, in the order of the groups; those of one group count as one.

    Raises:
        VerificationError: SM0526, with every problem.
    """
    _verify(grouped.work, (item for group in grouped.groups for item in group.all_items))


def _verify(work: Work, items: Iterable[Item]) -> None:
    graph = work.graph
    known = (
        {name for name in graph.inputs if isinstance(name, str)} | set(graph.constants) | set(work.inlined)
    )
    problems = []
    for item in items:
        for name in dict.fromkeys(read.buffer for read in item.reads):
            if name not in known:
                problems.append(Problem(f"{item.node.origin.op} reads {name} before it is written"))
        known.update(name for name in item.writes if name is not None)
    if problems:
        raise VerificationError("SM0526", "schedule", problems)
