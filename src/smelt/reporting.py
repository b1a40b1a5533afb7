"""Reports on the compiled graphs, for `smelt.reports()` and the tools."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from smelt.errors import Problem, SmeltError

STAGES = ("fx", "contract", "loops", "nest", "cpp", "plan")
"""The printable stages of a compilation, in their order."""

OF_TARGETS = ("triton", "ptx")
"""The texts of programs for GPUs, in place of ``cpp``."""

KEPT = 512
"""Limit on the reports that are kept; older ones are dropped."""
TEXTS_KEPT = 8
"""Number of reports that always keep the printers of their stages, with whole graphs; older ones keep them
while their program can be called.
"""


@dataclass(frozen=True, slots=True)
class Fallback:
    """An operator (or ``graph``, for a whole graph) that PyTorch runs because smelt does not support it, and
    the reason.

    >>> print(Fallback("aten.sort.stable", "no lowering", 2, "model.py:12 in forward"))
    aten.sort.stable x2: no lowering  (at model.py:12 in forward)
    """

    op: str
    reason: str
    count: int = 1
    where: str | None = None

    def __str__(self) -> str:
        times = f" x{self.count}" if self.count > 1 else ""
        return f"{self.op}{times}: {self.reason}" + (f"  (at {self.where})" if self.where else "")


@dataclass(frozen=True, slots=True)
class DynamicSize:
    """A dynamic size: its symbol, its places in the inputs, and its value at capture.

    Inputs whose sizes were equal at capture share a symbol: they have to stay equal. ``hint`` is None if no
    value was seen.

    >>> print(DynamicSize("s0", ("x.size(0)", "y.size(1)"), 8))
    s0 is x.size(0) and y.size(1)  (seen: 8)
    """

    symbol: str
    places: tuple[str, ...]
    hint: int | None = None

    def __str__(self) -> str:
        seen = "" if self.hint is None else f"  (seen: {self.hint})"
        return f"{self.symbol} is {' and '.join(self.places)}{seen}"


@dataclass(frozen=True, slots=True)
class SizeGuard:
    """A condition on sizes without which the graph is recompiled, and the user's line that causes it.

    ``fixed``: it specializes a size that could have been dynamic to a number.

    >>> print(SizeGuard("x.size(0) == 7", True, "model.py:3 in forward: if x.shape[0] == 7:"))
    x.size(0) == 7  (at model.py:3 in forward: if x.shape[0] == 7:)
    """

    condition: str
    fixed: bool
    where: str | None = None
    why: str | None = None

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return self.condition + why + (f"  (at {self.where})" if self.where else "")


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel of a contraction: ``kernel`` is ``native`` or ``ATen``, ``why`` the reason of the rule, or
    that both were measured, with their seconds. On a GPU: the fastest ``tiles``, and the ``lost`` ones, which
    gave no result, with the reason.

    >>> print(Choice("mm(f32[512, 512], f32[512, 512])", "native", "measured", 2, None, 0.002, 0.003))
    mm(f32[512, 512], f32[512, 512]) x2: native, measured: native 2000 µs, ATen 3000 µs
    """

    what: str
    kernel: str
    why: str
    count: int = 1
    where: str | None = None
    native_seconds: float | None = None
    aten_seconds: float | None = None
    tiles: str | None = None
    lost: Sequence[Sequence[str]] = ()

    @property
    def times(self) -> str:
        """The two times, if they were measured."""
        if self.aten_seconds is None:
            return ""
        native, tiles = self.native_seconds, f" ({self.tiles})" if self.tiles else ""
        ours = "native no result" if native is None else f"native {native * 1e6:.0f} µs{tiles}"
        lost = "".join(f"; {name}: {why}" for name, why in self.lost)
        return f"{ours}, ATen {self.aten_seconds * 1e6:.0f} µs{lost}"

    def __str__(self) -> str:
        times = f" x{self.count}" if self.count > 1 else ""
        measured = f": {self.times}" if self.times else ""
        return f"{self.what}{times}: {self.kernel}, {self.why}{measured}"


