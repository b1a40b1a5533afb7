"""Random rows in the reference interpreter: each distribution, refused arguments, layouts, dynamic sizes.

The seeds are fixed: a test of goodness of fit passes always or never. Its bound is one that a right
implementation exceeds for about one seed in ten thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from smelt.loops.interpreter import run_graph
from smelt.loops.ir import Extern, Graph
from smelt.lowering import lower
from tests.lowering.harness import check, fallen_back, lowered

aten = torch.ops.aten
COUNT = 20_000
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def sample(function: Callable[..., Any], *inputs: Any, seed: int = 0, **options: Any) -> Any:
    """The first result of the lowered function; no call of it may go to ATen with a reason."""
    graph = lowered(function, *inputs, **options)
    assert fallen_back(graph) == []
    return run(graph, *inputs, seed=seed)[0]


def run(graph: Graph, *inputs: Any, seed: int = 0) -> list[Any]:
    torch.manual_seed(seed)
    return run_graph(graph, [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs])


def assert_fits(x: torch.Tensor, cumulative: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Kolmogorov and Smirnov: the largest distance between the two cumulative distributions."""
    ordered = x.double().flatten().sort().values
    steps = torch.arange(len(ordered) + 1, dtype=torch.float64) / len(ordered)
    expected = cumulative(ordered)
    distance = torch.maximum((steps[1:] - expected).max(), (expected - steps[:-1]).max())
    assert distance * math.sqrt(len(ordered)) < 2.23, distance


