"""``freezing``: constants computed ahead give eager's results, also when what they are made of changes."""

from __future__ import annotations

import copy
import gc
import random
import re
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import smelt
from smelt.reporting import CompileReport
from smelt.runtime import folded
from tests.conformance.agreement import assert_agree, clones
from tests.conformance.programs import generate


@pytest.fixture(autouse=True)
def _verified(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_VERIFY", "1")


def settled(model: nn.Module) -> nn.Module:
    """In inference, with batch norms of which nothing is 0 or 1."""
    for each in model.modules():
        if isinstance(each, (nn.BatchNorm1d, nn.BatchNorm2d)):
            for tensor in (each.running_mean, each.weight, each.bias):
                if tensor is not None:
                    nn.init.normal_(tensor)
            nn.init.uniform_(each.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return model.eval()


def frozen(model: nn.Module, **options: Any) -> Callable[..., Any]:
    """The model in mode ``max``, without autograd."""
    compiled = smelt.compile(model, mode="max", **options)

    def run(*args: Tensor) -> Any:
        with torch.no_grad():
            return compiled(*args)

    return run


def agrees(run: Callable[..., Any], model: nn.Module, *args: Tensor) -> None:
    """Against float64, the error is at most four times eager's, and a few units in the last place."""
    with torch.no_grad():
        got, eager = run(*args), model(*args)
        doubled = [each.double() if each.is_floating_point() else each for each in args]
        exact = copy.deepcopy(model).double()(*doubled)
    assert got.dtype == eager.dtype
    assert got.stride() == eager.stride()
    error, allowed = (got.double() - exact).abs().max(), 4 * (eager.double() - exact).abs().max()
    assert error <= allowed + 8 * torch.finfo(got.dtype).eps * exact.abs().max()


def report() -> CompileReport:
    (found,) = smelt.reports()
    return found


def small() -> tuple[nn.Module, Tensor]:
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False))
    return settled(nn.Sequential(*layers, nn.BatchNorm2d(8))), torch.randn(2, 3, 9, 9)


# -- what is folded -----------------------------------------------------------------------------------------


class LayerScale(nn.Module):
    """A factor for each channel after a linear layer; seen by what comes next in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.gamma = nn.Linear(6, 6), nn.Parameter(torch.randn(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma * self.linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Unbiased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.extra = nn.Linear(6, 5, bias=False), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.extra - self.linear(x) / (1 + self.extra.exp())


class Twice(nn.Module):
    """What is scaled is needed without the scale too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y + self.norm(y)


class Sliced(nn.Module):
    """Fewer factors than channels: the others are not read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 8), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)[:, 1:6] * self.scale


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rate", torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[-2])[:, None] * self.rate
        return x * torch.cat([angles.cos(), angles.sin()], -1)


class Dequantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (5, 8), dtype=torch.int8))
        self.scale = nn.Parameter(torch.rand(5, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.to(self.scale.dtype) * self.scale).t()


class Given(nn.Module):
    """A result that depends on parameters alone: the user may write to it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.exp() + 0 * x.sum() if x.shape[0] > 5 else self.weight.exp()


