"""A real TorchScript program: silero-vad, with its branches on the sampling rate and its state."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.packages import quick_levels

import smelt
from smelt.capture import from_torchscript
from smelt.errors import SmeltError

SAMPLES = {16000: 512, 8000: 256}
TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}


@pytest.fixture(scope="module")
def model() -> Any:
    found = find_spec("silero_vad")
    if found is None or found.origin is None:
        pytest.skip("silero-vad is not installed: pip install 'torch-smelt[demo]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(str(Path(found.origin).parent / "data" / "silero_vad.jit")).eval()


@pytest.fixture(scope="module")
def compiled(model: Any) -> Any:
    smelt.reset()
    return smelt.compile(model)


def speech(rate: int, chunks: int, batch: int = 1) -> torch.Tensor:
    """Something with voices' rhythm: a buzz at 120 Hz, on and off each half second, in noise."""
    samples = torch.arange(chunks * SAMPLES[rate]) / rate
    on = (samples * 2).floor() % 2
    buzz = sum(torch.sin(2 * torch.pi * 120 * harmonic * samples) / harmonic for harmonic in range(1, 12))
    torch.manual_seed(0)
    return (0.1 * on * buzz + 0.01 * torch.randn(batch, len(samples))).float()


def chunks_of(rate: int, chunks: int, batch: int = 1) -> tuple[torch.Tensor, ...]:
    return speech(rate, chunks, batch).split(SAMPLES[rate], dim=1)


@pytest.mark.long
@torch.no_grad()
def test_a_hundred_chunks_at_both_rates(model, compiled):
    seen = []
    for rate in (16000, 8000, 16000):
        model.reset_states()
        compiled.reset_states()
        for chunk in chunks_of(rate, 100):
            wanted, found = model(chunk, rate), compiled(chunk, rate)
            torch.testing.assert_close(found, wanted, **TOLERANCE)
            seen.append(float(found))
        torch.testing.assert_close(compiled._state, model._state, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(compiled._context, model._context, rtol=0, atol=0)
    assert max(seen) - min(seen) > 0.05  # the state does something
    reports = smelt.reports()
    assert all(each.kind == "inference" and not each.fallbacks for each in reports)
    assert not any(each.externs for each in reports)  # all of it is smelt's own
    assert len(reports) <= 6


@torch.no_grad()
def test_rates_and_batches_that_change_reset_the_state(model, compiled):
    model.reset_states()
    compiled.reset_states()
    for rate, batch in ((16000, 1), (8000, 1), (8000, 2), (16000, 2), (16000, 1)):
        for chunk in chunks_of(rate, 3, batch):
            torch.testing.assert_close(compiled(chunk, rate), model(chunk, rate), **TOLERANCE)


@torch.no_grad()
def test_a_chunk_without_a_batch_and_a_rate_that_is_divided(model, compiled):
    for chunk, rate in ((chunks_of(16000, 1)[0][0], 16000), (chunks_of(16000, 3)[0].repeat(1, 3), 48000)):
        model.reset_states()
        compiled.reset_states()
        torch.testing.assert_close(compiled(chunk, rate), model(chunk, rate), **TOLERANCE)


@pytest.mark.parametrize("samples, rate", [(100, 16000), (600, 16000), (512, 11025)])
def test_wrong_chunks_are_refused_as_they_were(model, compiled, samples, rate):
    said = []
    for call in (model, compiled):
        with pytest.raises(torch.jit.Error) as refused:
            call(torch.zeros(1, samples), rate)
        said.append(str(refused.value).splitlines()[-1])
    assert said[0] == said[1]


@torch.no_grad()
def test_whole_recordings(model):
    module = from_torchscript(model)
    assert module.left == [] == list(module.pieces)
    sound = speech(16000, 7)[0]
    torch.testing.assert_close(module.audio_forward(sound, 16000), model.audio_forward(sound, 16000))


class Stream(torch.nn.Module):
    """The model for 16 kHz with its state and the end of the last chunk as buffers."""

    state: torch.Tensor
    context: torch.Tensor

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = from_torchscript(model._model, structured=True)
        self.register_buffer("state", torch.zeros(2, 1, 128))
        self.register_buffer("context", torch.zeros(1, 64))

    def forward(self, chunk: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.context, chunk], 1)
        probability, state = self.inner(x, self.state)
        self.state.copy_(state)
        self.context.copy_(x[:, -64:])
        return probability


@pytest.mark.long
@torch.no_grad()
def test_a_package_keeps_the_state_in_buffers(model, tmp_path):
    arguments = torch.zeros(1, 512), 16000
    with pytest.raises(SmeltError, match=r"SM0724: .* in attributes: _context, .* _state"):
        smelt.package(model, arguments, tmp_path / "vad.smelt")
    stream = Stream(model).eval()
    packaged = smelt.load(smelt.package(stream, arguments[:1], tmp_path / "vad.smelt", levels=quick_levels()))
    model.reset_states()
    for chunk in chunks_of(16000, 40):
        torch.testing.assert_close(packaged(chunk), model(chunk, 16000), **TOLERANCE)
