"""Dynamic sizes: small programs at several sizes, each compiled once, each time what eager gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch.nn.functional as F
from torch import Tensor

import smelt
from smelt.backend import compile_graph
from smelt.capture import Program, shape_env_of
from smelt.config import Config
from smelt.pipeline import compile_program

pytestmark = pytest.mark.usefixtures("fresh")

Args = tuple[Any, ...]


def compare(program: Callable[..., Any], inputs: Sequence[Args], **options: Any) -> list[Any]:
    """Run the program compiled and in eager on each of the inputs; what was reported on."""
    compiled = torch.compile(program, backend="smelt", fullgraph=True, **options)
    for args in inputs:
        expected = program(*args)
        torch.testing.assert_close(compiled(*args), expected, equal_nan=True)
    return smelt.reports()


def once(program: Callable[..., Any], inputs: Sequence[Args], **options: Any) -> None:
    """`compare`; one compile has to serve all inputs, without a fallback."""
    reports = compare(program, inputs, **options)
    assert [report.kind for report in reports] == ["inference"]
    assert not reports[0].fallbacks


SIZES = [(8, 10), (9, 9), (14, 6), (6, 33), (20, 9)]
"""None is so small that a half of it is 1: for that, PyTorch itself compiles anew."""


def matrices() -> list[Args]:
    return [(torch.randn(*size),) for size in SIZES]


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: torch.relu(x) * 2 - 1,
    "sum of all": lambda x: x.sum(),
    "mean of rows": lambda x: x.mean(1, keepdim=True) - x,
    "softmax": lambda x: x.softmax(-1),
    "layer norm of columns": lambda x: (x - x.mean(0)) / x.std(0, correction=0),
    "argmax": lambda x: x.argmax(0),
    "transpose": lambda x: x.t().contiguous() + 1,
    "flatten": lambda x: x.reshape(-1) * 2,
    "flatten and back": lambda x: x.flatten().view(x.shape[0], x.shape[1]) + 1,
    "split in half": lambda x: torch.cat([x, x]).view(2, x.shape[0], -1).sum(0),
    "slice to the half": lambda x: x[: x.shape[0] // 2] * 3,
    "slice from the half": lambda x: x[:, x.shape[1] // 2 :] + 1,
    "every second": lambda x: x[:, ::2] + x[:, : (x.shape[1] + 1) // 2],
    "last rows": lambda x: x[-2:] * 2,
    "negative bounds": lambda x: x[:-1, 1:] * 2,
    "cat": lambda x: torch.cat([x, x * 2, x[:1]]),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "pad": lambda x: F.pad(x, (1, 2, x.shape[0], 0)),
    "flip and roll": lambda x: x.flip(0).roll(1, 1),
    "expand": lambda x: x[:1].expand(x.shape[0] * 2, -1) + 1,
    "outer sum": lambda x: x[:, :, None] + x[:, None, :],
    "size as a number": lambda x: x * x.shape[0] + x.shape[1] / 2,
    "size as a tensor": lambda x: torch.arange(x.shape[1]) + x.shape[0],
    "products of sizes": lambda x: torch.full((x.shape[0] * x.shape[1] + 1,), x.shape[0] * 2.0),
    "square mask": lambda x: (x @ x.t()).tril(),
    "matmul": lambda x: (x @ x.t()).relu() @ x,
    "cumsum": lambda x: x.cumsum(0),
    "gather": lambda x: x.gather(1, (x > 0).long()),
    "index by a list": lambda x: x[[0, 1, -1]],
    "chunks": lambda x: x.chunk(2, 0)[0].sum() + x.chunk(2, 1)[1].sum(),
    "repeat": lambda x: x.repeat(2, 3),
    "unfold": lambda x: x.unfold(1, 2, 1).sum(-1),
    "diagonal": lambda x: x.diagonal().sum() + x.diagonal(1).sum(),
    "branches on sizes": lambda x: x * 2 if x.shape[0] > 1 else x,
    "returns sizes": lambda x: (x + 1, x.shape[0], x.shape[0] * x.shape[1]),
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2.0, mode="nearest"),
    "dynamic one-hot": lambda x: F.one_hot(x.argmax(1), 40).sum(0),
    "linspace of a size": lambda x: x * torch.linspace(0, 1, 5).sum(),
    "pool": lambda x: F.avg_pool1d(F.pad(x, (2, 2)), 3, 2),
    "variance": lambda x: x.var(1, correction=0) + x.var(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_for_all_sizes(name: str) -> None:
    once(PROGRAMS[name], matrices(), dynamic=True)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.reshape(x.shape[1], x.shape[0]) + 1,
        lambda x: x[x.shape[0] - 1] + x[:, x.shape[1] // 2].sum(),
    ],
)
def test_what_pytorch_specializes_is_right(program: Callable[[Tensor], Tensor]) -> None:
    """Dynamo guards on these sizes itself, whatever the backend is."""
    compare(program, matrices(), dynamic=True)


@pytest.mark.parametrize("name", ["flatten and back", "slice to the half", "pad", "softmax", "every second"])
def test_compiling_adds_no_guards(name: str) -> None:
    """What Dynamo and AOTAutograd have found to hold is all that the compiled graph depends on."""
    seen = []

    def watched(program: Program, config: Config) -> Any:
        environment = shape_env_of(program.example_inputs)
        assert environment is not None
        before = len(environment.guards), dict(environment.replacements), dict(environment.var_to_range)
        compiled = compile_program(program, config)
        seen.append(before == (len(environment.guards), environment.replacements, environment.var_to_range))
        return compiled

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_graph(graph, inputs, Config(), watched)

    torch.compile(PROGRAMS[name], backend=backend, dynamic=True)(*matrices()[0])
    assert seen == [True]


def test_two_inputs_of_independent_sizes() -> None:
    inputs = [(torch.randn(a, 4), torch.randn(b, 4)) for a, b in [(3, 5), (5, 3), (4, 4), (2, 9)]]
    once(lambda x, y: torch.cat([x, y]) @ y.t(), inputs, dynamic=True)


def test_broadcasting_between_symbols() -> None:
    inputs = [(torch.randn(a, b), torch.randn(b)) for a, b in [(3, 5), (5, 3), (2, 2), (7, 4)]]
    once(lambda x, y: x * y + y.sum(), inputs, dynamic=True)


def test_symbolic_strides_of_inputs() -> None:
    inputs = [(torch.randn(a, b).t(), torch.randn(a, 2 * b)[:, ::2]) for a, b in [(3, 5), (6, 4), (2, 7)]]
    once(lambda x, y: x.t() + y, inputs, dynamic=True)


def test_marked_dimension_is_the_only_symbol() -> None:
    def given(rows: int) -> Args:
        x = torch.randn(rows, 6)
        torch._dynamo.mark_dynamic(x, 0)
        return (x,)

    once(lambda x: (x * 2).sum(1), [given(rows) for rows in (4, 2, 9, 17)])
    (report,) = smelt.reports()
    assert len(report.symbols) == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_of_zero_and_one(dynamic: bool | None) -> None:
    inputs = [(torch.randn(a, b),) for a, b in [(4, 3), (1, 3), (0, 3), (5, 1), (1, 1), (3, 0), (6, 6)]]
    compare(lambda x: (x + x.sum(0)).reshape(-1) * 2, inputs, dynamic=dynamic)


def test_broadcasting_of_ones_is_not_taken_for_granted() -> None:
    inputs = [(torch.randn(a, 4), torch.randn(b, 4)) for a, b in [(3, 3), (5, 5), (4, 1), (1, 6), (1, 1)]]
    compare(lambda x, y: x * y, inputs, dynamic=True)


def test_what_a_guard_says_is_one_is_broadcast() -> None:
    inputs = [(torch.randn(1, 8, a), torch.randn(b)) for a, b in [(2, 7), (3, 5), (6, 3), (14, 7), (2, 1)]]
    compare(lambda x, y: F.avg_pool1d(x, 2) + y, inputs, dynamic=True)


def test_rows_looked_up_where_a_division_says_how_many() -> None:
    def function(x: Tensor, rows: Tensor) -> Tensor:
        table = F.avg_pool1d(x, 2).reshape(-1, 4)
        return table[rows] + table.sum(0)

    compare(function, [(torch.randn(1, 8, a), torch.arange(5)) for a in (14, 6, 23)], dynamic=True)


def test_training_at_several_sizes_compiles_once() -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        return F.gelu(x @ w).softmax(-1)[:, : x.shape[1] // 2].square().mean()

    compiled = torch.compile(loss, backend="smelt", fullgraph=True, dynamic=True)
    for rows, columns in [(4, 6), (3, 8), (9, 5)]:
        x, w = torch.randn(rows, columns), torch.randn(columns, columns + 1)
        ours, theirs = w.clone().requires_grad_(), w.clone().requires_grad_()
        compiled(x, ours).backward()
        loss(x, theirs).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert [report.kind for report in smelt.reports()] == ["forward", "backward"]


# -- sizes that depend on data -------------------------------------------------------------------------------


@pytest.fixture
def _captured() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def _masked_update(x: Tensor) -> Tensor:
    x = x.clone()
    x[x > 0] *= 2
    x[x[:, 0] < 0] = x[0].clone()
    return x


def _rows(x: Tensor) -> int:
    return int((x[:, 0] > 0).sum().item())


DATA: dict[str, Callable[[Tensor], Any]] = {
    "nonzero": lambda x: (x > 0).nonzero(),
    "nonzero of numbers": lambda x: x.relu().nonzero() + 1,
    "nonzero as a tuple": lambda x: torch.where(x > 0),
    "argwhere": lambda x: torch.argwhere(x > 0.5).sum(0),
    "masked_select": lambda x: x.masked_select(x[0] > 0) * 2,
    "mask": lambda x: x[x > 0].sqrt(),
    "mask of rows": lambda x: x[x[:, 0] > 0].softmax(1),
    "mask of columns": lambda x: x[:, x[0] > 0] + 1,
    "mask and product": lambda x: (x[x[:, 0] > 0] + 1) @ x.t(),
    "one mask for two": lambda x: x[x > 0] * (x + 1)[x > 0],
    "two masks": lambda x: torch.cat([x[x > 0], x[x < -0.5]]),
    "nothing is true": lambda x: x[x > 100].sum() + x[x > 100].numel(),
    "masked update": _masked_update,
    "item": lambda x: x * (x > 0).sum().item(),
    "item as a size": lambda x: torch.zeros(_rows(x), 3) + x.sum(),
    "item as a bound": lambda x: x[: _rows(x)] * 2,
    "item as a negative bound": lambda x: x[-_rows(x) - 1 :] * 2,
    "item as a position": lambda x: x[_rows(x) - 1] + 1,
    "items in arithmetic": lambda x: torch.arange(_rows(x) * 2 + x.shape[0]),
    "repeat_interleave": lambda x: x.repeat_interleave((x[:, 0] > 0).long() * 2, 0),
    "tensor_split": lambda x: x.tensor_split((x[0] > 0).sum()[None], 1),
    "narrow": lambda x: x.narrow(0, _rows(x) // 2, 1),
    "truth of an item": lambda x: x * (x.sum() > 0).item(),
}


@pytest.mark.usefixtures("_captured")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", DATA)
def test_sizes_from_data(name: str, dynamic: bool) -> None:
    sizes = [(5, 4), (6, 3), (3, 9)] if dynamic else [(6, 4)] * 4
    inputs = [(torch.randn(*size),) for size in sizes]
    inputs = [(torch.where(x.abs() < 0.1, 1.0, x),) for (x,) in inputs]
    once(DATA[name], inputs, dynamic=dynamic)


@pytest.mark.usefixtures("_captured")
@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x[x > 0] ** 2).sum(),
        lambda x: x.masked_select(x > 0.1).exp().sum(),
        lambda x: (x[x[:, 0] > 0] @ x.t()).sum(),
        lambda x: x[(x[:, 0] > 0).nonzero().squeeze(1)].exp().sum(),
        lambda x: (x.repeat_interleave((x.detach()[:, 0] > 0).long(), 0) ** 2).sum(),
        lambda x: (x[: _rows(x)] ** 2).sum(),
    ],
)
def test_gradients_through_sizes_from_data(program: Callable[[Tensor], Tensor]) -> None:
    compiled = torch.compile(program, backend="smelt", fullgraph=True)
    for _ in range(3):
        x = torch.randn(6, 4)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(ours).backward()
        program(theirs).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert [report.kind for report in smelt.reports()] == ["forward", "backward"]


INTEGERS: dict[str, Callable[[Tensor], Any]] = {
    "unique": lambda x: torch.unique(x) * 2,
    "unique with all": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "unique of rows' halves": lambda x: torch.unique((x // 2).float(), return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive(x),
    "unique_consecutive with all": lambda x: torch.unique_consecutive(
        x, return_inverse=True, return_counts=True
    ),
    "runs of rows": lambda x: torch.unique_consecutive(
        x // 4, dim=0, return_inverse=True, return_counts=True
    ),
    "runs of columns": lambda x: torch.unique_consecutive(x // 4, dim=1, return_counts=True),
    "bincount": lambda x: torch.bincount(x.flatten()),
    "bincount with weights": lambda x: torch.bincount(x[0], x[1] / 2, minlength=3) + 1,
    "repetitions of a mask": lambda x: torch.repeat_interleave(x[x > 2]),
}


@pytest.mark.usefixtures("_captured")
@pytest.mark.parametrize("name", INTEGERS)
def test_sizes_from_integers(name: str) -> None:
    once(INTEGERS[name], [(torch.randint(0, 6, (5, 4)),) for _ in range(4)])


@pytest.mark.usefixtures("_captured")
def test_numbers_that_tensors_hold() -> None:
    inputs = [(torch.randn(5), torch.randn(())) for _ in range(3)]
    once(lambda x, n: torch.full((3,), n.item()) + x[:3] / (n.item() + 2), inputs)


def test_samples_thinned_by_a_rate_that_is_divided() -> None:
    """Sizes of quotients of quotients by a number handed over (silero-vad does so)."""
    conv = torch.nn.Conv1d(1, 4, 8, stride=4)

    def program(sound: Tensor, rate: int) -> Tensor:
        thin = sound[:, :: rate // 16000] if rate > 16000 else sound
        frames = conv(torch.nn.functional.pad(thin, (0, 64)).unsqueeze(1))
        return torch.nn.functional.avg_pool1d(frames, 4).mean(-1)

    inputs = [(torch.randn(1, 192 * step), 16000 * step) for step in (2, 3, 5)]
    with torch.no_grad():
        compare(program, inputs, dynamic=True)


def test_lengths_that_guards_make_numbers() -> None:
    compare(lambda x: x.chunk(4), [(torch.randn(n),) for n in (4, 8, 11)], dynamic=True)


def test_as_strided_views_of_inputs_stay_views() -> None:
    inputs = [(torch.randn(3, n), (2, 2), (1, 3), at) for n, at in [(4, 1), (5, 2), (9, 3)]]
    compiled = torch.compile(torch.as_strided, backend="smelt", fullgraph=True, dynamic=True)
    for x, *rest in inputs:
        view = compiled(x, *rest)
        assert view.data_ptr() == x.data_ptr() + 4 * rest[-1]
        torch.testing.assert_close(view, torch.as_strided(x, *rest))


@pytest.mark.usefixtures("_captured")
def test_a_check_that_does_not_hold_raises() -> None:
    def program(x: Tensor) -> Tensor:
        count = _rows(x)
        torch._check(count >= 2)
        torch._check(count < 100)
        return torch.ones(count) + x.sum()

    compiled = torch.compile(program, backend="smelt", fullgraph=True)
    x = torch.ones(4, 2)
    torch.testing.assert_close(compiled(x), program(x))
    with pytest.raises(RuntimeError):
        compiled(-x)
    torch.testing.assert_close(compiled(x), program(x))


def _of(size: Callable[[Tensor], Any], result: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A program that says of a size that depends on data that it is four, or as long as its input."""

    def program(x: Tensor) -> Tensor:
        z = result(x)
        torch._check(z.size(0) == size(x))
        return z * 2

    return program