BN = nn.BatchNorm2d
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), BN(8), nn.SiLU()), (2, 3, 7, 7)),
    "no bias": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), BN(8)), (2, 3, 7, 7)),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(6, 6, 3, groups=6), BN(6), nn.Hardtanh()), (2, 6, 7, 7)),
    "groups": (lambda: nn.Sequential(nn.Conv2d(6, 8, 3, groups=2, stride=2), BN(8)), (2, 6, 9, 9)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2), BN(6)), (2, 4, 5, 5)),
    "transposed groups": (lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), BN(6)), (2, 4, 5, 5)),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3), BN(8)).to(memory_format=torch.channels_last),
        (2, 4, 7, 7),
    ),
    "1d": (lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.GELU()), (2, 3, 17)),
    "linear": (lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6, affine=False)), (5, 8)),
    "large linear": (lambda: nn.Sequential(nn.Linear(96, 80), nn.BatchNorm1d(80), nn.ReLU()), (70, 96)),
    "norm first": (lambda: nn.Sequential(BN(3), nn.ReLU(), nn.Conv2d(3, 4, 1)), (2, 3, 5, 5)),
    "two norms": (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), BN(4), BN(4)), (2, 3, 5, 5)),
    "layer scale": (LayerScale, (2, 6, 4, 3)),
    "unbiased": (Unbiased, (4, 6)),
    "twice": (Twice, (2, 3, 4, 4)),
    "sliced": (Sliced, (3, 4)),
    "rotary": (Rotary, (2, 6, 8)),
    "dequantized": (Dequantized, (3, 8)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(8, 6)), (3, 8)),
    "given": (Given, (3,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_results_are_eagers_and_follow_the_parameters(name: str) -> None:
    make, shape = MODELS[name]
    model = settled(make())
    x = torch.randn(shape)
    if name == "channels last":
        x = x.to(memory_format=torch.channels_last)
    run = frozen(model)
    agrees(run, model, x)
    with torch.no_grad():
        for each in [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]:
            each.mul_(1.25)
    agrees(run, model, x)
    assert len(smelt.reports()) == 1
    if name not in ("twice", "sliced", "transposed groups", "given"):
        assert report().folded > 0
        assert report().folded_bytes >= 4 * report().folded


@pytest.mark.parametrize(
    "name", ["no bias", "depthwise", "groups", "transposed", "1d", "linear", "two norms"]
)
def test_batch_norm_leaves_nothing_behind(name: str) -> None:
    make, shape = MODELS[name]
    model = settled(make())
    frozen(model)(torch.randn(shape))
    kept = [operators for operators in report().fused if any("batch_norm" in each for each in operators)]
    assert not kept


def test_equal_layers_share_their_code() -> None:
    layers = [nn.Sequential(nn.Conv2d(4, 4, 1), BN(4), nn.ReLU()) for _ in range(5)]
    model, x = settled(nn.Sequential(*layers)), torch.randn(2, 4, 5, 5)
    run = frozen(model)
    agrees(run, model, x)
    assert report().folded == 10
    assert report().text("plan").count("# ahead") == 1
    assert "5 times" in report().text("plan")


def test_the_reading_of_a_scaled_part_stays_within_its_factors() -> None:
    model = Sliced()
    run = frozen(model)
    for rows in (1, 4):
        agrees(run, model, torch.randn(rows, 4))


def test_what_is_given_out_is_the_users() -> None:
    model, x = Given(), torch.randn(3)
    run = frozen(model)
    run(x).zero_()
    agrees(run, model, x)


class Scattered(nn.Module):
    """Constants that something is put into, sorted and summed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(10, 4))
        self.register_buffer("rows", torch.tensor([1, 3, 3]))

    def forward(self, x: Tensor) -> Tensor:
        base = self.table.exp()
        put = base.index_add(0, self.rows, x) + base.index_put((self.rows[:2],), x[1:])
        return put * self.table.sort(0)[0] + self.table.cumsum(0) + base


def test_what_is_kept_is_not_written_to() -> None:
    model, x = Scattered(), torch.randn(3, 4)
    run = frozen(model)
    for _ in range(3):
        agrees(run, model, x)
    assert report().folded > 0


def test_a_view_of_a_parameter_stays_one() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.weight[1:].t(), self.weight.t().exp() + x

    model = Views()
    view, result = frozen(model)(torch.randn(4, 3))
    assert view.data_ptr() == model.weight[1:].data_ptr()
    assert result.stride() == model(torch.randn(4, 3))[1].stride()


def test_branches_read_parameters_as_they_are() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.linear(x) * 2, lambda x: x - self.linear(x), (x,))

    model, x = Branches(), torch.randn(3, 4)
    run = frozen(model)
    for sign in (1, -1):
        agrees(run, model, sign * x)
        with torch.no_grad():
            model.linear.weight.mul_(2)


def test_weights_are_converted_once_under_autocast() -> None:
    model, x = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).eval(), torch.randn(4, 8)
    run = frozen(model)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            torch.testing.assert_close(run(x), model(x), rtol=2e-2, atol=2e-2)
        with torch.no_grad():
            model[0].weight.mul_(2)
    assert report().folded >= 2


# -- who changes what ---------------------------------------------------------------------------------------


def _multiplied(model: Any) -> None:
    model[0].weight.mul_(2)


def _one_element(model: Any) -> None:
    model[3].weight[7, 1, 2, 0] = 5


def _a_buffer(model: Any) -> None:
    model[1].running_var.mul_(3)


def _loaded(model: Any) -> None:
    model.load_state_dict({n: 2 * t if t.is_floating_point() else t for n, t in model.state_dict().items()})


def _assigned(model: Any) -> None:
    state = {n: 2 * t if t.is_floating_point() else t for n, t in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def _other_memory(model: Any) -> None:
    model[1].weight.data = torch.randn(8)


def _other_memory_twice(model: Any) -> None:
    for _ in range(2):
        model[1].weight.data = model[1].weight.data * 2


def _other_parameter(model: Any) -> None:
    model[4].bias = nn.Parameter(torch.randn(8))


def _behind_the_counter(model: Any) -> None:
    model[1].weight.data.mul_(2)


def _through_numpy(model: Any) -> None:
    model[0].weight.detach().numpy()[...] *= 2


def _swapped(model: Any) -> None:
    torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.randn(8, 3, 3, 3)))


def _stepped(kind: Any, **options: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        optimizer = kind(model.parameters(), lr=0.01, **options)
        with torch.enable_grad():
            model(torch.ones(2, 3, 9, 9)).square().mean().backward()
        optimizer.step()

    return change


CHANGES: dict[str, Callable[[Any], None]] = {
    "mul_": _multiplied,
    "one element": _one_element,
    "a buffer": _a_buffer,
    "load_state_dict": _loaded,
    "load_state_dict, assign": _assigned,
    "data =": _other_memory,
    "data = twice": _other_memory_twice,
    "another parameter": _other_parameter,
    "data.mul_": _behind_the_counter,
    "numpy": _through_numpy,
    "swap_tensors": _swapped,
    "SGD": _stepped(torch.optim.SGD, foreach=False),
    "foreach": _stepped(torch.optim.AdamW, foreach=True),
    "fused": _stepped(torch.optim.AdamW, fused=True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(name: str) -> None:
    model, x = small()
    run = frozen(model)
    agrees(run, model, x)
    before = model(x).detach()
    for _ in range(2):
        with torch.no_grad():
            CHANGES[name](model)
        agrees(run, model, x)
    assert not torch.equal(before, model(x))
    assert {each.kind for each in smelt.reports()} == {"inference"}


def test_another_module_has_its_own_constants() -> None:
    first, x = small()
    second, _ = small()

    @smelt.compile(mode="max")
    def run(model: nn.Module, x: Tensor) -> Any:
        return model(x)

    for _ in range(2):
        for model in (first, second):
            agrees(lambda x, model=model: run(model, x), model, x)


def test_a_module_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model, x = small()
        run = smelt.compile(model, mode="max")
        torch.testing.assert_close(run(x), model(x))
        model[1].weight.mul_(2)
        torch.testing.assert_close(run(x), model(x))


def test_a_buffer_that_changes_at_every_call() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("step", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * (self.step + 1).exp()

    model, x = Counting(), torch.randn(3, 4)
    run = frozen(model)
    for turn in range(folded.MOST_CHANGES + 6):
        model.step.mul_(0.9)
        agrees(run, model, x)
        assert len(smelt.reports()) == 1 + (turn > folded.MOST_CHANGES)
    assert [each.folded for each in smelt.reports()][1] < smelt.reports()[0].folded
    assert not any("f32[4]*" in line for line in smelt.reports()[1].text("plan").splitlines())


class Recurrent(nn.Module):
    """A module that replaces its state, which is registered nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.recurrent, self.state = nn.Linear(16, 16), nn.Linear(16, 16), torch.zeros(1, 16)

    def forward(self, x: Tensor) -> Tensor:
        self.state = torch.tanh(self.layer(x) + self.recurrent(self.state))
        return self.state * 2


def test_state_that_the_model_replaces_is_no_constant() -> None:
    model, twin = Recurrent(), Recurrent()
    twin.load_state_dict(model.state_dict())
    run = frozen(model, dynamic=False)
    for _ in range(folded.MOST_CHANGES + 4):
        x = torch.randn(1, 16)
        with torch.no_grad():
            torch.testing.assert_close(run(x), twin(x))
    products = [each.what for each in smelt.reports()[-1].choices]
    assert products and len(smelt.reports()) == 2
    assert not any("f32[1, 16]*" in each for each in products)  # a star is what is the same at every call


def test_a_change_now_and_then_compiles_nothing() -> None:
    model, x = small()
    run = frozen(model)
    for _ in range(folded.MOST_CHANGES + 3):
        with torch.no_grad():
            model[0].weight.mul_(1.01)
        agrees(run, model, x)
        agrees(run, model, x)
    assert len(smelt.reports()) == 1


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int) -> None:
    """Inputs of a random program as buffers, which change between the calls."""
    program = generate(seed)
    function = program.function()
    drawn = random.Random(seed)
    tensors = [each.detach() for each in program.arguments()]
    names = [f"buffer{place}" if drawn.random() < 0.7 else None for place in range(len(tensors))]

    class Module(nn.Module):
        def forward(self, *rest: Tensor) -> Any:
            others = iter(rest)
            return function(*(getattr(self, name) if name else next(others) for name in names))

    model, others = Module(), []
    for name, tensor in zip(names, tensors):
        if name:
            model.register_buffer(name, tensor)
        else:
            others.append(tensor)
    run = frozen(model, dynamic=False)
    for _ in range(2):
        before = clones(tensors)
        wide = clones(before, torch.float64)
        with torch.no_grad():
            expected, exact = function(*before), function(*wide)
        assert_agree(
            [*run(*others), *tensors], [*expected, *before], lambda exact=exact, wide=wide: [*exact, *wide]
        )
        for name, tensor in zip(names, tensors):
            if name and tensor.is_floating_point() and 0 not in tensor.stride():
                tensor.mul_(1.125)


# -- programs -----------------------------------------------------------------------------------------------


def test_any_size_with_dynamic_shapes() -> None:
    model, _ = small()
    run = frozen(model, dynamic=True)
    for size in (9, 12):
        agrees(run, model, torch.randn(2, 3, size, size))
    _multiplied_without_grad(model)
    agrees(run, model, torch.randn(2, 3, 12, 12))
    assert report().folded > 0


def _multiplied_without_grad(model: nn.Module) -> None:
    with torch.no_grad():
        _multiplied(model)


def test_programs_share_constants() -> None:
    model, x = small()
    run = frozen(model, dynamic=False)
    gc.collect()
    before = set(folded._SHARED.values())
    agrees(run, model, x)
    made = set(folded._SHARED.values()) - before
    agrees(run, model, torch.randn(1, 3, 11, 11))
    assert len(smelt.reports()) == 2
    assert set(folded._SHARED.values()) - before == made
    _multiplied_without_grad(model)
    for size in (9, 11):
        agrees(run, model, torch.randn(2 if size == 9 else 1, 3, size, size))
    assert set(folded._SHARED.values()) - before == made


def test_constants_go_with_the_last_program() -> None:
    gc.collect()
    before = len(folded._SHARED)
    model, x = small()
    frozen(model)(x)
    assert len(folded._SHARED) > before
    smelt.reset()
    del model
    gc.collect()
    assert len(folded._SHARED) == before


def test_memory_that_was_replaced_goes() -> None:
    model, x = small()
    others = set(folded._SHARED)  # of models that other tests have not let go yet
    run = frozen(model)
    run(x)
    old = [weakref.ref(each) for key, each in folded._SHARED.items() if key not in others]
    assert old
    with torch.no_grad():
        for each in (model[1], model[4]):
            each.weight.data = torch.randn(8)
    agrees(run, model, x)
    assert all(each() is None for each in old)


def test_threads_agree_while_a_parameter_changes() -> None:
    model, x = small()
    run = frozen(model)
    run(x)
    results: list[Tensor] = []
    threads = [threading.Thread(target=lambda: results.extend(run(x) for _ in range(50))) for _ in range(4)]
    for each in threads:
        each.start()
    with torch.no_grad():
        for turn in range(20):
            model[1].weight.data = torch.full((8,), float(turn))
    for each in threads:
        each.join()
    assert len(results) == 200
    agrees(run, model, x)


def test_training_and_the_default_mode_freeze_nothing() -> None:
    model, x = small()
    smelt.compile(model, mode="max")(x).sum().backward()
    with torch.no_grad():
        smelt.compile(model)(x)
    assert [each.folded for each in smelt.reports() if each.kind != "eager"] == [0] * len(smelt.reports())


def test_statistics_that_the_graph_updates_are_not_frozen() -> None:
    model, x = small()
    other = copy.deepcopy(model)
    run = frozen(model.train())
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), other.train()(x))
    torch.testing.assert_close(model[1].running_mean, other[1].running_mean)
    agrees(frozen(model.eval()), model, x)


