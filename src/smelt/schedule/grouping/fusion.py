"""Fusion: the items that share a loop nest, and the outer loops that they share.

A group's ``prefix`` is the outer loops that all its items run in; each item goes on with inner loops of its
own, in segments one after another (`smelt.schedule.nests`). A reader may join its producer's group if every
iteration of the shared loops reads only elements that the same iteration has written: the coordinates of its
reads begin with the loop variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sympy import Expr, Symbol

from smelt.loops.dependencies import Read, bound_symbols
from smelt.loops.ir import (
    Attention,
    AttentionGradients,
    Check,
    Contraction,
    Fold,
    Host,
    Native,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
)
from smelt.records import dataclass, field
from smelt.schedule.grouping.items import SPACE, Item, Work, extents_of, in_space, natural_vars, substitute
from smelt.schedule.loops import LANES
from smelt.symbolic import free_symbols, numel, refine, reshape_index, same
from smelt.symbolic.index import divide, simplify

MAX_BUFFERS = 48
MAX_ITEMS = 64
MAX_COST = 1500
ENOUGH_PARALLEL = 8
SMALL_WORK = 4096
ENOUGH_PROGRAMS = 4096
"""Programs from which on a GPU is busy."""
MOST_SCAN_COST = 4
"""Limit on the cost (in float additions) of an item that shares a scan's serial loop."""


@dataclass(slots=True)
class Segment:
    """Items that run in one loop nest inside the prefix; ``sizes`` are its loops."""

    sizes: tuple[Expr, ...]
    items: list[Item] = field(default_factory=list)


@dataclass(slots=True)
class Group:
    """The items of one kernel; a computation between kernels has one item and no ``segments``.

    ``product``: the contraction whose result the items process tile by tile (or the only item itself).
    """

    prefix: tuple[Expr, ...]
    items: list[Item] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    writes: dict[str, list[Item]] = field(default_factory=dict)
    cost: int = 0
    product: Item | None = None

    @property
    def access_order(self) -> str:
        """The group's access order: the first of its items' that is not ``rows``."""
        return next((item.access_order for item in self.items if item.access_order != "rows"), "rows")

    @property
    def is_extern(self) -> bool:
        return isinstance(self.items[0].body, Host)

    @property
    def all_items(self) -> list[Item]:
        """The items, and the product if it is none of them."""
        return self.items if self.product in (None, *self.items) else [self.product, *self.items]  # type: ignore[list-item]

    def copy(self) -> Group:
        """A group to try placements on."""
        writes = {name: list(writers) for name, writers in self.writes.items()}
        return Group(self.prefix, list(self.items), list(self.segments), set(self.reads), writes, self.cost)

    def space(self, item: Item) -> tuple[Expr, ...]:
        """The sizes of the loops of ``item``: the prefix, then its segment's."""
        return (*self.prefix, *self.segment_of(item).sizes)

    def segment_of(self, item: Item) -> Segment:
        return next(segment for segment in self.segments if item in segment.items)


def fuse(work: Work, enabled: bool = True) -> list[Group]:
    """Fuses items into groups, in an order in which they can run."""
    groups: list[Group] = []
    written_at: dict[str, int] = {}
    read_at: dict[str, int] = {}
    bound_at: dict[str, int] = {}
    readers = _readers(work)
    for item in work.items:
        earliest = max(_earliest_position(work, item, written_at, read_at), _symbols_known(item, bound_at))
        if isinstance(item.body, Host):
            position = len(groups)
            groups.append(Group((), [item], [], set(), {name: [item] for name in item.writes if name}))
        else:
            partners = _read_together(item, readers)
            position = _join(work, groups, item, max(earliest, 0), partners) if enabled else -1
            if position < 0:
                position = len(groups)
                groups.append(_singleton(item))
        for name in item.writes:
            if name is not None:
                written_at[name] = max(position, written_at.get(name, -1))
        for name in reads_of(work, item):
            read_at[name] = max(position, read_at.get(name, -1))
        bound_at.update((symbol.name, position) for symbol in settles(item))
    return groups


