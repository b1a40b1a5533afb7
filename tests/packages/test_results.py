"""Programs in packages compute what PyTorch does: outputs, sizes, states, seeds, scratch memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

from smelt import package
from smelt.errors import SmeltError
from smelt.generation import DecodeStep
from smelt.packages.loaded import load
from tests.support.packages import quick_levels


def packaged(model: Any, args: tuple[Any, ...], path: Path, **options: Any) -> Any:
    """The loaded package of a model, with its lowest level only where that is quicker."""
    package(model, args, path / "model.smelt", levels=options.pop("levels", ["x86-64"]), **options)
    return load(path / "model.smelt", threads=2)


class Various(nn.Module):
    """Outputs of all kinds; sizes that are alone, and in sums."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> dict[str, Any]:
        n = y.shape[0]
        total = x[:n] + y.sum(1)
        best = torch.topk(x.reshape(2, -1), 2)
        return {
            "total": total,
            "again": total,
            "given": y,
            "turned": (y * 2).transpose(0, 1),
            "part": (y + 1)[:, 1:],
            "count": n * 3,
            "best": [best.values, best.indices],
            "order": torch.sort(x, stable=True).indices,
            "complex": torch.view_as_complex(torch.stack([z.real * 2, z.imag], -1)),
            "joined": torch.cat([x, x.flip(0)]),
            "none": None,
        }


def test_outputs_of_all_kinds(tmp_path: Path) -> None:
    n, m = Dim("n", min=2, max=20000), Dim("m", min=3, max=64)
    args = torch.randn(8), torch.randn(4, 3), torch.randn(3, dtype=torch.complex64)
    shapes = {"x": {0: 2 * n}, "y": {0: n, 1: m}, "z": None}
    model = packaged(Various(), args, tmp_path, dynamic_shapes=shapes)
    assert [each.name for each in model.sizes] == ["n", "m"]
    for rows, columns in ((4, 3), (2, 3), (17, 9), (9000, 4)):
        given = torch.randn(2 * rows), torch.randn(rows, columns), torch.randn(3, dtype=torch.complex64)
        wanted, found = Various()(*given), model(*given)
        values = torch.utils._pytree.tree_leaves(
            {**wanted, "count": torch.tensor(wanted["count"]), "none": []}
        )
        names = [name for name in wanted if name not in ("best", "none")]
        assert set(names) < set(found._fields)
        torch.testing.assert_close(list(found), values)
    with pytest.raises(SmeltError, match="SM1423"):
        model(torch.randn(9), *args[1:])
    with pytest.raises(SmeltError, match="SM1423"):
        model(torch.randn(8), torch.randn(5, 3), args[2])


def test_a_training_step_trains(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    args = torch.randn(6, 1, 8, 8), torch.randint(5, (6,))
    step(*args)
    model = packaged(step, args, tmp_path, kind="training", output_names=["loss"])
    states = {name: value.clone() for name, value in model.named_buffers()}
    assert {"net.4.weight", "net.1.running_mean"} < states.keys()
    assert json.loads((tmp_path / "model.smelt" / "model.json").read_text())["kind"] == "training"
    with pytest.raises(SmeltError, match="is a training step"):
        package(step, args, tmp_path / "other.smelt", kind="inference")
    found = [model(*args).loss.item() for _ in range(4)]
    wanted = [step(*args).item() for _ in range(4)]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    after = dict(model.named_buffers())
    torch.testing.assert_close(after["net.4.weight"], net[4].weight.detach(), rtol=1e-3, atol=1e-4)
    assert not torch.equal(after["net.4.weight"], states["net.4.weight"])


class Dropped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.25, True) + torch.rand_like(x) * 0


def test_a_seed_decides_random_numbers(tmp_path: Path) -> None:
    model = packaged(Dropped(), (torch.ones(100, 100),), tmp_path)
    x, seed = torch.ones(100, 100), torch.tensor(7)
    first, second, other = model(x, seed), model(x, seed=seed), model(x, seed=torch.tensor(8))
    assert torch.equal(first, second) and not torch.equal(first, other)
    torch.testing.assert_close(first.unique(), torch.tensor([0.0, 4 / 3]))
    assert abs((first == 0).float().mean() - 0.25) < 0.03


def test_levels_share_packed_weights_and_agree(tmp_path: Path) -> None:
    if quick_levels() is None:
        pytest.skip("levels of x86-64")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(96, 160), nn.GELU(), nn.Linear(160, 48)).eval()
    path = package(net, (torch.randn(40, 96),), tmp_path / "net.smelt", levels=["x86-64-v4", "x86-64-v3"])
    x = torch.randn(40, 96)
    weights = sum(each.numel() for each in net.parameters()) * 4
    assert (path / "weights.safetensors").stat().st_size < 1.3 * weights
    wanted = net(x).detach()
    for level in ("x86-64", "x86-64-v3"):
        torch.testing.assert_close(load(path, level=level)(x), wanted)
    again = package(net, (torch.randn(40, 96),), tmp_path / "again.smelt", name="net", levels=["x86-64-v3"])
    for name in ("src/kernels_x86_64_0.cpp", "src/net.c", "weights.safetensors"):
        assert (again / name).exists()


def test_a_language_models_step_keeps_its_cache(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    step = DecodeStep(model, 16)
    loaded = packaged(step, (torch.tensor([[1]]), torch.tensor([0])), tmp_path)
    tokens = [3, 9, 33, 60, 2]
    wanted = model(torch.tensor([tokens])).logits[0].detach()
    for at, token in enumerate(tokens):
        found = loaded(torch.tensor([[token]]), torch.tensor([at]))
        torch.testing.assert_close(found[0], wanted[at], rtol=1e-4, atol=1e-5)


class Counted(nn.Module):
    """Writes a buffer, which is no training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * 2


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    net, x = nn.Linear(2, 2), torch.ones(1, 2)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("all of it")
    for path, options, words in (
        (other, {}, "is there and is no package"),
        (tmp_path / "nowhere" / "x.smelt", {}, "there is no folder"),
        (tmp_path / "int.smelt", {}, "cannot be a model's name"),
        (tmp_path / "x.smelt", {"kind": "guessing"}, "one of inference, training"),
        (tmp_path / "x.smelt", {"kind": "training"}, "is no training step"),
        (tmp_path / "counted.smelt", {"kind": "training"}, "is no training step"),
        (tmp_path / "x.smelt", {"output_names": ["a", "b"]}, "2 names for 1 outputs"),
        (tmp_path / "x.smelt", {"target": []}, "no target"),
        (tmp_path / "x.smelt", {"winograd": True}, "no Winograd convolutions"),
    ):
        with pytest.raises(SmeltError, match="SM1406") as caught:
            package(Counted() if path.stem == "counted" else net, (x,), path, **options)
        assert words in str(caught.value)
    assert (other / "thesis.txt").exists() and sorted(tmp_path.iterdir()) == [other]


class OfData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0]


def test_outputs_whose_sizes_depend_on_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match="SM1403"):
        package(OfData(), (torch.randn(4),), tmp_path / "x.smelt")