def test_exported_programs() -> None:
    model, x = small()
    exported = torch.export.export(model, (x,))
    run = smelt.compile(exported)
    torch.testing.assert_close(run(x), model(x))
    assert report().folded > 0
    with torch.no_grad():
        exported.state_dict["0.weight"].mul_(2)
    torch.testing.assert_close(run(x), exported.module()(x))


def test_a_cached_program_makes_its_constants_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    for hit in (False, True):
        smelt.reset()
        model, x = small()
        run = frozen(model)
        agrees(run, model, x)
        _multiplied_without_grad(model)
        agrees(run, model, x)
        assert report().cache_hit == hit
        assert report().folded > 0
        assert report().folded_bytes > 0


# -- products that meet in an attention ---------------------------------------------------------------------


class SelfAttention(nn.Module):
    """Attention with ``heads`` for queries and ``shared`` for keys and values, and a gated MLP."""

    def __init__(self, heads: int, shared: int, bias: bool) -> None:
        super().__init__()
        self.q = nn.Linear(24, heads * 8, bias=bias)
        self.k, self.v = (nn.Linear(24, shared * 8, bias=bias) for _ in range(2))
        self.gate, self.up = (nn.Linear(heads * 8, 20, bias=bias) for _ in range(2))
        self.register_buffer("angles", torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, 8)).transpose(1, 2) for each in (self.q, self.k, self.v))
        angles = torch.arange(x.shape[1])[:, None] * self.angles
        q, k = (each * angles.cos() + each.roll(4, -1) * angles.sin() for each in (q, k))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        y = y.transpose(1, 2).flatten(2)
        return nn.functional.silu(self.gate(y)) * self.up(y)