def _readers(work: Work) -> dict[str, list[Item]]:
    """The readers of each buffer."""
    readers: dict[str, list[Item]] = {}
    for item in work.items:
        for name in dict.fromkeys(read.buffer for read in item.reads):
            readers.setdefault(name, []).append(item)
    return readers


def _read_together(item: Item, readers: dict[str, list[Item]]) -> set[str]:
    """The other buffers that the readers of an item's output read, if they may share a nest."""
    found = (reader for name in item.writes if name is not None for reader in readers.get(name, ()))
    partners = [reader for reader in found if not isinstance(reader.body, (*_ALONE, Host))]
    return {read.buffer for reader in partners for read in reader.reads}


def settles(item: Item) -> Iterable[Symbol]:
    """The sizes that the item defines or checks: nodes that use them come after it."""
    body = item.node.body
    return body.condition.free_symbols if isinstance(body, Check) else bound_symbols(item.node)


def _symbols_known(item: Item, bound_at: dict[str, int]) -> int:
    """The position of the last node that binds a size which the item needs."""
    if not bound_at:
        return -1
    exprs = [*item.sizes, *item.exprs, *(expr for read in item.reads for expr in read.index)]
    return max((bound_at.get(symbol.name, -1) for symbol in free_symbols(exprs)), default=-1)


def reads_of(work: Work, item: Item) -> set[str]:
    """Buffers that must exist before the item runs."""
    names = {read.buffer for read in item.reads}
    if isinstance(item.body, Scatter):
        names.add(item.body.base)
    return names


def _earliest_position(work: Work, item: Item, written_at: dict[str, int], read_at: dict[str, int]) -> int:
    """The first group position that the item's dependencies allow."""
    earliest = max((written_at.get(name, -1) for name in reads_of(work, item)), default=-1)
    for name in item.writes:
        if name is not None:  # memory that is written again: after all that read or wrote it
            earliest = max(earliest, written_at.get(name, -1), read_at.get(name, -1))
    return earliest


def _singleton(item: Item) -> Group:
    prefix = item.ordered_sizes[: item.outer]
    inner = item.ordered_sizes[item.outer :]
    group = Group(prefix, [item], [Segment(inner, [item])])
    account(group, item)
    return group


def account(group: Group, item: Item) -> None:
    group.reads |= {read.buffer for read in item.reads}
    for name in item.writes:
        if name is not None:
            group.writes.setdefault(name, []).append(item)
    group.cost += item.cost


ALONE: dict[type, str] = {
    Contraction: "a matrix product or convolution",
    Attention: "attention",
    AttentionGradients: "the gradients of attention",
    Scatter: "a scatter",
    Sort: "a sort",
    Native: "a kernel that a person wrote",
}
"""Bodies that are alone in their nest, in words."""
_ALONE = tuple(ALONE)


def _join(work: Work, groups: list[Group], item: Item, earliest: int, partners: set[str]) -> int:
    """Puts the item into the best group at or after ``earliest``; its position, or -1 if no group fits.

    If it has no buffer in common with any group, a group that writes some of ``partners`` is taken: the
    readers of both can join as well.
    """
    best, best_score, best_plan = -1, 0.0, None
    if isinstance(item.body, _ALONE):
        return -1
    first = max(earliest, len(groups) - 24)
    for position in range(len(groups) - 1, first - 1, -1):
        group = groups[position]
        if group.is_extern or any(isinstance(member.body, _ALONE) for member in group.items):
            continue
        score = _benefit(work, group, item) or 0.5 * (len(partners & set(group.writes)) > 0)
        if score <= best_score:
            continue
        plan = placement(work, group, item)
        if not isinstance(plan, str):
            best, best_score, best_plan = position, score, plan
    if best_plan is not None:
        groups[best].prefix, groups[best].segments = best_plan
        groups[best].items.append(item)
        account(groups[best], item)
    return best


