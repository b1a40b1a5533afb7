"""Loop transformations of plain nests: merging, tiling, vectorization, parallelization.

Decisions only: every change is made by a primitive of `smelt.nest.primitives`, which checks that it is legal.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import torch
from sympy import Expr, Symbol

from smelt.config import Config
from smelt.nest.dependence import carried_updates
from smelt.nest.ir import (
    Accumulate,
    Advance,
    Block,
    Carry,
    For,
    Kernel,
    Let,
    LoopKind,
    Masked,
    SortRow,
    Stmt,
    Store,
    Update,
)
from smelt.nest.primitives import (
    ScheduleError,
    cascade,
    fuse,
    fuses_cleanly,
    inner_loop,
    interchange,
    memories_of,
    not_parallel,
    not_vector,
    parallelize,
    partition,
    split,
    tile,
    turn,
    vectorize,
)
from smelt.nest.tree import accesses, find, loops, needed, replace_loop, trip_count, walk, with_body
from smelt.ops import TABLE
from smelt.passes import Watch
from smelt.records import dataclass
from smelt.schedule.chains import in_one_chain
from smelt.schedule.fills import fills
from smelt.symbolic import size_hint
from smelt.symbolic.affine import coefficient, symbols_in

TILE_ROWS, TILE_COLUMNS = 16, 64
TRANSPOSED_ROWS = 256
"""Limit on the rows of a tile that is transposed in registers: each column is read that far in one go."""
CASCADE_TERMS = 4096
COLUMN_TERMS = 32
"""Terms of one accumulator if lanes are results: rounding errors grow faster than in sums over lanes."""
FEWEST_COLUMN_TERMS = 8
"""Terms from which on they are summed in two levels."""
BLOCK = 8192
GATHER_COST = 1.0
SCANNED_GATHER_COST = 3.0
"""Cost of a load if each lane scans a line of its own: every iteration uses another cache line for each lane.
"""
HORIZONTAL_COST = 12.0
SORT_COST = 20.0
"""Cost of one element of a sorted row."""
TAIL_ITERATIONS = 4
"""Limit on the cost of the masked tail of a vector loop, in iterations of the loop."""
FEW_ITERATIONS = 16
"""Iterations of a parallel loop that threads could not share evenly."""
WORTH_DIVIDING = 512
"""Cost of an iteration from which on an additional division does not matter."""
LINE_BYTES = 64
UNORDERED = ("max", "min", "any", "all", "argmax", "argmin")
"""Reductions whose results are the same in any order."""
LANES = 1024
"""Elements that a program of a GPU computes at once."""
WIDE_ITERATIONS = 32
"""Iterations of a vector loop from which on a wider tail does not matter."""


@dataclass(frozen=True, slots=True)
class Target:
    """The scheduler's description of the machine: bytes in a vector register, the short dtypes that it
    multiplies and adds itself, and the vector multiply-adds that it starts each cycle. ``blocks``: it is a
    GPU, whose programs compute blocks of lanes (`smelt.schedule.blocks`). ``device``: PyTorch's dispatch key
    of the calls that ATen runs. ``multiprocessors`` of a GPU; ``descriptors``: it copies tiles by descriptors
    (NVIDIA's from architecture 90 on). ``matrix_tiles``: it multiplies bfloat16 matrices in registers (AMX).
    ``registers``: the number of its vector registers, if not x86's.
    ``panels``: another target, whose packed panels of frozen weights this one reads too (packages).
    """

    vector_bytes: int
    dot_products: tuple[torch.dtype, ...] = ()
    multiply_adds: int = 1
    blocks: bool = False
    device: str = "CPU"
    multiprocessors: int = 1
    descriptors: bool = False
    matrix_tiles: bool = False
    registers: int = 0
    panels: Target | None = None

    @property
    def lanes(self) -> int:
        """float32 elements of a vector register."""
        return self.vector_bytes // 4

    @property
    def many_registers(self) -> bool:
        """Whether there are 32 vector registers, and not 16."""
        return self.vector_bytes >= 64 or self.registers >= 32

    @property
    def large_tiles(self) -> bool:
        """Whether register tiles use nearly all of 32 registers: two multiply-adds a cycle need more reuse of
        each loaded value.
        """
        return self.many_registers and self.multiply_adds > 1


@dataclass(frozen=True, slots=True)
class NestContext:
    """The target, and estimates of dynamic sizes: inputs of all passes of one nest."""

    config: Config
    target: Target
    hints: Mapping[Symbol, int]
    watch: Watch | None = None


def fuse_loops(kernel: Kernel, context: NestContext) -> Kernel:
    """Fuses perfectly nested loops where all indices stay simple."""
    return _Arranger(kernel, context).fused()


def cascade_sums(kernel: Kernel, context: NestContext) -> Kernel:
    """Sums long rows in two levels, so that rounding errors do not accumulate in one accumulator."""
    return _Arranger(kernel, context).cascaded()


def choose_loops(kernel: Kernel, context: NestContext) -> Kernel:
    """Chooses the loops that are tiled, vectorized and run in parallel, unless an earlier pass has."""
    if any(loop.kind is LoopKind.VECTOR for loop in loops(kernel.body)):
        return kernel
    return _Arranger(kernel, context).arranged()


class _Arranger:
    def __init__(self, kernel: Kernel, context: NestContext) -> None:
        self.kernel, self.hints = kernel, context.hints
        self.target, self.config = context.target, context.config

    def arranged(self) -> Kernel:
        for root in [stmt.var for stmt in self.kernel.body.stmts if isinstance(stmt, For)]:
            self._arrange_root(root)
        return self.kernel

    # -- sizes ----------------------------------------------------------------------------------------------

    def trips(self, loop: For) -> int:
        return max(self.hint(trip_count(loop)), 0)

    def hint(self, expr: Expr) -> int:
        known = dict(self.hints)
        for loop in loops(self.kernel.body):
            known.setdefault(loop.var, 0)
        return size_hint(expr, known)

    # -- passes ---------------------------------------------------------------------------------------------

    def fused(self) -> Kernel:
        fused = True
        while fused:
            fused = False
            for loop in loops(self.kernel.body):
                inner = inner_loop(loop)
                if inner is not None and fuses_cleanly(self.kernel, loop.var):
                    self.kernel, _ = fuse(self.kernel, [loop.var, inner.var], plain=True)
                    fused = True
                    break
        return self.kernel

    def _split(self, var: Symbol, factor: int) -> Symbol:
        """Splits a loop into blocks; returns the inner loop."""
        self.kernel, (_, inner) = split(self.kernel, var, [None, factor], plain=True)
        return inner

    def _peel(self, var: Symbol, count: int) -> Symbol:
        """Peels the iterations after the first ``count``; returns their loop."""
        self.kernel, (_, rest) = partition(self.kernel, var, [count, None], plain=True)
        return rest

    def _interchange(self, var: Symbol) -> None:
        """Interchanges a loop with independent iterations with the loop that is its body."""
        self.kernel = interchange(self.kernel, var, proved=True)

    def cascaded(self) -> Kernel:
        for loop in loops(self.kernel.body):
            if any(isinstance(inner, For) for inner in walk(loop.body)):
                continue
            if not self._sums_over(loop):
                continue
            outer = self._enclosing(loop.var)
            if self.trips(loop) >= FEWEST_COLUMN_TERMS and self._lanes_are_results(loop):
                self._split(loop.var, _column_block(self.trips(loop)))
                self.kernel = cascade(self.kernel, loop.var)
            elif self.trips(loop) > 4 * CASCADE_TERMS:
                self._split(loop.var, CASCADE_TERMS)
                self.kernel = cascade(self.kernel, loop.var)
            elif (
                outer is not None
                and inner_loop(outer) is not None
                and self._sums_over(outer)
                and self.trips(loop) * self.trips(outer) > 4 * CASCADE_TERMS
                and self.trips(loop) >= 64
            ):
                self.kernel = cascade(self.kernel, outer.var)
        return self.kernel

    def _lanes_are_results(self, loop: For) -> bool:
        """Whether memory is contiguous along a loop around this one: lanes are results then, with one sum
        each.
        """
        others = {other.var for other in loops(self.kernel.body)} - {loop.var}
        found = [
            (coefficient(index[0], loop.var), any(coefficient(index[0], other) == 1 for other in others))
            for _, index, is_store in accesses(loop.body)
            if not is_store
        ]
        return any(along for _, along in found) and not any(own == 1 for own, _ in found)

    def _sums_over(self, loop: For) -> bool:
        kinds = {s.name: s.kind for s in walk(self.kernel.body) if hasattr(s, "kind") and hasattr(s, "name")}
        carried = carried_updates(loop)
        return bool(carried) and all(kinds.get(update.acc) == "sum" for update in carried)

    def _enclosing(self, var: Symbol) -> For | None:
        for loop in loops(self.kernel.body):
            if any(isinstance(s, For) and s.var == var for s in loop.body.stmts):
                return loop
        return None

    def _arrange_root(self, var: Symbol) -> None:
        root = find(self.kernel.body, var)
        numbers = fills(root, memories_of(self.kernel))
        if numbers:
            self.kernel = with_body(self.kernel, replace_loop(self.kernel.body, var, lambda _: numbers))
            return
        work = self._work(root)
        chosen = self._transposed(root) if self.config.vectorize else []
        if self.config.vectorize and not chosen:
            chosen = [self._tile_for(root.var, vector_var) for vector_var in self._vector_loops(root)[1]]
        root = self._around(root.var)
        parallel = self.config.parallel and work >= self.config.parallel_grain
        if parallel and root.var in chosen and self._fits_one_block(root) and self._moves_inside(root.var, 1):
            root = self._around(root.var)
        if parallel and root.var in chosen and not (self.config.ordered and self._has_order(root)):
            block = self._block(self.trips(root), self._lanes(root))
            if _scans(root):
                line = self._line_step(root, self._lanes(root))
                block = -(-block // line) * line
            inner = self._split(root.var, block)
            chosen = [inner if v == root.var else v for v in chosen]
        for vector_var in chosen:
            loop = find(self.kernel.body, vector_var)
            if self.config.ordered and self._has_order(loop):
                self.kernel = in_one_chain(self.kernel, vector_var, self.target.vector_bytes)
            elif not_vector(loop) is None:
                self.kernel = vectorize(self.kernel, vector_var, self._step(loop), proved=True)
                self._turn(vector_var)
        if parallel:
            self._parallelize_from(root.var)

    def _parallelize_from(self, var: Symbol) -> None:
        """Parallelizes the outermost legal loop; a short one together with the loop inside it."""
        loop = find(self.kernel.body, var)
        if loop.kind is LoopKind.VECTOR:
            return
        if not_parallel(loop) is None:
            self.kernel = parallelize(self.kernel, var, proved=True)
            inner = inner_loop(loop)
            if inner is not None and inner.kind is LoopKind.SERIAL and self._shared_as_one(loop, inner):
                independent = not inner.begin.has(var) and not inner.end.has(var)
                if independent and not_parallel(inner) is None:
                    self.kernel = parallelize(self.kernel, inner.var, proved=True)
            return
        for stmt in loop.body.stmts:
            if isinstance(stmt, For) and self._work(stmt) >= self.config.parallel_grain:
                self._parallelize_from(stmt.var)

    def _shared_as_one(self, loop: For, inner: For) -> bool:
        """Whether threads share a loop and the one inside it as one: there are few iterations, or one is so
        expensive that computing its place in both costs nothing. Kernels of many sizes are equal then.
        """
        return self.trips(loop) < FEW_ITERATIONS or self._work(inner) >= WORTH_DIVIDING * self.trips(inner)

    def _fits_one_block(self, loop: For) -> bool:
        """Whether all of it fits the block of one thread, though it has inner loops that many threads could
        share.
        """
        trips = self.trips(loop)
        return len(self._perfect_chain(loop.var)) > 1 and trips <= self._block(trips, self._lanes(loop))

    def _block(self, trips: int, lanes: int) -> int:
        """Iterations of a vector loop that a thread takes at once: a few lines of memory. Few blocks are of
        equal size if possible, for load balance and to keep kernels of many sizes equal.
        """
        step = lanes * 4
        wanted = min(BLOCK, -(-trips // 16))
        if wanted > step:
            return -(-wanted // step) * step
        blocks = (step, step - lanes, step - 2 * lanes)
        return next((block for block in blocks if trips % block == 0 and trips > block), step)

    # -- tiling ---------------------------------------------------------------------------------------------

    def _tile_for(self, root: Symbol, var: Symbol) -> Symbol:
        """Tiles a nest whose vector loop strides through memory that is contiguous along an outer loop.

        Returns the loop that becomes the vector loop.
        """
        chain = self._perfect_chain(root)
        names = [loop.var for loop in chain]
        if var not in names[1:]:
            return var
        vector = chain[names.index(var)]
        if vector is not chain[-1] or self.trips(vector) < 2 * TILE_ROWS:
            return var
        for loop in chain[:-1]:
            if self.trips(loop) < 2 * TILE_ROWS or not self._strides_against(vector, loop.var):
                continue
            if not self._moves_inside(loop.var, len(chain) - 2 - names.index(loop.var)):
                continue
            columns = min(TILE_COLUMNS, int(vector.end)) if vector.end.is_Integer else TILE_COLUMNS
            self.kernel, _, within = tile(self.kernel, loop.var, TILE_ROWS, columns, proved=True)
            return within
        return var

    def _moves_inside(self, var: Symbol, times: int) -> bool:
        """Moves a loop so many levels inwards, if the interchanges are legal."""
        chain = self._perfect_chain(var)[: times + 1]
        if any(not_parallel(loop) is not None for loop in chain):
            return False
        for _ in range(times):
            self._interchange(var)
        return True

    def _transposed(self, root: For) -> list[Symbol]:
        """Reads along the rows, and transposes the values of one column for each lane in registers, if all
        loads are along the rows and the store is along the columns.

        Remainders of rows and columns have loops of their own. Returns the vector loops; none if the nest is
        not of that kind, or its sizes are unknown.
        """
        lanes = self.target.lanes
        *chain, columns = self._perfect_chain(root.var)
        for position, rows in enumerate(chain):
            if self._is_transposable(rows, columns, lanes) and self._moves_inside(
                rows.var, len(chain) - 1 - position
            ):
                return self._transpose_tiles(rows, columns, lanes)
        return []

    def _transpose_tiles(self, rows: For, columns: For, lanes: int) -> list[Symbol]:
        whole, whole_columns = (int(loop.end) // lanes * lanes for loop in (rows, columns))
        vectors = []
        if whole < int(rows.end):
            rest = self._peel(rows.var, whole)
            within = self._split(self._inside(rest), TILE_COLUMNS)
            self._interchange(rest)
            vectors.append(within)
        self._interchange(rows.var)
        if whole_columns < int(columns.end):
            rest = self._peel(columns.var, whole_columns)
            vectors.append(self._inside(rest))
        column = self._split(columns.var, lanes)
        self._interchange(column)
        length = max(n for n in range(lanes, TRANSPOSED_ROWS + 1, lanes) if whole % n == 0)
        within = self._split(rows.var, length)
        self._interchange(columns.var)
        return [within, *vectors]

    def _turn(self, var: Symbol) -> None:
        """Lets the columns that the lanes of a loop compute be stored as rows."""
        *before, columns = find(self.kernel.body, var).body.stmts
        if isinstance(columns, For) and not any(isinstance(stmt, (For, Store)) for stmt in before):
            with suppress(ScheduleError):
                self.kernel = turn(self.kernel, columns.var)

    def _inside(self, var: Symbol) -> Symbol:
        """The loop that is the whole body of another one."""
        loop = inner_loop(find(self.kernel.body, var))
        assert loop is not None
        return loop.var

    def _is_transposable(self, rows: For, columns: For, lanes: int) -> bool:
        """Whether loads are along the rows, or uniform over them, and one store is along the columns; all of
        four bytes, and at least a vector of each.
        """
        for loop in (rows, columns):
            if not loop.end.is_Integer or int(loop.end) < lanes or not_parallel(loop) is not None:
                return False
        sizes = {param.name: param.dtype.itemsize for param in self.kernel.params}
        masked = any(isinstance(stmt, Masked) for stmt in columns.body.stmts)
        if masked or _only_store(columns.body) is None or self._lanes(columns) != lanes:
            return False
        loaded = set()
        for buffer, index, is_store in accesses(columns.body):
            down, along = (coefficient(index[0], loop.var) for loop in (rows, columns))
            if is_store:
                transposes = along == 1 and down not in (None, 0, 1)
            else:
                transposes = down in (0, 1)
                loaded.add(down)
            if not transposes or sizes.get(buffer) != 4:
                return False
        return 1 in loaded

    def _strides_against(self, vector: For, other: Symbol) -> bool:
        for _, index, _ in accesses(vector.body):
            own, crossing = coefficient(index[0], vector.var), coefficient(index[0], other)
            if crossing == 1 and own is not None and own not in (0, 1):
                return True
        return False

    def _around(self, var: Symbol) -> For:
        """The outermost loop around a loop, or the loop itself."""
        tops = [stmt for stmt in self.kernel.body.stmts if isinstance(stmt, For)]
        return next(top for top in tops if any(loop.var == var for loop in loops(Block((top,)))))

    def _perfect_chain(self, var: Symbol) -> list[For]:
        loop: For | None = find(self.kernel.body, var)
        chain = []
        while loop is not None:
            chain.append(loop)
            loop = inner_loop(loop)
        return chain

    # -- vectorization ---------------------------------------------------------------------------------------

    def _vector_loops(self, loop: For) -> tuple[float, list[Symbol]]:
        """(cost of one run of the loop, loops to vectorize): the best of this loop, inner loops, none."""
        trips = self.trips(loop)
        own = sum(self._scalar_cost(stmt) for stmt in loop.body.stmts if not isinstance(stmt, For))
        inner_cost, inner_vars = 0.0, []
        for stmt in loop.body.stmts:
            if isinstance(stmt, For):
                cost, variables = self._vector_loops(stmt)
                inner_cost += cost
                inner_vars += variables
        best, chosen = trips * (own + inner_cost), inner_vars
        lanes = self._lanes(loop)
        if self.config.ordered:
            if self._has_order(loop):
                return best, [loop.var] if self._is_along_memory(loop) else inner_vars
            if any(self._has_order(find(loop.body, var)) for var in inner_vars):
                return best, inner_vars
        if lanes > 1 and not_vector(loop) is None:
            whole, tail = divmod(trips, lanes)
            counted = whole + (min(tail, TAIL_ITERATIONS) if whole else tail)
            gather = SCANNED_GATHER_COST if _scans(loop) else GATHER_COST
            cost = self._vector_cost(loop.body, loop.var, lanes, gather * lanes) * counted
            cost += HORIZONTAL_COST * len(carried_updates(loop))
            if cost < best:
                best, chosen = cost, [loop.var]
        return best, chosen

    def _has_order(self, loop: For) -> bool:
        """Whether a loop sums, so that its lanes decide the order of the terms."""
        made = {s.name: s for s in walk(self.kernel.body) if isinstance(s, Accumulate)}
        found = [made[update.acc] for update in carried_updates(loop)]
        return any(each.dtype.is_floating_point and each.kind not in UNORDERED for each in found)

    def _is_along_memory(self, loop: For) -> bool:
        """Whether the lanes of an innermost loop read adjacent elements: where sums have one order, nothing
        else decides whether it is vectorized.
        """
        if any(isinstance(stmt, For) for stmt in walk(loop.body)) or not_vector(loop) is not None:
            return False
        trips, summed = trip_count(loop), [update.value for update in carried_updates(loop)]
        read = [access for value in summed for access in accesses(needed(loop.body, value))]
        steps = {coefficient(index[0], loop.var) for _, index, _ in read}
        return steps <= {0, 1} and 1 in steps and not (trips.is_Integer and trips < self.target.lanes)

    def _scalar_cost(self, stmt: Stmt) -> float:
        if isinstance(stmt, Let):
            if stmt.op in TABLE:
                return float(TABLE[stmt.op].cost)
            return 1.0 if stmt.op in ("load", "to_dtype", "indirect_index") else 0.1
        if isinstance(stmt, Masked):
            return 2.0 + sum(self._scalar_cost(inner) for inner in stmt.body.stmts)
        if isinstance(stmt, For):
            return self.trips(stmt) * sum(self._scalar_cost(inner) for inner in stmt.body.stmts)
        if isinstance(stmt, SortRow):
            return SORT_COST * max(self.hint(stmt.length), 0)
        return 1.0 if isinstance(stmt, (Store, Update, Advance)) else 0.0

    def _vector_cost(self, block: Block, var: Symbol, lanes: int, gather: float) -> float:
        """Cost of an iteration of a vector loop over ``var``; a gather costs ``gather``."""
        total = 0.0
        varying = {var} | {s.index for s in walk(block) if isinstance(s, Let) and s.index is not None}
        for stmt in block.stmts:
            if isinstance(stmt, For):
                total += self.trips(stmt) * self._vector_cost(stmt.body, var, lanes, gather)
            elif isinstance(stmt, Masked):
                total += 2.0 + 2.0 * self._vector_cost(stmt.body, var, lanes, gather)
            elif isinstance(stmt, Let) and stmt.op == "load":
                total += self._access_cost(stmt.args[1], var, varying, gather)
            elif isinstance(stmt, Store):
                total += 1.5 * self._access_cost(stmt.index, var, varying, gather)
            else:
                total += self._scalar_cost(stmt)
        return total

    def _access_cost(
        self, index: tuple[Expr, ...], var: Symbol, varying: set[Symbol], gather: float
    ) -> float:
        if symbols_in(index[0]).isdisjoint(varying):
            return 0.5
        return 1.0 if coefficient(index[0], var) == 1 else gather

    def _step(self, loop: For) -> int:
        """Lanes of a vector loop: two adjacent registers if it is long and its memory contiguous, which hides
        latencies.

        The second one's operations fill the gaps that the latencies of the first one's leave.
        """
        lanes, trips = self._lanes(loop), self.trips(loop)
        if _scans(loop):
            return self._line_step(loop, lanes)
        if any(isinstance(stmt, (For, Masked)) for stmt in walk(loop.body)):
            return lanes
        if any(coefficient(index[0], loop.var) not in (0, 1) for _, index, _ in accesses(loop.body)):
            return lanes
        even = trips % (2 * lanes) == 0 or trips >= WIDE_ITERATIONS * lanes
        return 2 * lanes if even and trips >= 4 * lanes else lanes

    def _line_step(self, loop: For, lanes: int) -> int:
        """Lanes for parallel scans of lines: a cache line, so that it is fetched once."""
        sizes = {param.name: param.dtype.itemsize for param in self.kernel.params}
        touched = [(sizes.get(buffer), index[0]) for buffer, index, _ in accesses(loop.body)]
        if any(size is None or coefficient(index, loop.var) not in (0, 1) for size, index in touched):
            return lanes
        wanted = LINE_BYTES // min((size for size, _ in touched if size), default=LINE_BYTES)
        return max(lanes, wanted) if self.trips(loop) >= wanted else lanes

    def _lanes(self, loop: For) -> int:
        """Lanes for a loop: the number of its widest elements in a vector register."""
        widest = 4
        varying: set[str] = set()
        symbols: set[Symbol] = {loop.var}
        for stmt in walk(loop.body):
            if isinstance(stmt, Let) and _varies(stmt, varying, symbols):
                varying.add(stmt.name)
                if stmt.index is not None:
                    symbols.add(stmt.index)
                widest = max(widest, stmt.dtype.itemsize)
            elif isinstance(stmt, Masked):
                varying.add(stmt.name)
                widest = max(widest, stmt.dtype.itemsize)
        return self.target.vector_bytes // widest

    def _work(self, loop: For) -> float:
        return self._scalar_cost(loop)


def _column_block(terms: int) -> int:
    """Terms of a column that are summed first: never all, nor a divisor of all, so that kernels of many sizes
    are equal.
    """
    block = min(COLUMN_TERMS, -(-terms // 2))
    return block + (terms % block == 0)


def _only_store(block: Block) -> Store | None:
    """The only store of a block without loops. None: there are more, or it has indirect indices, so that
    iterations would each need an index symbol of their own.
    """
    inside = list(walk(block))
    kinds = all(isinstance(stmt, (Let, Masked, Store)) for stmt in inside)
    looks_up = any(isinstance(stmt, Let) and stmt.index is not None for stmt in inside)
    stores = [stmt for stmt in inside if isinstance(stmt, Store)]
    if not kinds or looks_up or len(stores) != 1 or stores[0].mode is not None:
        return None
    return stores[0]


def _scans(loop: For) -> bool:
    """Whether each lane of the loop would carry a value of its own."""
    return any(isinstance(stmt, Carry) for stmt in walk(loop.body))


def _varies(stmt: Let, varying: set[str], symbols: set[Symbol]) -> bool:
    """Whether a value differs between lanes (a uniform value stays a scalar)."""
    exprs = stmt.args[1] if stmt.op == "load" else stmt.args[:1] if stmt.op == "index_expr" else ()
    if any(not symbols_in(expr).isdisjoint(symbols) for expr in exprs):
        return True
    return any(isinstance(arg, str) and arg in varying for arg in stmt.args)
