"""Inlining of pointwise buffers into their readers."""

from __future__ import annotations

from collections import defaultdict

from smelt.loops.dependencies import Read
from smelt.loops.ir import Contraction, Pointwise, Reduction, Scan, Scatter
from smelt.records import replace
from smelt.schedule.few_rows import MOST_ROWS
from smelt.schedule.grouping.items import Item, Work
from smelt.symbolic import FloorDiv, Mod

TRIVIAL_COST = 1
CHEAP_COST = 4
CHEAP_USES = 4

MOST_NESTED = 32
"""Limit on the nesting of inlined producers: each is a few Python calls deep."""

ROUNDED = 8
"""The weight in that limit of a producer that reads at a quotient or a remainder: its indices grow when
nested.
"""


def inline(work: Work) -> Work:
    """The work without the items that are inlined; ``inlined`` has their computations.

    A pointwise buffer that only loop functions read is inlined when it costs next to nothing (a constant, a
    cast, a copy), when it has one reader that computes each element once, or when it is cheap and has few
    readers. The other buffers are stored, or forwarded in registers where fusion puts producer and reader
    into one loop; so is every `MOST_NESTED`th of a long chain.
    """
    readers: dict[str, list[tuple[Item, int]]] = defaultdict(list)
    for item in work.items:
        sites: dict[str, int] = defaultdict(int)
        for read in item.reads:
            sites[read.buffer] += 1
        for buffer, count in sites.items():
            readers[buffer].append((item, count))
    writers: dict[str, int] = defaultdict(int)
    for item in work.items:
        for name in item.writes:
            if name is not None:
                writers[name] += 1
    mutated = {name for item in work.items for name in item.writes if name in work.graph.inputs}
    kept, inlined, origins = [], dict(work.inlined), dict(work.origins)
    nested: dict[str, int] = {}
    for item in work.items:
        depth = max((nested.get(read.buffer, 0) for read in item.reads), default=0)
        depth += ROUNDED if any(map(_is_rounded, item.reads)) else 1
        name = item.writes[0] if item.writes else None
        if (
            name is None
            or not isinstance(item.body, Pointwise)
            or depth > MOST_NESTED
            or writers[name] > 1
            or name in work.outside
            or name in work.inlined_never
            or name in mutated
            or any(read.buffer in mutated for read in item.reads)
            or any(
                isinstance(reader.body, Scatter) and reader.body.base == name for reader, _ in readers[name]
            )
            or not _worth_inlining(work, item, readers[name])
        ):
            kept.append(item)
            continue
        nested[name] = depth
        inlined[name] = item.body
        origins[name] = item.node.origin
    return replace(work, items=kept, inlined=inlined, origins=origins)


def _worth_inlining(work: Work, item: Item, readers: list[tuple[Item, int]]) -> bool:
    if not readers:
        return True
    distinct_loads = len(item.reads)
    if item.cost <= TRIVIAL_COST and distinct_loads <= 1:
        return True
    size = work.hint_product(item.sizes)
    repeats = max(work.hint_product(reader.sizes) / max(size, 1) for reader, _ in readers)
    uses = sum(count for _, count in readers)
    if item.cost > CHEAP_COST and any(_is_serial(work, reader) for reader, _ in readers):
        return False
    if uses == 1:
        return repeats <= 1 or (_is_weight(work, item, readers[0][0]) and not work.blocks)
    return item.cost <= CHEAP_COST and distinct_loads <= 1 and uses <= CHEAP_USES and repeats <= 1


def _is_weight(work: Work, item: Item, reader: Item) -> bool:
    """Whether an item computes the weight of a product of few rows, which computes it once for all of them;
    or a weight from the graph's inputs that a product's kernel packs.
    """
    if isinstance(reader.body, Contraction):
        given = {*work.graph.inputs, *work.graph.constants}
        return all(read.buffer in given for read in item.reads)
    if not isinstance(reader.body, Reduction) or reader.body.product is None:
        return False
    return work.hint_product(item.sizes) * MOST_ROWS >= work.hint_product(reader.sizes)


def _is_rounded(read: Read) -> bool:
    return any(bool(expr.args) and expr.has(FloorDiv, Mod) for expr in read.index)


def _is_serial(work: Work, reader: Item) -> bool:
    """Whether the reader's innermost loop is serial: a scan along its memory."""
    body = reader.body
    if not isinstance(body, Scan):
        return False
    written = next(name for name in reader.writes if name is not None)
    return work.buffers[written].strides[body.dim] == 1
