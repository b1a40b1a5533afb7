"""What a pass is: a function ``pass_(ir, context) -> ir`` whose name and first line of docstring people see.

Each room lists its passes in a tuple, in order; `smelt.pipeline.passes.PASSES` is all of them. A context is
whatever the passes of one room share. A watch sees the IR before and after each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Pass = Callable[[Any, Any], Any]
"""Takes an IR and the context of its room, returns an IR and leaves the one that it was given as it was."""

Watch = Callable[[str, Pass, Any], None]
"""Called with ``"before"`` or ``"after"``, the pass and the IR."""


def name_of(pass_: Pass) -> str:
    """The name by which people ask for a pass.

    >>> def fold_scales(graph, context):
    ...     "Multiplies constants into weights."
    >>> name_of(fold_scales), summary_of(fold_scales)
    ('fold_scales', 'Multiplies constants into weights.')
    """
    return str(pass_.__name__)


def summary_of(pass_: Pass) -> str:
    """The first line of what a pass says of itself."""
    return (pass_.__doc__ or "").strip().splitlines()[0]


def run(passes: Sequence[Pass], ir: Any, context: Any, watch: Watch | None = None) -> Any:
    """Run the passes one after another."""
    for pass_ in passes:
        if watch is not None:
            watch("before", pass_, ir)
        ir = pass_(ir, context)
        if watch is not None:
            watch("after", pass_, ir)
    return ir
