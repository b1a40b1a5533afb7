"""Mode ``max``: contractions and attentions are measured once, in our kernel and by ATen, and the result is
cached.

First the program is compiled by the rule, and its own kernels, with their fused epilogues, are measured
against ATen's calls. If they are slower, or the rule has chosen ATen and a kernel of our own could compute
it, the contraction is scheduled alone, natively and as ATen's call, and these two are measured. All run on
random operands, alternating, and the contractions of a graph alternate too, so that the caches are as cold as
in a model: as many at a time as the memory limit permits. An entry of the cache (`smelt.runtime.cache`) holds
both times, by machine, compiler, torch, smelt, number of threads and the call's description.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import sympy
import torch
from sympy import Symbol
from torch.utils._python_dispatch import _disable_current_modes

from smelt import logs
from smelt.codegen.cpp import print_unit
from smelt.config import Config
from smelt.errors import CacheError
from smelt.loops.dependencies import analyze, views_in
from smelt.loops.ir import Attention, Attentions, Buffer, Contractions, Graph, Node, StridedView
from smelt.nest.ir import Argument, Run
from smelt.runtime import executor, library
from smelt.runtime.cache import Cache, key_of
from smelt.runtime.library import CompileJob, Library
from smelt.runtime.plan import Plan
from smelt.runtime.toolchain import Toolchain
from smelt.schedule import Choose, Scheduled, Target, schedule
from smelt.schedule.graph.choice import contractions, described
from smelt.schedule.graph.constants import frozen_buffers
from smelt.schedule.graph.contractions import has_nest, is_matrix_product, worth_it
from smelt.schedule.products.operands import Product, strides_in_order
from smelt.schedule.products.split_dimensions import product_of
from smelt.schedule.tilings import Tiles
from smelt.symbolic import free_symbols, numel, size_hint

SECONDS_EACH = 0.02
"""Measuring time of each contraction; four times as long if it had few runs (a busy machine)."""
LEAST_RUNS, ENOUGH_RUNS, MOST_RUNS = 3, 6, 100
CLEAR = 1.25
"""Ratio of times for which `LEAST_RUNS` suffice."""
MARGIN = 1.2
"""Ratio of times needed to overrule the rule: times are noisy, and adjacent kernels are fused with ours and
have its layouts (docs/benchmarks.md).
"""
LEAST_WORK = 2**17
"""Multiplications below which a measurement does not pay: the rule decides."""
MOST_BYTES = 2**30
"""Size of the operands of one contraction beyond which the rule decides."""
BYTES_AT_A_TIME = 2**24
"""Bytes of the operands of alternating contractions: more than second-level caches, and small next to a
model. More would raise the peak memory of a first training step.
"""
PATIENCE_SECONDS = 1.0
"""The time after which a progress message is logged."""
PREFIX, FILE = "choice-", "choice.json"

Pair = tuple[Callable[[], Any], Callable[[], Any]]
"""Two ways to compute the same."""
Prepared = tuple[int, Callable[[], Pair]]
"""A pair to be made, and the size of its operands in bytes."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a contraction: in our kernel (if it is faster, with its fused epilogue), and in ATen's
    call. On a GPU ``tiles`` are those of the fastest kernel, and ``lost`` the ones that gave no result, with
    the reason; if that are all, ``native`` is infinite.
    """

    native: float
    aten: float
    tiles: Tiles | None = None
    lost: tuple[tuple[str, str], ...] = ()


class Measurements:
    """The measurements on this machine with this configuration."""

    def __init__(self, config: Config, target: Target, store: Cache, machine: Sequence[str]) -> None:
        """``machine``: what measurements depend on."""
        self.config = replace(config, clocks=False, verify=False, keep_text=False)
        self.target, self.store = target, store
        self.machine = (torch.__version__, self.config.key(), *machine)
        self.known: dict[str, Timing] = {}
        self.trials: dict[str, Trial] = {}
        """Contractions without a measurement; they are measured once the program is compiled by the rule."""
        self._frozen: tuple[Graph, frozenset[str]] | None = None

    def look_up(self, graph: Graph) -> None:
        """Looks up the contractions and attentions of the graph for which there is a choice."""
        for node, body, own in contractions(graph):
            key = described(body, own, self.frozen(own))
            if key in self.known or key in self.trials:
                continue
            found = self._remembered(key)
            if found is not None:
                self.known[key] = found
                continue
            product = body if isinstance(body, Attentions) else product_of(body, own, self.frozen(own))
            if product is not None and self.is_possible(product, own) and _worth_measuring(product, own):
                self.trials[key] = Trial(node, body, own, product, self.frozen(own))

    def is_possible(self, product: Product | Attentions, graph: Graph) -> bool:
        """Whether a kernel of ours could compute it."""
        return has_nest(product, graph, self.target)

    @property
    def unknown(self) -> dict[str, Trial]:
        """The contractions that are still to be measured."""
        return {key: trial for key, trial in self.trials.items() if key not in self.known}

    def choose(self, product: Product | Attentions, graph: Graph, target: Target) -> bool | Tiles:
        """The decision of `smelt.schedule.Choose`, by measured times or by a rule."""
        raise NotImplementedError

    def timing(self, product: Product | Attentions, graph: Graph) -> Timing | None:
        """The times of a product or an attention, if they are known."""
        body = product.body if isinstance(product, Product) else product
        return self.known.get(described(body, graph, self.frozen(graph)))

    def frozen(self, graph: Graph) -> frozenset[str]:
        """`frozen_buffers`, cached for the last graph."""
        if self._frozen is None or self._frozen[0] is not graph:
            self._frozen = graph, frozen_buffers(graph)
        return self._frozen[1]

    # -- remembering ----------------------------------------------------------------------------------------

    def _key(self, what: str) -> str:
        return PREFIX + key_of(*self.machine, what)

    def _remembered(self, what: str) -> Timing | None:
        entry = self.store.get(self._key(what))
        if entry is None:
            return None
        try:
            return read_timing(entry.read(FILE))[1]
        except (CacheError, ValueError, KeyError, TypeError):
            return None

    def remember(self, what: str, timing: Timing) -> None:
        """Keeps a measurement, here and in the cache."""
        self.known[what] = timing
        found = {"what": what, **asdict(timing), "threads": torch.get_num_threads()}
        with suppress(CacheError):  # no room: it is measured again
            self.store.put(self._key(what), {FILE: json.dumps(found).encode()})


class Tuning(Measurements):
    """The measurements on a CPU."""

    def __init__(self, config: Config, target: Target, tools: Toolchain, store: Cache, version: str) -> None:
        """``version``: smelt's version, because other kernels take other times."""
        threads = str(torch.get_num_threads())
        machine = (tools.identity, version, threads, str(library.compilers()))
        super().__init__(config, target, store, machine)
        self.tools = tools

    @property
    def alone(self) -> list[Contractions]:
        """The contractions that need a run of their own to be measured."""
        return [trial.body for trial in self.unknown.values()]

    def measure(self, scheduled: Scheduled, job: CompileJob | None) -> bool:
        """Measures all that is unknown; returns whether the schedule should change for any trial.

        ``scheduled``: the schedule of the rule, with all of `alone`, compiled by ``job``. After an exception
        (Ctrl-C), the next call measures the rest.
        """
        trials = self.unknown
        if trials:
            self._measure(trials, scheduled, job)
        return any(
            self.choose(trial.product, trial.whole, self.target)
            != worth_it(trial.product, trial.whole, self.target)
            for trial in self.trials.values()
        )

    def _measure(self, trials: Mapping[str, Trial], scheduled: Scheduled, job: CompileJob | None) -> None:
        count = f"{len(trials)} product{'s' if len(trials) > 1 else ''}"
        line = f"smelt: measuring {count}, our kernels against ATen (mode max; remembered in the cache)"
        late = threading.Timer(PATIENCE_SECONDS, logs.logger.warning, (line,))
        late.daemon = True
        late.start()
        try:
            with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
                found = {} if job is None else self._in_place(trials, scheduled, job.result())
                left = {key: trial for key, trial in trials.items() if key not in found}
                if left:
                    found.update(zip(left, _race_in_groups(self._compiled(list(left.values())))))
        finally:
            late.cancel()
        for key, timing in found.items():
            self.remember(key, timing)

    def choose(self, product: Product | Attentions, graph: Graph, target: Target) -> bool:
        """Whether a product or an attention runs in a kernel of our own: by the measured times, else by the
        rule.
        """
        timing, usual = self.timing(product, graph), worth_it(product, graph, target)
        if timing is None:
            return usual
        if usual:
            return _is_kept(timing.native, timing.aten)
        return has_nest(product, graph, target) and timing.native * MARGIN < timing.aten

    # -- measuring ------------------------------------------------------------------------------------------

    def _in_place(
        self, trials: Mapping[str, Trial], scheduled: Scheduled, built: Library
    ) -> dict[str, Timing]:
        """The times of those whose kernels in the program are faster, with all that is fused into them.

        Computations that cannot run separately are left out: a kernel that reads integers, and ATen's call if
        kernels of ours have to copy its inputs.
        """
        arena = torch.empty(size_hint(scheduled.arena_size, scheduled.graph.hints) // 4 + 1, device="cpu")
        arena.uniform_(-1.0, 1.0, generator=torch.Generator().manual_seed(0))
        keys, prepared = [], []
        for run, body in scheduled.alone:
            key = next((key for key, trial in trials.items() if trial.body is body), None)
            if key is None:
                continue  # measured before an interruption
            graph = trials[key].graph(False)
            theirs = schedule(graph, self.config, self.target, choose=_always(False))
            if theirs.runs or not _takes_any_numbers(run):
                continue
            keys.append(key)
            size = _operand_bytes(scheduled.graph, run.arguments) + _operand_bytes(graph)
            native = partial(_native_caller, run, scheduled.graph, built, arena)
            prepared.append((size, partial(_with_aten, native, theirs.plan, graph)))
        times = dict(zip(keys, _race_in_groups(prepared, _is_kept)))
        return {key: timing for key, timing in times.items() if _is_kept(timing.native, timing.aten)}

    def _compiled(self, trials: Sequence[Trial]) -> list[Prepared]:
        """Both ways to compute each trial; all kernels are in one library."""
        runs: list[Run] = []
        plans: list[tuple[Plan, Graph]] = []
        for number, trial in enumerate(trials):
            for native in (True, False):
                graph, prefix = trial.graph(native), f"try{number}{'n' if native else 'a'}_"
                scheduled = schedule(graph, self.config, self.target, prefix, _always(native))
                runs += scheduled.runs
                plans.append((scheduled.plan, graph))
        unit = print_unit(runs, library.compilers())
        key = key_of("tuning", unit.text, self.tools.identity)
        job = library.compile_unit(unit.text, self.tools, self.store, key, parts=unit.parts) if runs else None
        if job is not None:
            job.result()
            self.store.remove(key)  # it is not needed again
        return [
            (_operand_bytes(ours[1]) + _operand_bytes(theirs[1]), partial(_both, ours, theirs, job))
            for ours, theirs in zip(plans[::2], plans[1::2])
        ]


def read_timing(text: bytes) -> tuple[str, Timing, int]:
    """The contents of a cache entry: the contraction, its times, the number of threads.

    Raises:
        ValueError, KeyError: another kind of entry.
    """
    found = json.loads(text)
    lost = tuple((str(name), str(why)) for name, why in found.get("lost", ()))
    tiles = Tiles(**found["tiles"]) if found.get("tiles") else None
    timing = Timing(float(found["native"]), float(found["aten"]), tiles, lost)
    if not (timing.native > 0 and 0 < timing.aten < math.inf) or (math.isinf(timing.native) and not lost):
        raise ValueError(f"no times: {found}")
    return str(found["what"]), timing, int(found["threads"])


def remembered(store: Cache) -> list[tuple[str, Timing, int]]:
    """All measurements in a cache, of all machines."""
    found = []
    for key in store.entries():
        if key.startswith(PREFIX) and (entry := store.get(key)) is not None:
            try:
                found.append(read_timing(entry.read(FILE)))
            except (CacheError, ValueError, KeyError, TypeError):
                continue
    return sorted(found, key=lambda each: each[0])


def _always(native: bool) -> Choose:
    return lambda product, graph, target: native


def _worth_measuring(product: Product | Attentions, graph: Graph) -> bool:
    """Whether a measurement is possible and meaningful. ATen has no kernel for some. Depthwise convolutions
    are left out: in a model their input is in the cache and padded already, which a separate measurement does
    not reproduce.
    """
    if isinstance(product, Product) and product.shared:
        return False
    body = product.body if isinstance(product, Product) else product
    if body.call.target.startswith("higher_order."):
        return False
    work = size_hint(numel((*body.shape, *body.reduce_shape)), graph.hints)
    views = views_in([list(body.call.args), dict(body.call.kwargs)])
    size = sum(size_hint(numel(view.shape), graph.hints) for view in views) * body.dtype.itemsize
    return work >= LEAST_WORK and size <= MOST_BYTES


class Trial:
    """A contraction or an attention alone, as a graph of its own."""

    def __init__(
        self,
        node: Node,
        body: Contractions,
        graph: Graph,
        product: Product | Attentions,
        frozen: Iterable[str],
    ) -> None:
        """``body``: the body of the node in ``graph``; ``product``: its form for a kernel of ours."""
        self.node, self.body, self.whole, self.product = node, body, graph, product
        self.frozen = frozenset(frozen)

    def graph(self, native: bool) -> Graph:
        """The graph of the trial. For ATen, operands have the captured layout; for a native convolution,
        input and result are channels-last, as an earlier convolution leaves them.
        """
        body = self.product.whole if isinstance(self.product, Product) else self.product
        views = views_in([list(body.call.args), dict(body.call.kwargs)])
        given = {view.buffer for view in views}
        # What ATen's call computes itself from its operands, such as a sum over the result of an attention.
        before = [
            each
            for each in self.whole.nodes
            if {read.buffer for read in analyze(self.node).reads if read.buffer not in given}
            & {*each.outputs}
        ]
        reads = [read.buffer for each in (*before, self.node) for read in analyze(each).reads]
        names = dict.fromkeys([*reads, *(view.buffer for view in views)])
        buffers = {name: self.whole.buffers[name] for name in names}
        for each in before:
            for name in each.outputs:
                names.pop(str(name), None)
        results = [self.whole.buffers[name] for name in self.node.outputs if name is not None]
        if native and isinstance(self.product, Product) and not is_matrix_product(self.product):
            results = [replace(result, strides=self.product.whole_strides) for result in results]
            for name in names:
                if name not in self.frozen:
                    buffers[name] = _channels_last(buffers[name], len(body.shape))
        buffers.update({result.name: result for result in results})
        if isinstance(self.body, Attention):  # others are ATen's alone
            results = [each for each in results if each.name in self.node.outputs[:2]]
        sizes = [expr for each in buffers.values() for expr in (*each.shape, *each.strides)]
        symbols = sorted(free_symbols([*sizes, *body.shape, *body.reduce_shape]), key=str)
        zero = sympy.Integer(0)
        return Graph(
            buffers,
            [*before, self.node],
            [*symbols, *names],
            outputs=[StridedView(each.name, each.shape, each.strides, zero) for each in results],
            hints=self.whole.hints,
            frozen=self.frozen & names.keys(),
        )


def _channels_last(buffer: Buffer, rank: int) -> Buffer:
    """The buffer (N, C, *) in channels-last layout; others unchanged."""
    if len(buffer.shape) != rank or rank < 3:
        return buffer
    return replace(buffer, strides=strides_in_order(buffer.shape, (0, *range(2, rank), 1)))


def _operands(graph: Graph, drawn: dict[Any, torch.Tensor]) -> list[Any]:
    """Arguments for a graph: random numbers along the last dimension. Both ways of a trial share those of
    equal layout, in ``drawn``; the user's generator is not used.
    """
    generator = torch.Generator().manual_seed(0)

    def tensor(buffer: Buffer) -> torch.Tensor:
        key = (buffer.name, *(size_hint(stride, graph.hints) for stride in buffer.strides))
        if key not in drawn:
            drawn[key] = _drawn(buffer, graph, generator)
        return drawn[key]

    return [
        size_hint(each, graph.hints) if isinstance(each, Symbol) else tensor(graph.buffers[str(each)])
        for each in graph.inputs
    ]


def empty_operand(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory in the layout of an operand, and the view that has each element of it once."""
    made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    once = made
    for dim, stride in enumerate(strides):
        if stride == 0:  # expanded: all of it is one element
            once = once.narrow(dim, 0, min(1, shape[dim]))
    return made, once


def _drawn(buffer: Buffer, graph: Graph, generator: torch.Generator) -> torch.Tensor:
    shape, strides = ([size_hint(e, graph.hints) for e in each] for each in (buffer.shape, buffer.strides))
    made, once = empty_operand(shape, strides, buffer.dtype, torch.device("cpu"))
    row = torch.zeros(once.shape[-1:], dtype=buffer.dtype, device="cpu")
    if buffer.dtype.is_floating_point:
        row.uniform_(-1.0, 1.0, generator=generator)
    once.copy_(row.expand(once.shape))
    return made


def _takes_any_numbers(run: Run) -> bool:
    """Whether a run may find any bytes in the arena: integers might be indices."""
    return all(
        isinstance(place, Argument) or param.dtype.is_floating_point or param.dtype is torch.bool
        for call in run.calls
        for param, place in zip(call.kernel.params, call.args)
    )


def _native_caller(run: Run, graph: Graph, built: Library, arena: torch.Tensor) -> Callable[[], Any]:
    """A caller of a run of the program, on numbers in ``arena`` and its other inputs."""
    generator = torch.Generator().manual_seed(0)
    tensors = [_drawn(graph.buffers[name], graph, generator) for name in run.arguments]
    sizes = [size_hint(symbol, graph.hints) for symbol in run.sizes]
    function = executor.native_function(built, run.name, len(tensors), len(sizes))
    places = [tensor.data_ptr() for tensor in (arena, *tensors)]
    return lambda: (function(*places, *sizes), tensors)


def _caller(
    plan: Plan, graph: Graph, job: CompileJob | None, drawn: dict[Any, torch.Tensor]
) -> Callable[[], Any]:
    """A caller of a plan of the graph; for ``drawn`` see `_operands`."""
    call, operands = executor.build(plan, job, {}), _operands(graph, drawn)
    return lambda: call(list(operands))


def _both(ours: tuple[Plan, Graph], theirs: tuple[Plan, Graph], job: CompileJob | None) -> Pair:
    drawn: dict[Any, torch.Tensor] = {}
    return _caller(*ours, job, drawn), _caller(*theirs, job, drawn)


def _with_aten(native: Callable[[], Callable[[], Any]], plan: Plan, graph: Graph) -> Pair:
    return native(), _caller(plan, graph, None, {})


def _operand_bytes(graph: Graph, names: Iterable[str] | None = None) -> int:
    """Bytes of these buffers; by default of all inputs."""
    wanted = graph.inputs if names is None else names
    buffers = [graph.buffers[str(each)] for each in wanted if not isinstance(each, Symbol)]
    return sum(size_hint(numel(each.shape), graph.hints) * each.dtype.itemsize for each in buffers)


def _is_kept(native: float, aten: float) -> bool:
    """Whether a kernel that the rule has chosen stays."""
    return native <= aten * MARGIN


def _is_clear(native: float, aten: float) -> bool:
    return max(native, aten) > CLEAR * min(native, aten)


def _race_in_groups(
    prepared: Sequence[Prepared], is_clear: Callable[[float, float], bool] = _is_clear
) -> list[Timing]:
    """`_race` for groups with at most `BYTES_AT_A_TIME` of operands in memory, or for single pairs."""
    found: list[Timing] = []
    group: list[Pair] = []
    held = 0
    for size, pair in prepared:
        if group and held + size > BYTES_AT_A_TIME:
            found += _race(group, is_clear)
            group, held = [], 0
        group.append(pair())
        held += size
    return found + (_race(group, is_clear) if group else [])


def _race(pairs: Sequence[Pair], is_clear: Callable[[float, float], bool] = _is_clear) -> list[Timing]:
    """The best time of each, alternating until the result is clear.

    A kernel of ours that seems slower by more than `MARGIN` gets `ENOUGH_RUNS` more runs: another process
    may have been running, and the cached result is permanent.
    """
    best = [[math.inf, math.inf] for _ in pairs]
    spent = [0.0] * len(pairs)

    def run_pairs(run: int, those: Iterable[int]) -> None:
        for number in those:
            for which in (0, 1) if run % 2 else (1, 0):
                begin = time.perf_counter()
                pairs[number][which]()
                taken = time.perf_counter() - begin
                best[number][which] = min(best[number][which], taken)
                spent[number] += taken

    for pair in pairs:
        for call in pair:
            call()
    undecided = list(range(len(pairs)))
    for run in range(MOST_RUNS):
        if not undecided:
            break
        if run >= LEAST_RUNS:
            patience = SECONDS_EACH if run >= ENOUGH_RUNS else 4 * SECONDS_EACH
            undecided = [each for each in undecided if spent[each] <= patience and not is_clear(*best[each])]
        run_pairs(run, undecided)
    slower = [number for number, (native, aten) in enumerate(best) if not _is_kept(native, aten)]
    for run in range(ENOUGH_RUNS):
        run_pairs(run, slower)
    return [Timing(native, aten) for native, aten in best]