REFINED: dict[str, tuple[Callable[[Tensor], Tensor], list[int], list[list[int]]]] = {
    "nonzero": (lambda x: x.nonzero(), [1, 1, 1, 1, 0], [[0] * 5, [1] * 5]),
    "indexing by a mask": (lambda x: x[x > 0], [1, 1, 2, 3, 0], [[0] * 5, [1] * 5]),
    "masked_select": (lambda x: x.masked_select(x > 0), [1, 1, 2, 3, 0], [[0] * 5, [1] * 5]),
    "unique": (torch.unique, [0, 1, 2, 3, 3], [[0] * 5, [1, 2, 3, 4, 5]]),
    "unique_consecutive": (torch.unique_consecutive, [0, 1, 2, 3, 3], [[0] * 5, [1, 2, 3, 4, 5]]),
    "repeat_interleave": (torch.repeat_interleave, [1, 1, 2], [[1, 1, 1], [2, 2, 2]]),
    "bincount": (torch.bincount, [3, 1], [[1, 1], [9, 1]]),
}


@pytest.mark.usefixtures("_captured")
@pytest.mark.parametrize("name", REFINED)
def test_sizes_from_data_are_what_the_program_says_of_them(name: str) -> None:
    result, good, bad = REFINED[name]
    compiled = torch.compile(_of(lambda x: 4, result), backend="smelt", fullgraph=True)
    torch.testing.assert_close(compiled(torch.tensor(good)), result(torch.tensor(good)) * 2)
    assert [report.kind for report in smelt.reports()] == ["inference"]
    for each in bad:
        with pytest.raises(RuntimeError, match=r"Runtime assertion failed|allocated size"):
            compiled(torch.tensor(each))