@dataclass(slots=True)
class Region:
    """A part of a program that is compiled in clusters: ``name`` is ``cluster 1`` …, or ``PyTorch``.

    ``nodes``: the number of operators; for PyTorch's parts: the operators, the reason, and the number of
    clusters that would be saved if they could be compiled (``joins``). ``seconds``: the run time, with the
    option ``clocks``.

    >>> print(Region("PyTorch", 1, ("print",), "denied", "model.py:12 in forward", 2))
    PyTorch: 1 operator (print): denied  (at model.py:12 in forward; compiled too, it saves 2 clusters)
    """

    name: str
    nodes: int
    ops: tuple[str, ...] = ()
    reason: str | None = None
    where: str | None = None
    joins: int = 0
    seconds: float = 0.0
    stack: str = field(default="", repr=False, compare=False)
    """The stack trace, as text, that ``where`` is from."""

    @property
    def is_native(self) -> bool:
        """Whether smelt compiled it."""
        return self.reason is None

    def __str__(self) -> str:
        what = f"{self.name}: {self.nodes} operator{'s' * (self.nodes != 1)}"
        if self.reason is None:
            return what
        notes = [f"at {self.where}"] if self.where else []
        notes += [f"compiled too, it saves {self.joins} clusters"] if self.joins else []
        return f"{what} ({', '.join(self.ops)}): {self.reason}" + (f"  ({'; '.join(notes)})" if notes else "")


@dataclass(slots=True)
class PartTime:
    """Number of runs and total time of a part of a compiled graph, including nested calls.

    ``kind``: ``kernel`` or ``aten``. ``operations``: additions and multiplications, 0 if unknown; ``moved``:
    bytes read and written.
    """

    name: str
    kind: str
    calls: int = 0
    seconds: float = 0.0
    operations: int = 0
    moved: int = 0


class _Texts(dict[str, "str | Callable[[], str]"]):
    """Stage → its text, or its printer. This class can be referred to weakly.

    ``again``: schedules the program once more, watched; returns `smelt.pipeline.Remade`.
    """

    again: Callable[[Any], Any] | None = None


