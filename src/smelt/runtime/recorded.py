"""Mode ``max`` on GPUs: the launches of a call are recorded as a CUDA graph, and replayed by later calls.

A recording has fixed addresses. Parameters, buffers and inputs that the program writes stay where they are;
if they move, the call is recorded again. Other inputs are copied to places of their own before a replay, and
results are copied out of the recording after it: nothing of it is alive between two calls, so all recordings
of a stream share their memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch

from smelt.records import dataclass
from smelt.runtime.externs import resolve
from smelt.runtime.plan import ExternStep, Plan, Ref, ViewRef

Call = Callable[[list[Any]], Sequence[Any]]
Key = tuple[Any, ...]

MOST_SIZES = 8
"""Limit on the recordings of a program: one for each set of sizes on each stream."""
MOST_MOVES = 4
"""Limit on the recordings that are made again because parameters have moved."""
MOST_SEEN = 256
"""Limit on the sizes that are remembered."""
_READ = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


class Recorder(Protocol):
    """A device that records launches."""

    @property
    def device(self) -> torch.device: ...

    def stream(self) -> int: ...

    def is_recording(self) -> bool:
        """Whether the current stream is being recorded by somebody."""

    def record(self, call: Callable[[], Sequence[Any]]) -> tuple[Callable[[], None], Sequence[Any]]:
        """Records the launches of a call, without running them: what replays them, and the call's results."""


def why_not_recorded(plan: Plan) -> str | None:
    """The reason why calls of a plan cannot be replayed, if there is one."""
    for step in plan.steps:
        if isinstance(step, ExternStep) and (why := _why_not(step, str(plan.device))) is not None:
            return f"{step.target} {why}"
    if plan.lazy:
        return "it takes complex numbers, which may be conjugated late"
    return "it has constants that are computed ahead" if plan.folded else None


def returned_inputs(plan: Plan) -> dict[int, int]:
    """The results that are inputs or views of them: their positions, and those of the inputs."""
    return {
        place: plan.inputs.index(output.name)
        for place, output in enumerate(plan.outputs)
        if isinstance(output, (Ref, ViewRef)) and output.name in plan.inputs
    }


def _why_not(step: ExternStep, device: str) -> str | None:
    if step.bodies:
        return "decides on the CPU which part runs"
    tags = resolve(step.target).tags
    if step.symbol is not None or step.sizes or any(tag in tags for tag in _READ):
        return "gives a number that the CPU waits for"
    if step.kwargs.get("generator") is not None or any(isinstance(a, torch.Generator) for a in step.args):
        return "draws random numbers from a generator that is not registered"
    to = step.kwargs.get("device")
    if to is not None and torch.device(to).type != torch.device(device).type:
        return f"is on another device ({to})"
    return None


@dataclass(slots=True)
class _Recording:
    """``fixed``: the addresses of inputs that stay; ``places``: those of the others, by position."""

    fixed: dict[int, int]
    places: dict[int, torch.Tensor]
    replay: Callable[[], None]
    results: Sequence[Any]
    moves: int = 0


