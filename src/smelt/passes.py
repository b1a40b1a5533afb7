"""The form of a pass: a function ``pass_(ir, context) -> ir`` with a name and a summary (the first line of
its docstring) for people.

Each package lists its passes in a tuple, in order; `smelt.pipeline.passes.PASSES` has all of them. A context
has the inputs that the passes of one package share. A watch sees the IR before and after each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Pass = Callable[[Any, Any], Any]
"""A function from an IR and the context of its package to an IR; it does not change its argument."""

Watch = Callable[[str, Pass, Any], None]
"""Called with ``"before"`` or ``"after"``, the pass and the IR."""


def name_of(pass_: Pass) -> str:
    """The name of a pass for people.

    >>> def fold_scales(graph, context):
    ...     "Multiplies constants into weights."
    >>> name_of(fold_scales), summary_of(fold_scales)
    ('fold_scales', 'Multiplies constants into weights.')
    """
    return str(pass_.__name__)


def summary_of(pass_: Pass) -> str:
    """The first line of a pass's docstring."""
    return (pass_.__doc__ or "").strip().splitlines()[0]


def run(passes: Sequence[Pass], ir: Any, context: Any, watch: Watch | None = None) -> Any:
    """Runs the passes one after another."""
    for pass_ in passes:
        if watch is not None:
            watch("before", pass_, ir)
        ir = pass_(ir, context)
        if watch is not None:
            watch("after", pass_, ir)
    return ir