@dataclass(slots=True)
class CompileReport:
    """The report on a compiled graph.

    ``kind``: ``inference``, ``forward`` or ``backward``; ``eager`` where PyTorch runs the whole graph.
    ``fused``: for each kernel, the operators that share it. ``native_calls``: calls into compiled code per
    run. ``choices``: the kernel of each contraction. ``externs``: ATen calls that smelt chose (matmul …) →
    their number. ``symbols``: dynamic sizes by name, with the size seen while capturing; ``dynamic_sizes``:
    their dimensions in the inputs; ``size_guards``: PyTorch's specializations and assumptions (of forward and
    inference graphs). ``regions``: the clusters of a program that smelt compiles in part, which have reports
    of their own, and PyTorch's parts between them, in order. ``arena_bytes``: at those sizes. ``folded``:
    constants that are computed ahead and kept, of ``folded_bytes`` in all (`Config.freezing`). ``recorded``:
    the CUDA graphs of mode ``max``, or the reason why there are none.
    ``phase_seconds``: smelt's own time by pass; ``spans``: (phase, or with the option ``clocks`` pass, its
    begin and its end) by `time.perf_counter`.

    >>> report = CompileReport("inference", "graph 0")
    >>> with report.phase("lowering"):
    ...     pass
    >>> list(report.phase_seconds)
    ['lowering']
    >>> report.keep_text("loops", lambda: "b0 = ...")
    >>> report.text("loops")
    'b0 = ...'
    """

    kind: str
    graph_name: str
    phase_seconds: dict[str, float] = field(default_factory=dict)
    spans: list[tuple[str, float, float]] = field(default_factory=list, repr=False)
    kernels: list[str] = field(default_factory=list)
    fused: list[list[str]] = field(default_factory=list)
    native_calls: int = 0
    externs: dict[str, int] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    symbols: dict[str, int] = field(default_factory=dict)
    dynamic_sizes: list[DynamicSize] = field(default_factory=list)
    size_guards: list[SizeGuard] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    arena_bytes: int = 0
    folded: int = 0
    folded_bytes: int = 0
    cache_hit: bool = False
    recorded: str = ""
    problems: list[Problem] = field(default_factory=list)
    entry: str = ""
    constants: Mapping[str, Any] = field(default_factory=weakref.WeakValueDictionary, repr=False)
    """The key of the cache's entry with the whole program, where there is one, and the tensors that it takes
    besides.
    """
    clocks: Callable[[], list[PartTime]] | None = field(default=None, repr=False)
    """With the option ``clocks``: the run time of each part so far."""
    counters: Any = field(default=None, repr=False)
    """With the option ``clocks``: `smelt.runtime.clocks.Clocks`, the time of each single call."""
    _within: list[float] = field(default_factory=list, repr=False)
    _texts: _Texts | weakref.ref[_Texts] = field(default_factory=_Texts, repr=False)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time of the block to ``phase_seconds[name]``, also if it raises.

        The time of a nested phase is not counted in the outer one.
        """
        start = time.perf_counter()
        self.phase_seconds.setdefault(name, 0.0)
        self._within.append(0.0)
        try:
            yield
        finally:
            end = time.perf_counter()
            taken = end - start
            if name != "codegen":  # it has a phase for each kernel
                self.spans.append((name, start, end))
            self.phase_seconds[name] += taken - self._within.pop()
            if self._within:
                self._within[-1] += taken

    def compiled(self, job: Any) -> None:
        """Notes the times of the C++ compiler's ``job``, which has just ended."""
        end = time.perf_counter()
        self.phase_seconds["wait"] = job.waited
        self.spans.append(("C++ compiler", end - job.seconds, end))

    @property
    def is_cluster(self) -> bool:
        """Whether this is a cluster of another graph, whose report has it among its ``regions``."""
        return " cluster " in self.graph_name

    @property
    def seconds(self) -> float:
        """smelt's own compile time."""
        return sum(self.phase_seconds.values())

    def fill(self, notes: Mapping[str, Any]) -> None:
        """Takes what the cache keeps with a plan (`smelt.pipeline.notes`)."""
        self.kernels = list(notes["kernels"])
        self.fused = [list(origins) for origins in notes["fused"]]
        self.native_calls = notes["native_calls"]
        self.externs = dict(notes["externs"])
        self.choices = [Choice(*each) for each in notes["choices"]]
        for op, reason, where in notes["fallbacks"]:
            self.add_fallback(op, reason, where)
        self.symbols = dict(notes["symbols"])
        self.arena_bytes = notes["arena_bytes"]
        self.folded, self.folded_bytes = notes["folded"], notes["folded_bytes"]

    def add_fallback(self, op: str, reason: str, where: str | None = None) -> None:
        """Records a call that ATen runs; equal operators with equal reasons are counted, the first line is
        kept.
        """
        for position, each in enumerate(self.fallbacks):
            if (each.op, each.reason) == (op, reason):
                self.fallbacks[position] = Fallback(op, reason, each.count + 1, each.where)
                return
        self.fallbacks.append(Fallback(op, reason, 1, where))

    def keep_text(self, stage: str, text: str | Callable[[], str]) -> None:
        """Keeps the text of a stage, or a function that prints it on demand, once."""
        if stage not in STAGES and stage not in OF_TARGETS:
            raise SmeltError(
                "SM0104", f"no stage {stage!r}", remedy="stages: " + ", ".join((*STAGES, *OF_TARGETS))
            )
        self._known_texts()[stage] = text

    def keep_pass(self, moment: str, name: str, text: str) -> None:
        """Keeps the IR's text ``before`` or ``after`` a pass; a pass that runs several times has several."""
        texts, stage = self._known_texts(), f"{moment} {name}"
        texts[stage] = f"{before}\n{text}" if isinstance(before := texts.get(stage), str) else text

    def keep_again(self, again: Callable[[Any], Any]) -> None:
        """Keeps a function that schedules the program once more, under a `smelt.passes.Watch`."""
        self._known_texts().again = again

    @property
    def again(self) -> Callable[[Any], Any] | None:
        """The function of `keep_again`; None if the program was dropped since, or PyTorch runs it."""
        return self._known_texts().again

    def keep_texts_with(self, program: Callable[..., Any]) -> None:
        """Moves the texts to the program's function, because they may take as much memory."""
        program.texts = self._known_texts()  # type: ignore[attr-defined]

    def let_texts_go(self) -> None:
        """Drops the texts here; the program keeps them."""
        if isinstance(self._texts, _Texts):
            self._texts = weakref.ref(self._texts)

    def _known_texts(self) -> _Texts:
        found = self._texts if isinstance(self._texts, _Texts) else self._texts()
        return _Texts() if found is None else found

    def text(self, stage: str) -> str:
        """The text of one of `STAGES`, or of ``before NAME`` and ``after NAME`` (`Config.print_passes`).

        Raises:
            SmeltError: SM0104 there is no such stage, or this graph did not reach it (or was cached), or the
                graph was dropped since.
        """
        texts = self._known_texts()
        found = texts.get(stage)
        if found is None:
            known = ", ".join(texts) or "none"
            why = f"{self.graph_name} has: {known}"
            raise SmeltError(
                "SM0104",
                f"no text of stage {stage!r}",
                why=why,
                remedy="stages: " + ", ".join((*STAGES, *OF_TARGETS)),
            )
        if not isinstance(found, str):
            found = texts[stage] = found()
        return found

    def stages(self) -> list[str]:
        """The stages that `text` knows, in order."""
        texts = self._known_texts()
        return [stage for stage in (*STAGES, *OF_TARGETS) if stage in texts]