@pytest.mark.usefixtures("_captured")
def test_sizes_from_data_that_are_those_of_inputs() -> None:
    program = _of(lambda x: x.size(0), torch.nonzero)
    compiled = torch.compile(program, backend="smelt", fullgraph=True, dynamic=True)
    for n in (3, 5):
        torch.testing.assert_close(compiled(torch.ones(n)), program(torch.ones(n)))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        compiled(torch.tensor([1.0, 0.0, 1.0]))


@pytest.mark.usefixtures("_captured")
def test_numbers_that_tensors_hold_are_what_the_program_says_of_them() -> None:
    def program(x: Tensor) -> Tensor:
        number = x.sum().item()
        torch._check(number == 4)
        return x.new_zeros(number) + x.sum()  # type: ignore[call-overload, no-any-return]

    compiled = torch.compile(program, backend="smelt", fullgraph=True)
    torch.testing.assert_close(compiled(torch.tensor([1, 3])), program(torch.tensor([1, 3])))
    assert [report.kind for report in smelt.reports()] == ["inference"]
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        compiled(torch.tensor([1, 4]))


@pytest.mark.usefixtures("_captured")
def test_positions_from_data_out_of_range_raise_as_eager_does() -> None:
    program = torch.compile(lambda x, at: x[at.item()] + 1, backend="smelt", fullgraph=True)
    x = torch.randn(4, 2)
    torch.testing.assert_close(program(x, torch.tensor(-4)), x[0] + 1)
    for bad in (4, -5):
        with pytest.raises(IndexError):
            program(x, torch.tensor(bad))


@pytest.mark.usefixtures("_captured")
def test_repetitions_are_checked() -> None:
    program = torch.compile(torch.repeat_interleave, backend="smelt", fullgraph=True)
    assert program(torch.tensor([1, 0, 2])).tolist() == [0, 2, 2]
    with pytest.raises(RuntimeError, match="negative"):
        program(torch.tensor([1, -1, 2]))


@pytest.mark.usefixtures("_captured")
def test_as_many_values_as_the_mask_has_places() -> None:
    def program(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        return x.index_put((mask,), values)

    compiled = torch.compile(program, backend="smelt", fullgraph=True)
    x, mask = torch.zeros(4), torch.tensor([True, False, True, True])
    values = torch.tensor([1.0, 2.0, 3.0])
    assert compiled(x, mask, values).tolist() == [1, 0, 2, 3]
    with pytest.raises(RuntimeError):
        compiled(x, ~mask, values)
