"""The inputs that all passes of a schedule share: options, target, and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.config import Config
from smelt.loops.ir import Attentions, Contractions, Graph
from smelt.nest.ir import Kernel
from smelt.passes import Watch
from smelt.records import dataclass
from smelt.schedule.loops import Target
from smelt.schedule.products.operands import Product
from smelt.schedule.tilings import Tiles

Choose = Callable[[Product | Attentions, Graph, Target], bool | Tiles]
"""The decision whether a product or an attention of a graph runs in a kernel of our own, if there is one; for
a GPU also by which tiles.
"""


@dataclass(frozen=True, slots=True)
class Context:
    """The options of a schedule. ``choose`` decides which products run in kernels of ours (None: a rule).
    Each contraction in ``alone`` also gets a run of its own. ``ready`` is called with each kernel once it is
    final. ``prefix`` begins the names of the runs.
    """

    config: Config
    target: Target
    prefix: str = ""
    choose: Choose | None = None
    alone: Sequence[Contractions] = ()
    ready: Callable[[Kernel], None] | None = None
    watch: Watch | None = None