class Recorded:
    """A call that is recorded the second time that its sizes occur. ``fixed``: the positions of inputs that
    stay where they are; ``returned``: as `returned_inputs`. ``failed``: whether a check of an earlier run has
    failed: the call raises that. ``note`` gets a text on what became of the recordings.
    """

    _boxed_call = True

    def __init__(
        self,
        call: Call,
        fixed: Collection[int],
        returned: Mapping[int, int],
        recorder: Recorder,
        failed: Callable[[], bool],
        note: Callable[[str], None],
    ) -> None:
        self.call, self.fixed, self.returned = call, frozenset(fixed), returned
        self.recorder, self.failed = recorder, failed
        self.note = note
        self.seen: set[Key] = set()
        self.known: dict[Key, _Recording] = {}
        self.refused = False
        self.lock = threading.Lock()

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self.refused or self.recorder.is_recording():
            return self.call(args)
        key = (self.recorder.stream(), *(_layout(each) for each in args))
        with self.lock:
            if key not in self.seen:  # the first call compiles, and loads what it needs
                if len(self.seen) >= MOST_SEEN:
                    self.seen.clear()
                self.seen.add(key)
            elif not self.failed():
                recording = self._recording(key, args)
                if recording is not None:
                    return self._replayed(recording, args)
        return self.call(args)

    def _recording(self, key: Key, args: Sequence[Any]) -> _Recording | None:
        """The recording for these arguments; a new one where there is none at their addresses."""
        known = self.known.get(key)
        fixed = {place: args[place].data_ptr() for place in self.fixed if _is_tensor(args[place])}
        if known is not None and known.fixed == fixed:
            return known
        if known is None and len(self.known) >= MOST_SIZES:
            self.note(f"CUDA graphs for {MOST_SIZES} sizes, none for others")
            return None
        moves = 0 if known is None else known.moves + 1
        if moves > MOST_MOVES:
            self._refuse("its parameters, or inputs that it writes, move from call to call")
            return None
        other = next((each.device for each in args if _is_tensor(each) and not self._is_here(each)), None)
        if other is not None:
            self._refuse(f"an input is on another device ({other})")
            return None
        self.known.pop(key, None)
        places = {
            place: _copied(each)
            for place, each in enumerate(args)
            if _is_tensor(each) and place not in self.fixed
        }
        given = [places.get(place, each) for place, each in enumerate(args)]
        try:
            replay, results = self.recorder.record(lambda: self.call(list(given)))
        except RuntimeError as error:
            self._refuse(str(error).splitlines()[0])
            return None
        self.known[key] = _Recording(fixed, places, replay, results, moves)
        self.note(f"CUDA graphs for {len(self.known)} size{'s' * (len(self.known) > 1)}")
        return self.known[key]

    def _replayed(self, recording: _Recording, args: list[Any]) -> Sequence[Any]:
        with torch.no_grad():
            moved = [
                (place, args[position])
                for position, place in recording.places.items()
                if args[position].data_ptr() != place.data_ptr()
            ]
            if moved:
                places, given = zip(*moved)
                torch._foreach_copy_(list(map(_memory, places)), list(map(_memory, given)))
            inputs = {place: args[position] for place, position in self.returned.items()}
            args.clear()
            recording.replay()
            return tuple(
                _like(each, recording.places.get(self.returned[place]), inputs[place])
                if place in inputs
                else _copied(each)
                if _is_tensor(each)
                else each
                for place, each in enumerate(recording.results)
            )

    def _is_here(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self.recorder.device.type

    def _refuse(self, why: str) -> None:
        self.refused = True
        self.known.clear()
        self.note(f"no CUDA graph: {why}")


def _is_tensor(each: Any) -> bool:
    return isinstance(each, torch.Tensor)


def _layout(each: Any) -> Any:
    return (each.dtype, *each.shape, each.stride()) if isinstance(each, torch.Tensor) else each


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element to its last one."""
    steps = zip(tensor.shape, tensor.stride())
    count = 1 + sum((size - 1) * stride for size, stride in steps) if tensor.numel() else 0
    return tensor.detach().as_strided((count,), (1,))


def _like(view: torch.Tensor, place: torch.Tensor | None, given: torch.Tensor) -> torch.Tensor:
    """The view of an input that a result is: recorded as a view of ``place``, or of the input itself."""
    if (
        view.shape == given.shape
        and view.stride() == given.stride()
        and view.data_ptr() == (given if place is None else place).data_ptr()
    ):
        return given
    start = 0 if place is None else given.storage_offset() - place.storage_offset()
    return given.as_strided(view.shape, view.stride(), view.storage_offset() + start)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    return _memory(tensor).clone().as_strided(tensor.shape, tensor.stride())