def assert_frequencies(counts: torch.Tensor, chances: torch.Tensor) -> None:
    """Pearson's chi-square, by the cube-root approximation of Wilson and Hilferty (1931)."""
    expected = chances * counts.sum()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    free = len(counts) - 1
    deviation = ((statistic / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    assert abs(deviation) < 3.9, statistic


def normal_below(x: torch.Tensor) -> torch.Tensor:
    return torch.special.ndtr(x)


# -- floating distributions --------------------------------------------------------------------------------

WIDE = (torch.float32, torch.float64)
CONTINUOUS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[..., torch.Tensor]]] = {
    "rand_like": (torch.rand_like, lambda x: x.clamp(0, 1)),
    "uniform": (lambda x: aten.uniform(x, -3.0, 5.0), lambda x: (x + 3) / 8),
    "randn_like": (torch.randn_like, normal_below),
    "normal": (lambda x: aten.normal_functional(x, 2.0, 3.0), lambda x: normal_below((x - 2) / 3)),
    "exponential": (lambda x: aten.exponential(x, 2.5), lambda x: -torch.expm1(-2.5 * x)),
    "cauchy": (lambda x: aten.cauchy(x, 1.0, 2.0), lambda x: 0.5 + torch.atan((x - 1) / 2) / math.pi),
    "log_normal": (lambda x: aten.log_normal(x, 0.5, 1.5), lambda x: normal_below((x.log() - 0.5) / 1.5)),
}


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name: str, dtype: torch.dtype) -> None:
    function, cumulative = CONTINUOUS[name]
    x = sample(function, torch.empty(COUNT // 40, 40, dtype=dtype))
    assert x.dtype == dtype and x.isfinite().all()
    assert_fits(x, cumulative)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_every_floating_dtype_has_the_right_middle(name: str, dtype: torch.dtype) -> None:
    function, cumulative = CONTINUOUS[name]
    x = sample(function, torch.empty(4000, dtype=dtype), seed=1)
    assert x.dtype == dtype
    middle = cumulative(x.double().median())
    assert abs(middle - 0.5) < 4 * 0.5 / math.sqrt(4000) + 0.01


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_numbers_reach_all_of_the_interval_and_never_its_end(dtype: torch.dtype) -> None:
    x = sample(torch.rand_like, torch.empty(COUNT, dtype=dtype))
    assert x.min() >= 0 and x.max() < 1 and x.max() > 0.99
    digits = {torch.float16: 11, torch.bfloat16: 8}.get(dtype)
    if digits:
        assert torch.equal(x.double() * 2**digits, (x.double() * 2**digits).round())
        assert len(x.unique()) == 2**digits if digits == 8 else len(x.unique()) > 2040


def test_exponential_is_never_zero() -> None:
    assert (sample(lambda x: aten.exponential(x, 1.0), torch.empty(COUNT)) > 0).all()


def test_normal_of_tensors_broadcasts() -> None:
    mean, std = torch.tensor([[10.0], [-10.0]]).double(), torch.linspace(0, 3, 5000).double()
    for function in (
        lambda mean, std: torch.normal(mean, std),
        lambda mean, std: torch.normal(mean.expand(2, 5000), 2.0) + 0 * std,
        lambda mean, std: torch.normal(1.0, std),
    ):
        graph = lowered(function, mean, std)
        assert fallen_back(graph) == []
        got = run(graph, mean, std)[0]
        assert got.shape == function(mean, std).shape
    exact = sample(lambda mean, std: torch.normal(mean, std * 0), mean, std)
    assert torch.equal(exact, mean.expand(2, 5000))
    scaled = sample(lambda mean, std: torch.normal(mean, std), mean, std)[:, 1:] - mean
    assert_fits(scaled / std[1:], normal_below)


# -- integers and booleans ---------------------------------------------------------------------------------

BINS = 64


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 64),
        (-1000, 5400),
        (5, 5 + 64 * 10**6),
        (0, 1 << 32),
        (-7, (1 << 40) - 7),
        (0, (1 << 63) - 1),
        (-(1 << 63), (1 << 63) - 1),
        (-(1 << 62) - (1 << 61), (1 << 62) + (1 << 61)),
    ],
)
def test_integers_are_even_over_their_range(low: int, high: int) -> None:
    x = sample(lambda: torch.randint(low, high, (COUNT,)))
    assert x.dtype == torch.int64 and x.min() >= low and x.max() < high
    bins = [(value - low) * BINS // (high - low) for value in x.tolist()]
    counts = torch.bincount(torch.tensor(bins), minlength=BINS).double()
    assert_frequencies(counts, torch.full((BINS,), 1 / BINS))


def test_all_of_a_small_range_comes_equally_often() -> None:
    x = sample(lambda: torch.randint(-3, 4, (COUNT,), dtype=torch.int8))
    assert x.dtype == torch.int8
    assert_frequencies(torch.bincount(x.long() + 3).double(), torch.full((7,), 1 / 7))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_random_takes_all_that_is_not_negative(dtype: torch.dtype) -> None:
    x = sample(lambda x: aten.random(x), torch.empty(COUNT, dtype=dtype))
    largest = torch.iinfo(dtype).max
    assert x.dtype == dtype and x.min() >= 0 and x.max() > 0.98 * largest
    bins = torch.tensor([value * 16 // (largest + 1) for value in x.tolist()])
    assert_frequencies(torch.bincount(bins, minlength=16).double(), torch.full((16,), 1 / 16))


def test_random_in_other_dtypes_and_ranges() -> None:
    whole = sample(lambda x: aten.random(x), torch.empty(COUNT))
    assert torch.equal(whole, whole.round()) and whole.min() >= 0 and 2**24 * 0.99 < whole.max() <= 2**24
    yes = sample(lambda x: aten.random(x), torch.empty(COUNT, dtype=torch.bool))
    assert abs(yes.double().mean() - 0.5) < 0.02
    some = sample(lambda x: aten.random(x, 10), torch.empty(COUNT, dtype=torch.int32))
    assert some.unique().tolist() == list(range(10))
    below = random_from(torch.empty(COUNT, dtype=torch.int16), -5, 5)
    assert below.unique().tolist() == list(range(-5, 5))
    most = random_from(torch.empty(COUNT, dtype=torch.int8), 100, None)
    assert most.unique().tolist() == list(range(100, 128))
    every = random_from(torch.empty(COUNT, dtype=torch.int64), torch.iinfo(torch.int64).min, None)
    assert abs((every < 0).double().mean() - 0.5) < 0.02


def random_from(x: torch.Tensor, low: int, high: int | None) -> torch.Tensor:
    """``aten.random.from``, which no traced function can call: "from" is a word of Python."""
    traced = make_fx(lambda x: aten.random.to(x, 1), tracing_mode="fake")(x).graph
    (node,) = traced.find_nodes(op="call_function", target=aten.random.to)
    node.target, node.args = getattr(aten.random, "from"), (node.args[0], low, high)
    graph = lower(traced)
    assert fallen_back(graph) == []
    return run(graph, x)[0]


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.3, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_bernoulli_of_a_number(p: float, dtype: torch.dtype) -> None:
    x = sample(lambda x: aten.bernoulli(x, p), torch.empty(COUNT, dtype=dtype), seed=2)
    assert x.dtype == dtype and set(x.double().unique().tolist()) <= {0.0, 1.0}
    assert abs(x.double().mean() - p) <= 4 * math.sqrt(p * (1 - p) / COUNT)


@pytest.mark.parametrize("dtype", FLOATS)
def test_bernoulli_of_a_tensor(dtype: torch.dtype) -> None:
    p = torch.tensor([0.0, 0.25, 0.75, 1.0], dtype=dtype)
    for function in (
        lambda p: torch.bernoulli(p.expand(COUNT // 4, 4)),
        lambda p: aten.bernoulli.Tensor(p.new_empty(COUNT // 4, 4), p),
    ):
        x = sample(function, p)
        assert x.dtype == dtype
        assert (x.double().mean(0) - p.double()).abs().max() < 4 * 0.5 / math.sqrt(COUNT / 4)
        assert (x[:, 0] == 0).all() and (x[:, 3] == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_geometric(dtype: torch.dtype) -> None:
    x = sample(lambda x: aten.geometric(x, 0.3), torch.empty(COUNT, dtype=dtype))
    assert x.dtype == dtype and x.min() == 1
    last = 15
    counts = torch.bincount(x.long().clamp(max=last), minlength=last + 1)[1:].double()
    chances = 0.3 * 0.7 ** torch.arange(last, dtype=torch.float64)
    chances[-1] = 0.7 ** (last - 1)
    assert_frequencies(counts, chances)


# -- dropout and rrelu -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_dropout_is_the_input_times_the_mask(p: float, dtype: torch.dtype) -> None:
    x = torch.randn(COUNT // 10, 10, generator=torch.Generator().manual_seed(0)).to(dtype).t()
    x[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    graph = lowered(lambda x: torch.native_dropout(x, p, True), x)
    assert fallen_back(graph) == []
    out, mask = run(graph, x)
    assert mask.dtype == torch.bool and out.dtype == dtype
    assert out.stride() == x.stride() and mask.stride() == x.stride()
    assert abs(mask.double().mean() - (1 - p)) <= 4 * math.sqrt(p * (1 - p) / COUNT)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    torch.testing.assert_close(out, (x * mask).mul_(scale), rtol=0, atol=0, equal_nan=True)


def test_dropout_that_is_off_keeps_everything() -> None:
    x = torch.randn(30, 4)
    out, mask = run(lowered(lambda x: torch.native_dropout(x, 0.5, False), x), x)
    assert torch.equal(out, x) and mask.all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_rrelu(dtype: torch.dtype) -> None:
    x = torch.linspace(-2, 2, COUNT).to(dtype)
    x[5] = math.nan
    noise = torch.empty_like(x)

    def train(x: torch.Tensor, noise: torch.Tensor) -> Any:
        return aten.rrelu_with_noise_functional(x, noise, 0.1, 0.4, True)

    out, slopes = run(lowered(train, x, noise), x, noise)
    assert torch.equal(slopes[~(x <= 0)], torch.ones_like(slopes[~(x <= 0)]))
    drawn = slopes[x <= 0].double()
    tolerance = 2 * torch.finfo(dtype).eps
    assert drawn.min() >= 0.1 * (1 - tolerance) and drawn.max() <= 0.4 * (1 + tolerance)
    if dtype in WIDE:
        assert_fits(drawn, lambda x: ((x - 0.1) / 0.3).clamp(0, 1))
    expected = (x.double() * slopes.double()).to(dtype)
    torch.testing.assert_close(out, expected, rtol=4 * tolerance, atol=1e-7, equal_nan=True)

    def rest(x: torch.Tensor, noise: torch.Tensor) -> Any:
        return aten.rrelu_with_noise_functional(x, noise, 0.1, 0.4, False)

    got, same = run(lowered(rest, x, torch.ones_like(x)), x, torch.ones_like(x))
    torch.testing.assert_close(
        got, torch.nn.functional.rrelu(x, 0.1, 0.4), rtol=tolerance, atol=0, equal_nan=True
    )
    assert torch.equal(same, torch.ones_like(x))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("lower", "upper", "training"), [(0.1, 0.4, True), (0.2, 0.2, True), (0.1, 0.4, False)]
)
def test_rrelu_backward(lower: float, upper: float, training: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    grad, x, noise = (torch.randn(50, 3, generator=generator).to(dtype) for _ in range(3))
    check(lambda *args: aten.rrelu_with_noise_backward(*args, lower, upper, training, False), grad, x, noise)


# -- what does not depend on what --------------------------------------------------------------------------


def test_strides_do_not_matter_and_are_kept() -> None:
    flat = sample(torch.randn_like, torch.empty(6, 8, 10))
    turned = sample(torch.randn_like, torch.empty(10, 8, 6).permute(2, 1, 0))
    assert turned.stride() == (1, 6, 48)
    assert torch.equal(flat, turned)


def test_two_calls_have_nothing_in_common_and_the_first_does_not_change_the_second() -> None:
    one, two = run(lowered(lambda: (torch.rand(5000), torch.rand(5000))))
    assert (one - two).abs().min() > 0 or not torch.equal(one, two)
    assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1]) < 4 / math.sqrt(5000)
    (longer, same) = run(lowered(lambda: (torch.rand(77), torch.rand(5000))))
    assert torch.equal(same, two) and torch.equal(longer, one[:77])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1)])
def test_no_dimensions_and_no_elements(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    for function in (torch.rand_like, torch.randn_like, lambda x: torch.randint(0, 5, x.shape)):
        assert sample(function, x).shape == shape
    out, mask = run(lowered(lambda x: torch.native_dropout(x, 0.5, True), x), x)
    assert out.shape == mask.shape == shape


def test_dynamic_sizes() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        n = x.shape[0]
        return [
            torch.rand(n, 3),
            torch.randint(n, x.shape),
            torch.randint(-n, n * 2, x.shape),
            x.bernoulli(0.5),
        ]

    graph = lowered(function, torch.empty(7, 5), symbolic=True)
    assert fallen_back(graph) == []
    for rows in (2, 7, 3000):
        fixed = run(lowered(function, torch.empty(rows, 5)), torch.empty(rows, 5))
        rand, below, both, yes = run(graph, torch.empty(rows, 5))
        assert torch.equal(rand, fixed[0]) and torch.equal(yes, fixed[3])
        assert below.min() >= 0 and below.max() < rows
        assert both.min() >= -rows and both.max() < 2 * rows
    assert below.unique().numel() > 2500 and both.min() < -2900 and both.max() > 5900


# -- who draws ---------------------------------------------------------------------------------------------


def seeds(graph: Graph) -> list[str]:
    return [node.body.target for node in graph.nodes if isinstance(node.body, Extern)]


def test_one_seed_serves_all_calls_and_none_is_drawn_for_nothing() -> None:
    assert seeds(lowered(lambda x: torch.rand_like(x) + torch.randn_like(x), torch.empty(3))) == [
        "aten.randint.low"
    ]
    assert seeds(lowered(torch.sin, torch.empty(3))) == []
    refused = lowered(lambda x: aten.normal_functional(x, 0.0, 1.0), torch.empty(3, dtype=torch.complex64))
    assert seeds(refused) == ["aten.normal_functional.default"]


REFUSED: dict[str, tuple[Callable[..., Any], Sequence[torch.Tensor]]] = {
    "bernoulli of 1.5": (lambda x: aten.bernoulli(x, 1.5), [torch.empty(3)]),
    "bernoulli of nan": (lambda x: aten.bernoulli(x, math.nan), [torch.empty(3)]),
    "dropout of -0.1": (lambda x: torch.native_dropout(x, -0.1, True), [torch.empty(3)]),
    "normal with std -1": (lambda x: aten.normal_functional(x, 0.0, -1.0), [torch.empty(3)]),
    "normal with std nan": (lambda x: aten.normal_functional(x, 0.0, math.nan), [torch.empty(3)]),
    "uniform backwards": (lambda x: aten.uniform(x, 1.0, 0.0), [torch.empty(3)]),
    "uniform without end": (lambda x: aten.uniform(x, 0.0, math.inf), [torch.empty(3)]),
    "uniform of integers": (lambda x: aten.uniform(x, 0.0, 1.0), [torch.empty(3, dtype=torch.int64)]),
    "exponential of 0": (lambda x: aten.exponential(x, 0.0), [torch.empty(3)]),
    "exponential of integers": (lambda x: aten.exponential(x, 1.0), [torch.empty(3, dtype=torch.int64)]),
    "geometric of 1": (lambda x: aten.geometric(x, 1.0), [torch.empty(3)]),
    "cauchy of 0": (lambda x: aten.cauchy(x, 0.0, 0.0), [torch.empty(3)]),
    "log_normal of 0": (lambda x: aten.log_normal(x, 0.0, 0.0), [torch.empty(3)]),
    "randint of nothing": (lambda x: aten.randint.low(5, 5, [3]) + x, [torch.empty(3)]),
    "random out of the dtype": (lambda x: aten.random(x, 300), [torch.empty(3, dtype=torch.int8)]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_eager_refuses_raise_as_in_eager(name: str) -> None:
    function, inputs = REFUSED[name]
    with pytest.raises(Exception) as eager:
        function(*inputs)
    with pytest.raises(type(eager.value)):
        run(lowered(function, *inputs), *inputs)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan])
def test_a_probability_outside_of_zero_to_one_raises_when_it_runs(wrong: float) -> None:
    p = torch.tensor([0.5, wrong, 0.2])
    graph = lowered(torch.bernoulli, p)
    assert fallen_back(graph) == []
    with pytest.raises(RuntimeError) as eager:
        torch.bernoulli(p)
    with pytest.raises(RuntimeError) as mine:
        run(graph, p)
    assert str(mine.value).split(".")[0] in str(eager.value)


@pytest.mark.parametrize("wrong", [-1.0, math.nan])
def test_a_negative_deviation_raises_when_it_runs(wrong: float) -> None:
    std = torch.tensor([1.0, wrong])
    graph = lowered(lambda std: torch.normal(0.0, std), std)
    with pytest.raises(RuntimeError) as eager:
        torch.normal(0.0, std)
    with pytest.raises(RuntimeError) as mine:
        run(graph, std)
    assert str(mine.value).split(".")[0] in str(eager.value)


def test_a_generator_of_ones_own_is_used() -> None:
    graph = lowered(lambda: torch.ops.aten.rand.generator([3], generator=None))
    assert fallen_back(graph) == []


def test_on_request_aten_draws() -> None:
    traced = make_fx(lambda x: torch.rand_like(x) + 1, tracing_mode="fake")(torch.empty(3))
    graph = lower(traced, fallback_random=True)
    assert fallen_back(graph) == ["aten.rand_like.default"]
    torch.manual_seed(4)
    expected = torch.rand(3) + 1
    assert torch.equal(run(graph, torch.empty(3), seed=4)[0], expected)


# -- permutations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.float32, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_permutations_hold_each_number_once(count: int, dtype: torch.dtype) -> None:
    order = sample(lambda: torch.randperm(count, dtype=dtype))
    assert order.dtype == dtype
    assert torch.equal(order.sort().values, torch.arange(count, dtype=dtype))


def test_all_permutations_come_equally_often() -> None:
    graph = lowered(lambda: torch.stack([torch.randperm(4) for _ in range(10)]))
    assert fallen_back(graph) == []
    orders = torch.cat([run(graph, seed=seed)[0] for seed in range(60)])
    codes = (orders @ torch.tensor([64, 16, 4, 1])).unique(return_counts=True)
    assert len(codes[0]) == 24
    assert_frequencies(codes[1].double(), torch.full((24,), 1 / 24))


def test_permutations_of_dynamic_length() -> None:
    graph = lowered(lambda x: x[torch.randperm(x.shape[0])], torch.arange(5), symbolic=True)
    assert fallen_back(graph) == []
    for count in (2, 300):
        shuffled = run(graph, torch.arange(count))[0]
        assert torch.equal(shuffled.sort().values, torch.arange(count))
    assert not torch.equal(shuffled, torch.arange(300))


# -- multinomial -------------------------------------------------------------------------------------------

WEIGHTS = torch.tensor([0.5, 0.0, 2.0, 1.0, 0.25, 3.0])


def assert_by_weight(drawn: torch.Tensor, weights: torch.Tensor) -> None:
    counts = torch.bincount(drawn.flatten(), minlength=len(weights)).double()
    assert counts[weights == 0].sum() == 0
    some = weights > 0
    assert_frequencies(counts[some], (weights / weights.sum())[some].double())


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_category_by_weight(dtype: torch.dtype) -> None:
    rows = WEIGHTS.to(dtype).expand(5000, 6)
    drawn = sample(lambda x: torch.multinomial(x, 1), rows)
    assert drawn.shape == (5000, 1) and drawn.dtype == torch.int64
    assert_by_weight(drawn, WEIGHTS)
    assert sample(lambda x: torch.multinomial(x, 1), torch.tensor([0.0, 1.0, 0.0]).to(dtype)).tolist() == [1]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("categories", [1, 2, 6, 7, 8, 1000])
def test_categories_with_replacement(categories: int, dtype: torch.dtype) -> None:
    weights = WEIGHTS.repeat(categories)[:categories] if categories != 1000 else torch.ones(1000)
    drawn = sample(lambda x: torch.multinomial(x, 8000, replacement=True), weights.to(dtype))
    assert drawn.shape == (8000,)
    if categories > 2:
        assert_by_weight(drawn // (1000 // 8) if categories == 1000 else drawn, *_grouped(weights))
    rows = sample(
        lambda x: torch.multinomial(x, 40, replacement=True), weights.to(dtype).expand(100, categories)
    )
    assert rows.shape == (100, 40)
    assert (weights[rows] > 0).all()


def _grouped(weights: torch.Tensor) -> list[torch.Tensor]:
    return [weights] if len(weights) < 1000 else [weights.view(8, 125).sum(1)]


def test_categories_without_replacement() -> None:
    drawn = sample(lambda x: torch.multinomial(x, 3), WEIGHTS.expand(5000, 6))
    assert drawn.shape == (5000, 3)
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    assert_by_weight(drawn[:, 0], WEIGHTS)
    left = WEIGHTS.clone()
    left[5] = 0
    assert_by_weight(drawn[drawn[:, 0] == 5][:, 1], left)
    order = sample(lambda x: torch.multinomial(x, 6), torch.ones(200, 6))
    assert (order.sort(-1).values == torch.arange(6)).all()


def test_categories_of_dynamic_size() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.multinomial(x, 1), torch.multinomial(x, 50, replacement=True)

    graph = lowered(function, torch.ones(3, 5), symbolic=True)
    assert fallen_back(graph) == []
    for rows, categories in ((2, 3), (4, 1000), (7, 2)):
        weights = torch.ones(rows, categories)
        weights[:, : categories // 2] = 0
        for drawn in run(graph, weights):
            assert drawn.min() >= categories // 2 and drawn.max() < categories
            fixed = run(lowered(function, weights), weights)
    assert all(map(torch.equal, run(graph, weights), fixed))


@pytest.mark.parametrize(
    "weights",
    [[1.0, -1.0], [1.0, math.nan], [1.0, math.inf], [0.0, 0.0]],
    ids=["negative", "nan", "inf", "none"],
)
@pytest.mark.parametrize(("count", "replacement"), [(1, False), (2, False), (2, True), (1, True)])
def test_weights_that_are_none_raise_as_in_eager(weights: list[float], count: int, replacement: bool) -> None:
    x = torch.tensor(weights)
    with pytest.raises(RuntimeError) as eager:
        torch.multinomial(x, count, replacement)
    graph = lowered(lambda x: torch.multinomial(x, count, replacement), x)
    assert fallen_back(graph) == []
    with pytest.raises(RuntimeError) as mine:
        run(graph, x)
    assert str(mine.value) == str(eager.value)