def _benefit(work: Work, group: Group, item: Item) -> float:
    """The bytes that fusion saves: reads that the group writes or, if larger than a number, reads in equal
    loops; if loops have to be split to agree, the two read at different places.
    """
    buffers, reads = work.buffers, {read.buffer for read in item.reads}
    alone = work.hint_product(item.sizes) == 1
    also_read = {name for name in reads & group.reads if alone or work.hint_product(buffers[name].shape) > 1}
    if also_read and not _loops_agree(group, item):
        also_read.clear()
    shared = reads & set(group.writes) | also_read
    saved = sum(work.hint_product(buffers[name].shape) * buffers[name].dtype.itemsize for name in shared)
    targets = {name for name in item.writes if name in group.reads}
    return float(saved) + len(targets)


def _loops_agree(group: Group, item: Item) -> bool:
    """Whether the outer loops of one are those of the other, at most split."""
    outer = item.ordered_sizes[: item.outer]
    prefix, *rest = common_prefix(group.prefix, outer)
    return len(prefix) + max(map(len, rest)) <= max(len(group.prefix), len(outer))


Placement = tuple[tuple[Expr, ...], list[Segment]]


def placement(work: Work, group: Group, item: Item) -> Placement | str:
    """The group's new prefix and segments with ``item`` in it, or why it may not or should not join."""
    if len(group.items) >= MAX_ITEMS or group.cost + item.cost > MAX_COST:
        return f"the nest would be too large (limits: {MAX_ITEMS} computations, {MAX_COST} operations)"
    if len(group.reads | set(group.writes) | {r.buffer for r in item.reads}) > MAX_BUFFERS:
        return f"the nest would use more than {MAX_BUFFERS} buffers"
    if not _same_access_order(group, item):
        return "one goes along rows, the other along columns"
    shared = common_prefix(group.prefix, item.ordered_sizes[: item.outer])
    prefix, group_rest, item_rest = shared
    item_inner = (*item_rest, *item.ordered_sizes[item.outer :])
    spaces = {id(m): (*prefix, *group_rest, *group.segment_of(m).sizes) for m in group.items}
    spaces[id(item)] = (*prefix, *item_inner)
    depth = _legal_depth(group, item, spaces, len(prefix))
    moved = prefix[depth:]
    prefix = prefix[:depth]
    segments = [
        Segment((*moved, *group_rest, *segment.sizes), list(segment.items)) for segment in group.segments
    ]
    inner = (*moved, *item_inner)
    place = _segment_for(group, item, prefix, segments, inner, spaces, work.ordered)
    if any(is_product(member) for member in (item, *group.items)):
        if not _is_epilogue(group, item, prefix):
            return "only what runs once for each result of a product shares its nest"
    elif not _worthwhile(work, group, item, prefix, place, segments, inner):
        return "the loops that they could share have too few iterations for threads"
    if place is None:
        segments.append(Segment(inner, [item]))
    else:
        number, sizes = place
        segments[number] = Segment(sizes, [*segments[number].items, item])
    return prefix, segments


def is_product(item: Item) -> bool:
    """Whether an item is the sums of a matrix product."""
    return isinstance(item.body, Reduction) and item.body.product is not None


def _is_epilogue(group: Group, item: Item, prefix: tuple[Expr, ...]) -> bool:
    """Whether a pointwise item runs once for each result of the group's product."""
    products = [member for member in group.items if is_product(member)]
    if not isinstance(item.body, Pointwise) or len(products) != 1:
        return False
    (product,) = products
    return same(numel(prefix), numel(product.ordered_sizes[: product.outer])) and same(
        numel(prefix), numel(item.sizes)
    )


def common_prefix(
    left: Sequence[Expr], right: Sequence[Expr]
) -> tuple[tuple[Expr, ...], tuple[Expr, ...], tuple[Expr, ...]]:
    """The longest common prefix of two shapes after splitting their dimensions, and the rest of each.

    >>> import sympy
    >>> n = sympy.Integer
    >>> common_prefix([n(6), n(5)], [n(2), n(3), n(7)])
    ((2, 3), (5,), (7,))
    """
    a, b = list(left), list(right)
    prefix: list[Expr] = []
    while a and b:
        if same(a[0], b[0]):
            prefix.append(a.pop(0))
            b.pop(0)
        elif (ratio := divide(a[0], b[0])) is not None and ratio != 1:
            prefix.append(b.pop(0))
            a[0] = ratio
        elif (ratio := divide(b[0], a[0])) is not None and ratio != 1:
            prefix.append(a.pop(0))
            b[0] = ratio
        else:
            break
    return tuple(prefix), tuple(a), tuple(b)


