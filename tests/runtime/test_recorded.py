"""Recorded launches, with a device that records calls of the CPU: addresses, sizes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from smelt.runtime import recorded
from smelt.runtime.plan import ExternStep, Plan, Ref, ViewRef
from smelt.runtime.recorded import Recorded, returned_inputs, why_not_recorded


class Device:
    """Replays a recording by the same call on the same tensors, whose results replace those of before."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.recordings = self.replays = 0
        self.of_others, self.error = False, ""
        self.keeps: set[int] = set()
        """The results that are inputs."""

    def stream(self) -> int:
        return 0

    def is_recording(self) -> bool:
        return self.of_others

    def record(self, call: Callable[[], Sequence[Any]]) -> tuple[Callable[[], None], Sequence[Any]]:
        if self.error:
            raise RuntimeError(f"{self.error}\nmore")
        self.recordings += 1
        results = call()
        for place, each in enumerate(results):
            if place not in self.keeps and isinstance(each, torch.Tensor):
                each.fill_(-1.0)  # a recording computes nothing

        def replay() -> None:
            self.replays += 1
            for place, (old, new) in enumerate(zip(results, call())):
                if place not in self.keeps and isinstance(old, torch.Tensor):
                    old.copy_(new)

        return replay, results


class Case:
    """``y = w * x + n``, recorded; the places of ``x`` and ``w`` in each run."""

    def __init__(self, fixed: Sequence[int] = (1,)) -> None:
        self.device, self.notes, self.runs = Device(), [], []
        self.error = False
        self.call = Recorded(self._run, fixed, {}, self.device, lambda: self.error, self.notes.append)

    def _run(self, args: list[Any]) -> Sequence[Any]:
        x, w, n = args
        args.clear()
        self.runs.append((x.data_ptr(), w.data_ptr()))
        if self.error:
            self.error = False
            raise IndexError("out of range")
        return (w * x + n, n)

    def __call__(self, x: torch.Tensor, w: torch.Tensor, n: int = 0) -> torch.Tensor:
        args = [x, w, n]
        result, number = self.call(args)
        assert not args and number == n
        torch.testing.assert_close(result, w * x + n)
        assert result.stride() == (w * x).stride()
        return result


def test_the_second_call_is_recorded_and_results_are_the_users() -> None:
    case, w = Case(), torch.randn(4, 3)
    kept = [case(torch.randn(3, 4).T, w) for _ in range(4)]
    assert (case.device.recordings, case.device.replays) == (1, 3)
    assert case.notes == ["CUDA graphs for 1 size"]
    assert len({each.data_ptr() for each in kept}) == 4
    places = case.runs[1:]
    assert len(set(places)) == 1 and places[0][1] == w.data_ptr() and case.call.known


def test_an_input_in_its_place_is_not_copied_and_an_expanded_one_keeps_its_strides() -> None:
    case, w = Case(), torch.randn(4, 3)
    for _ in range(3):
        case(torch.randn(3).expand(4, 3), w)
    (recording,) = case.call.known.values()
    assert recording.places[0].stride() == (0, 1)
    case(recording.places[0], w)
    assert case.device.recordings == 1


def test_sizes_and_numbers_have_recordings_of_their_own_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorded, "MOST_SIZES", 2)
    case, w = Case(), torch.randn(4)
    for n in (0, 1, 2):
        for _ in range(3):
            case(torch.randn(4), w, n)
    assert case.device.recordings == 2 and case.notes[-1] == "CUDA graphs for 2 sizes, none for others"
    case(torch.randn(4), w, 0)
    assert case.device.replays == 5


def test_parameters_that_move_are_recorded_again_but_not_for_ever() -> None:
    case = Case()
    w = [torch.randn(4) for _ in range(recorded.MOST_MOVES + 3)]
    case(torch.randn(4), w[0])
    for each in w:
        case(torch.randn(4), each)
    assert case.device.recordings == recorded.MOST_MOVES + 1
    assert case.notes[-1] == "no CUDA graph: its parameters, or inputs that it writes, move from call to call"
    assert not case.call.known


def test_a_failed_check_is_raised_by_a_call_that_is_not_replayed() -> None:
    case, w = Case(), torch.randn(4)
    for _ in range(3):
        case(torch.randn(4), w)
    case.error = True
    with pytest.raises(IndexError):
        case(torch.randn(4), w)
    case(torch.randn(4), w)
    assert case.device.replays == 3


def test_what_others_record_is_launched() -> None:
    case, w = Case(), torch.randn(4)
    case.device.of_others = True
    for _ in range(3):
        case(torch.randn(4), w)
    assert case.device.recordings == 0 and not case.call.seen


def test_a_call_that_the_device_does_not_record_is_launched() -> None:
    case, w = Case(), torch.randn(4)
    case.device.error = "operation not permitted when stream is capturing"
    for _ in range(3):
        case(torch.randn(4), w)
    assert case.notes == ["no CUDA graph: operation not permitted when stream is capturing"]
    assert case.call.refused and len(case.runs) == 3


def test_an_input_on_another_device_is_not_recorded() -> None:
    case = Case()
    case.device.device = torch.device("cuda")
    for _ in range(2):
        case(torch.randn(4), torch.randn(4))
    assert case.notes == ["no CUDA graph: an input is on another device (cpu)"]


def _extern(target: str, **more: Any) -> ExternStep:
    kwargs = more.pop("kwargs", {})
    return ExternStep(target, (Ref("x"),), kwargs, ("y",), **more)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (_extern("aten.relu.default"), None),
        (_extern("aten.nonzero.default"), "gives a number that the CPU waits for"),
        (_extern("aten._local_scalar_dense.default", symbol="u0"), "gives a number that the CPU waits for"),
        (_extern("aten.rand_like.default"), None),
        (
            _extern("aten.rand.generator", kwargs={"generator": "g"}),
            "draws random numbers from a generator that is not registered",
        ),
        (
            _extern("aten._to_copy.default", kwargs={"device": torch.device("cpu")}),
            "is on another device (cpu)",
        ),
    ],
)
def test_calls_that_cannot_be_replayed_are_named(step: ExternStep, why: str | None) -> None:
    plan = Plan(("x",), (), (), 0, (), (step,), (Ref("y"),), device="cuda:0")
    assert why_not_recorded(plan) == (None if why is None else f"{step.target} {why}")


def test_results_that_are_inputs_are_the_users_tensors() -> None:
    outputs = (Ref("y"), Ref("x"), ViewRef("x", (2,), (1,), 1), Ref("w"))
    plan = Plan(("w", "x"), (), (), 0, (), (), outputs, device="cuda:0")
    assert why_not_recorded(plan) is None and returned_inputs(plan) == {1: 1, 2: 1, 3: 0}
    device, notes = Device(), []

    def run(args: list[Any]) -> Sequence[Any]:
        w, x = args
        return w * x, x, x.as_strided((2,), (1,), x.storage_offset() + 1), w

    call, w = Recorded(run, (0,), returned_inputs(plan), device, lambda: False, notes.append), torch.randn(4)
    device.keeps = {1, 2, 3}
    for start in range(4):
        x = torch.randn(9)[start : start + 4]
        y, same, view, weight = call([w, x])
        assert same.data_ptr() == x.data_ptr() and same.shape == x.shape and weight is w
        assert view.data_ptr() == x[1:].data_ptr() and view.shape == (2,)
        torch.testing.assert_close(y, w * x)
    assert device.replays == 3
