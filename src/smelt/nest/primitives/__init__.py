"""Schedule primitives: each checks that it is legal, then returns a new kernel. Users and smelt's scheduler
call the same primitives.

Loops are named by their variables, which are unique in a kernel; stages by their names.
"""

from smelt.nest.primitives.ahead import precompute, tabulate, uniform_values
from smelt.nest.primitives.common import ScheduleError, inner_loop
from smelt.nest.primitives.kinds import (
    jam,
    not_jammed,
    not_parallel,
    not_vector,
    own_memory,
    parallelize,
    side_by_side,
    unroll,
    vectorize,
    without_jams,
)
from smelt.nest.primitives.loops import fuse, fuses_cleanly, partition, split
from smelt.nest.primitives.orders import interchange, reorder, tile
from smelt.nest.primitives.plain import flatten_accesses, hoist, prefetch
from smelt.nest.primitives.reductions import accumulate_in_lanes, cascade
from smelt.nest.primitives.turning import memories_of, not_turned, turn

__all__ = [
    "ScheduleError",
    "accumulate_in_lanes",
    "cascade",
    "flatten_accesses",
    "fuse",
    "fuses_cleanly",
    "hoist",
    "inner_loop",
    "interchange",
    "jam",
    "memories_of",
    "not_jammed",
    "not_parallel",
    "not_turned",
    "not_vector",
    "own_memory",
    "parallelize",
    "partition",
    "precompute",
    "prefetch",
    "reorder",
    "side_by_side",
    "split",
    "tabulate",
    "tile",
    "turn",
    "uniform_values",
    "unroll",
    "vectorize",
    "without_jams",
]