def _legal_depth(group: Group, item: Item, spaces: dict[int, tuple[Expr, ...]], limit: int) -> int:
    """The number of shared outer loops that keep every dependency between group and item within one
    iteration.
    """
    depth = limit
    for coordinates in _dependencies(group, item, spaces):
        matched = 0
        while matched < min(depth, len(coordinates)) and coordinates[matched] == SPACE[matched]:
            matched += 1
        depth = min(depth, matched)
    return depth


def _dependencies(group: Group, item: Item, spaces: dict[int, tuple[Expr, ...]]) -> list[list[Expr]]:
    """For each access that ties ``item`` to a member, the member's coordinates in terms of the item's loop
    variables.
    """
    found = []
    for read in item.reads:
        for member in group.writes.get(read.buffer, ()):
            found.append(coordinates_of(member, spaces[id(member)], read, item, spaces[id(item)]))
    for name in item.writes:
        if name is None:
            continue
        for member in group.items:
            for read in member.reads:
                if read.buffer == name:  # the member must have read before the item writes
                    found.append(coordinates_of(item, spaces[id(item)], read, member, spaces[id(member)]))
    return found


def coordinates_of(
    writer: Item, writer_space: Sequence[Expr], read: Read, reader: Item, reader_space: Sequence[Expr]
) -> list[Expr]:
    """The coordinates in ``writer_space`` of the element that ``read`` takes, over the reader's loop
    variables.
    """
    variables = SPACE[: len(reader_space)]
    extents = extents_of(variables, reader_space)
    natural = natural_vars(reader.sizes)
    values = in_space(reader, reader_space, variables)
    mapping = {v: value for v, value in zip(natural, values) if v in SPACE}
    index = [substitute(expr, mapping, extents) for expr in read.index]
    coordinates = writer.written_coordinates(index)
    outer_sizes = writer.written_sizes
    space = writer_outer_space(writer, writer_space)
    if tuple(space) == tuple(outer_sizes):
        return list(coordinates)
    result = reshape_index(space, outer_sizes, coordinates, extents)
    return [simplify(expr, extents) for expr in result]


def writer_outer_space(writer: Item, space: Sequence[Expr]) -> tuple[Expr, ...]:
    """The leading part of ``space`` that corresponds to the writer's loops over written elements."""
    if not isinstance(writer.body, (Reduction, Fold)):
        return tuple(space)
    return tuple(space[: loops_outside(writer, space)])


def loops_outside(item: Item, space: Sequence[Expr]) -> int:
    """The number of leading loops of ``space`` outside the loops that the item reduces or scans."""
    return len(space) - _matching_tail(space, item.ordered_sizes[item.outer :])


def _matching_tail(space: Sequence[Expr], reduced: Sequence[Expr]) -> int:
    """The number of trailing loops of ``space`` that form the reduced sizes (which fusion may have split,
    never merged).
    """
    count = 0
    rest: list[Expr] = list(reduced)
    for size in reversed(space):
        if not rest:
            break
        count += 1
        if same(size, rest[-1]):
            rest.pop()
            continue
        ratio = divide(rest[-1], size)
        assert ratio is not None, "a loop of a reduction's space does not divide its reduced size"
        rest[-1] = ratio
    return count


