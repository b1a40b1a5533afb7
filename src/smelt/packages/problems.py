"""Finds all that keeps a program from being a package."""

from __future__ import annotations

from collections.abc import Iterator

from smelt.errors import Problem, SmeltError
from smelt.loops.dependencies import bound_symbols
from smelt.loops.ir import Extern, Graph, Node
from smelt.lowering.chosen import chosen
from smelt.runtime.externs import resolve
from smelt.schedule import Scheduled
from smelt.symbolic import free_symbols

READ_NUMBER = "aten._local_scalar_dense.default"
SEED = "aten.randint.low"
"""The call that draws the seed of a run: a package's caller gives it."""


class NotPackageableError(SmeltError):
    """SM1401: a program that needs what packages do not have. ``problems``: all of it."""

    def __init__(self, name: str, problems: list[Problem]) -> None:
        self.problems = problems
        listed = "\n".join(f"    - {problem}" for problem in problems)
        super().__init__(
            "SM1401",
            f"{name} cannot be packaged: {len(problems)} problem(s)\n{listed}",
            why="a package runs without PyTorch, in memory that its caller gives before a run",
            remedy="leave these calls out of the packaged function, or compute their results before it",
        )


def check_packageable(name: str, scheduled: Scheduled) -> None:
    """
    Raises:
        NotPackageableError: SM1401, with everything that keeps the program from being a package.
    """
    problems = unpackable(scheduled)
    if problems:
        raise NotPackageableError(name, problems)


def unpackable(scheduled: Scheduled) -> list[Problem]:
    """The calls of ATen that are left in a scheduled program, its control flow, and the sizes that depend on
    data: each with its reason and the user's line. Values that are computed ahead have none.
    """
    graph = scheduled.graph
    found = [
        Problem(what, node.origin.where)
        for each in graph.with_bodies()
        for node in each.nodes
        for what in _problems(node, each)
    ]
    return list(dict.fromkeys(found))


def _problems(node: Node, graph: Graph) -> Iterator[str]:
    body = node.body
    symbols = {*bound_symbols(node)} - graph.limits.keys()
    sized = [buffer for buffer in graph.buffers.values() if symbols & free_symbols(buffer.whole_shape)]
    if sized:
        yield f"{node.origin.op}: the size of a tensor depends on data"
    elif isinstance(body, Extern) and body.bodies:
        yield f"{body.target}: control flow that data decides"
    elif isinstance(body, Extern) and not _is_of_host(node, body):
        yield f"{body.target}: {body.reason or _choice(body.target)}"


def _is_of_host(node: Node, body: Extern) -> bool:
    """Whether a package has the call: it reads a number, or draws the seed, which the caller gives."""
    return body.target == READ_NUMBER or (body.target == SEED and node.origin.op == "seed")


def _choice(target: str) -> str:
    name = chosen(resolve(target))
    return f"{name}, which ATen computes" if name else "ATen computes it"