class ReportLog:
    """The reports of this process since the last `clear`, the newest `KEPT` of them."""

    def __init__(self, kept: int = KEPT) -> None:
        self._lock = threading.Lock()
        self._reports: deque[CompileReport] = deque(maxlen=kept)
        self._said: set[str] = set()
        self.entered: float | None = None
        """The time when Dynamo gave its last graph, until a report takes it."""

    def add(self, report: CompileReport) -> None:
        now = time.perf_counter()
        begin, self.entered = self.entered or now, None
        report.spans.append(("AOTAutograd", begin, now))
        with self._lock:
            self._reports.append(report)
            if len(self._reports) > TEXTS_KEPT:
                self._reports[-1 - TEXTS_KEPT].let_texts_go()

    def all(self) -> list[CompileReport]:
        with self._lock:
            return list(self._reports)

    def last(self, graph_name: str) -> CompileReport | None:
        """The newest report on ``graph_name``."""
        with self._lock:
            return next((each for each in reversed(self._reports) if each.graph_name == graph_name), None)

    def forget(self, graph_name: str) -> None:
        """Drops the reports on a graph that is compiled again, and those on its clusters."""
        with self._lock:
            name = f"{graph_name} "
            kept = [each for each in self._reports if not (each.graph_name + " ").startswith(name)]
            self._reports = deque(kept, maxlen=self._reports.maxlen)

    def clear(self) -> None:
        with self._lock:
            self._reports.clear()
            self._said.clear()

    def first_time(self, message: str) -> bool:
        """True for the first call with ``message`` since `clear`: for warnings that are given once."""
        with self._lock:
            new = message not in self._said
            self._said.add(message)
            return new


LOG = ReportLog()
# The one piece of process-wide state: torch.compile calls the backend from inside Dynamo, whose caller has no
# way to pass an object through or to get one back; `smelt.reports()` needs a place where both meet.