def _segment_for(
    group: Group,
    item: Item,
    prefix: tuple[Expr, ...],
    segments: list[Segment],
    inner: tuple[Expr, ...],
    spaces: dict[int, tuple[Expr, ...]],
    ordered: bool,
) -> tuple[int, tuple[Expr, ...]] | None:
    """The first segment that the item may run in, with its new sizes; None if it needs one of its own."""
    ties: list[tuple[int, Item, Item, Read]] = []
    numbers = {id(m): k for k, segment in enumerate(segments) for m in segment.items}
    for read in item.reads:
        for member in group.writes.get(read.buffer, ()):
            ties.append((numbers[id(member)], member, item, read))
    for member in group.items:
        for read in member.reads:
            if read.buffer in item.writes:
                ties.append((numbers[id(member)], item, member, read))
    start = max((number for number, *_ in ties), default=0)
    for number in range(start, len(segments)):
        sizes = _merged_sizes(segments[number].sizes, inner)
        items = [*segments[number].items, item]
        if sizes is None or not _scans_compatible(items) or (ordered and not _split_alike(items)):
            continue
        space = (*prefix, *sizes)
        together = [(writer, reader, read) for n, writer, reader, read in ties if n == number]
        if all(
            len(writer_outer_space(writer, space)) == len(space)
            and _is_point(coordinates_of(writer, space, read, reader, space))
            for writer, reader, read in together
        ):
            return number, sizes
    return None


def _scans_compatible(items: Sequence[Item]) -> bool:
    """Whether the scans among items permit shared innermost loops: along rows, a scan's loop is serial, and
    so is every item in it. A fold shares its loop with no other item.
    """
    if any(isinstance(item.body, Fold) for item in items):
        return len(items) == 1
    if not any(isinstance(item.body, Scan) and item.access_order != "columns" for item in items):
        return True
    return all(isinstance(item.body, Scan) or item.cost <= MOST_SCAN_COST for item in items)


def _split_alike(items: Sequence[Item]) -> bool:
    """Whether the reductions among items are all sums, which are split to be more exact, or none is."""
    return len({item.body.kind == "sum" for item in items if isinstance(item.body, Reduction)}) < 2


def _merged_sizes(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    if left == right:
        return left
    refined = refine(left, right)
    return None if refined is None else tuple(refined)


def _same_access_order(group: Group, item: Item) -> bool:
    """Whether the item's access order fits the group's: rows along the inner loops, columns along the outer.

    A reduction over columns is vectorised over its results; in a nest with others its accesses would be
    strided.
    """
    if item.access_order == group.access_order or len(item.order) < 2:
        return True
    if "columns" in (item.access_order, group.access_order):
        return (
            item.outer == len(item.order)
            and item.access_order == "rows"
            and len(item.order) <= len(group.prefix)
        )
    return not any(isinstance(member.body, (Reduction, Scan, Fold)) for member in (item, *group.items))


def _programs(work: Work, sizes: Sequence[Expr], items: Sequence[Item]) -> int:
    """The programs of a GPU that these loops are: one for each iteration around a row, or for many iterations
    without rows.
    """
    count = work.hint_product(sizes)
    rows = any(isinstance(item.body, (Reduction, Scan, Fold)) for item in items)
    return count if rows else -(-count // LANES)


def _is_point(coordinates: Sequence[Expr]) -> bool:
    """Whether the coordinates are the reader's own loop variables: the element was just written."""
    return all(expr == SPACE[d] for d, expr in enumerate(coordinates))


def _worthwhile(
    work: Work,
    group: Group,
    item: Item,
    prefix: tuple[Expr, ...],
    place: tuple[int, tuple[Expr, ...]] | None,
    segments: list[Segment],
    inner: tuple[Expr, ...],
) -> bool:
    """Whether the fused nest keeps enough parallel iterations in its outer loops."""
    if place is not None and len(segments) == 1:
        return True
    shared = work.hint_product(prefix)
    if work.blocks:
        before = max(
            _programs(work, group.prefix, group.items),
            _programs(work, item.ordered_sizes[: item.outer], [item]),
        )
        return shared >= min(before, ENOUGH_PROGRAMS)
    if shared >= ENOUGH_PARALLEL * 8:
        return True
    total = max(
        [work.hint_product((*prefix, *segment.sizes)) for segment in segments]
        + [work.hint_product((*prefix, *inner))]
    )
    if total <= SMALL_WORK:
        return True
    own = work.hint_product((*prefix, *inner))
    if own <= SMALL_WORK and shared == work.hint_product(group.prefix):
        return True
    before = min(work.hint_product(group.prefix), work.hint_product(item.ordered_sizes[: item.outer]))
    if shared >= ENOUGH_PARALLEL and before <= shared * 4:
        return True
    return shared >= max(before, 2) or (place is not None and shared >= before)