def product_columns() -> list[tuple[int, int]]:
    """How many products there are with how many columns."""
    found = [(each.what, each.count) for each in report().choices]
    widths = [(re.findall(r"f32\[\w+, (\d+)\]", what), n) for what, n in found if "mm(" in what]
    return sorted((int(sizes[-1]), n) for sizes, n in widths)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2)])
def test_q_k_and_v_are_one_product(heads: int, shared: int, bias: bool) -> None:
    model = SelfAttention(heads, shared, bias).eval()
    other = SelfAttention(heads, shared, bias)
    run = frozen(model, dynamic=True)
    for length in (7, 12):
        agrees(run, model, torch.randn(2, length, 24))
    assert product_columns() == [(20, 2), (8 * (heads + 2 * shared), 1)]
    model.load_state_dict(other.state_dict())
    agrees(run, model, torch.randn(3, 9, 24))
    with torch.no_grad():
        model.k.weight.mul_(2)
    agrees(run, model, torch.randn(2, 5, 24))
    assert len(smelt.reports()) == 1


def test_without_freezing_products_stay_apart() -> None:
    model = SelfAttention(4, 2, True).eval()
    agrees(frozen(model, freezing=False), model, torch.randn(2, 7, 24))
    assert product_columns() == [(16, 2), (20, 2), (32, 1)]
