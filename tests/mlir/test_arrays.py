"""Whole-array evaluation against the reference interpreter, on torch tensors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Expr, Symbol

from smelt.capture import capture_function
from smelt.contract import contract, portable_decompositions
from smelt.loops.elementwise import apply
from smelt.loops.host import bind_sizes
from smelt.loops.interpreter import evaluate_body
from smelt.loops.ir import Extern, Graph, Host
from smelt.lowering import lower
from smelt.mlir.arrays import Array, ArrayBodies, access
from smelt.mlir.arrays.decomposed import DECOMPOSED
from smelt.mlir.arrays.evaluate import ArrayHandler
from smelt.ops import TABLE, Rule
from smelt.symbolic import FloorDiv, Mod, evaluate, loop_var
from tests.mlir.torch_arrays import TorchArrays

N = sympy.Integer
I, J, K = (loop_var(name) for name in "ijk")  # noqa: E741


def check_access(
    shape: tuple[int, ...], index: list[Expr], extents: Mapping[Symbol, int], masked: bool = False
) -> access.Access:
    """The plan of a load, run and held against evaluating the indices one by one."""
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape)
    sizes = {v: N(n) for v, n in extents.items()}
    array = Array(tensor, tensor.dtype, tuple(map(N, shape)))
    handler = ArrayHandler(TorchArrays(), {"x": array}, sizes)
    found = access.plan(array.shape, [sympy.sympify(e) for e in index], sizes, masked=masked)
    read = handler.read(array, found).value
    assert list(read.shape) == [extents[v] for v in found.variables]
    for place in itertools.product(*(range(n) for n in extents.values())):
        values = dict(zip(extents, place))
        at = tuple(evaluate(sympy.sympify(e), values) for e in index)
        if all(0 <= p < n for p, n in zip(at, shape)):
            assert read[tuple(values[v] for v in found.variables)] == tensor[at], (place, at, found.steps)
        else:
            assert masked
    return found


def kinds(found: access.Access) -> set[str]:
    return {type(step).__name__ for step in found.steps}


def test_plain_and_transposed_and_sliced_loads() -> None:
    assert check_access((3, 4), [I, J], {I: 3, J: 4}).steps == ()
    assert kinds(check_access((3, 4), [J, I], {I: 4, J: 3})) == {"Transpose"}
    assert kinds(check_access((9,), [2 * I + 1], {I: 4})) == {"Slice"}
    assert kinds(check_access((4,), [3 - I], {I: 4})) == {"Reverse"}
    assert kinds(check_access((3, 4), [I, N(2)], {I: 3, J: 5})) == {"Slice", "Reshape"}


def test_views_are_reshapes() -> None:
    assert kinds(check_access((12,), [4 * I + J], {I: 3, J: 4})) == {"Reshape"}
    assert kinds(check_access((3, 4), [FloorDiv(I, 4), Mod(I, 4)], {I: 12})) == {"Reshape"}
    flat = 8 * I + J
    assert kinds(check_access((4, 6), [FloorDiv(flat, 6), Mod(flat, 6)], {I: 3, J: 8})) == {"Reshape"}
    shuffled = check_access((3, 4), [Mod(I, 3), FloorDiv(I, 3)], {I: 12})
    assert kinds(shuffled) == {"Transpose", "Reshape"}
    repeated = check_access((3,), [FloorDiv(I, 4)], {I: 12})
    assert kinds(repeated) == {"Broadcast", "Reshape"}


def test_diagonals_windows_and_tiles() -> None:
    assert kinds(check_access((4, 4), [I, I], {I: 4})) == {"Reshape", "Slice"}
    assert kinds(check_access((12,), [3 * I + J], {I: 4, J: 2})) == {"Slice", "Reshape"}
    assert kinds(check_access((11,), [3 * I + J], {I: 4, J: 2})) == {"Pad", "Slice", "Reshape"}
    assert kinds(check_access((10,), [2 * I + J], {I: 4, J: 3})) == {"Windows"}
    assert kinds(check_access((9,), [2 * I + 2 * J], {I: 3, J: 2})) == {"Windows"}
    assert kinds(check_access((5,), [FloorDiv(I, 2)], {I: 9})) == {"Take"}
    tiles_of_tiles = check_access((4, 3), [I + 2 * J, I + K], {I: 2, J: 2, K: 2})
    assert kinds(tiles_of_tiles) == {"Reshape", "Pad", "Slice", "Transpose"}


def test_masked_loads_leave_the_buffer() -> None:
    assert kinds(check_access((4,), [I - 2], {I: 8}, masked=True)) == {"Pad"}
    assert kinds(check_access((4,), [I + 9], {I: 3}, masked=True)) == {"Pad", "Slice"}
    assert kinds(check_access((6,), [2 * I + J - 1], {I: 4, J: 3}, masked=True)) >= {"Pad", "Windows"}
    check_access((3,), [N(5)], {I: 3}, masked=True)
    check_access((3,), [FloorDiv(I - 1, 2)], {I: 9}, masked=True)


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[Expr], dict[Symbol, int]]:
    extents = {v: draw(st.integers(1, 5)) for v in (I, J, K)}
    index = []
    for _ in range(draw(st.integers(1, 3))):
        chosen = draw(st.lists(st.sampled_from([I, J, K]), max_size=2))
        expr: Expr = sum((v * draw(st.integers(-3, 6)) for v in chosen), N(draw(st.integers(-2, 3))))
        kind = draw(st.sampled_from(["plain", "plain", "div", "mod"]))
        if kind == "div":
            expr = FloorDiv(expr + 36, draw(st.integers(2, 4)))
        elif kind == "mod":
            expr = Mod(expr + 36, draw(st.integers(2, 4)))
        index.append(expr)
    return index, extents


@settings(max_examples=150, deadline=None)
@given(loads(), st.booleans())
def test_any_load_is_read_right(load: tuple[list[Expr], dict[Symbol, int]], masked: bool) -> None:
    index, extents = load
    places = list(itertools.product(*(range(n) for n in extents.values())))
    seen = [[evaluate(e, dict(zip(extents, place))) for place in places] for e in index]
    if masked:
        shape = tuple(max(1, max(each) // 2 + 1) for each in seen)
    else:
        index = [e - min(each) for e, each in zip(index, seen)]
        shape = tuple(max(each) - min(each) + 1 for each in seen)
    check_access(shape, index, extents, masked)


# -- bodies -----------------------------------------------------------------------------------------


def run_arrays(graph: Graph, inputs: list) -> None:
    """Every node of a loop graph, by arrays and by the interpreter."""
    values = bind_sizes(graph, inputs)
    buffers = dict(graph.constants)
    buffers.update({n: x for n, x in zip(graph.inputs, inputs) if isinstance(n, str)})
    dialect = TorchArrays(values)
    for node in graph.nodes:
        expected = evaluate_body(node.body, buffers, values, node.origin)
        if not isinstance(node.body, Host):
            arrays = {
                name: Array(tensor, tensor.dtype, graph.buffers[name].shape)
                for name, tensor in buffers.items()
            }
            found = ArrayBodies(dialect, arrays).evaluate(node.body, node.origin)
            for name, one, other in zip(node.outputs, found, expected):
                if name is not None:
                    torch.testing.assert_close(one.value, other, equal_nan=True, msg=str(node.origin))
        elif isinstance(node.body, Extern):
            assert node.body.symbol is None
        for name, result in zip(node.outputs, expected):
            if name is not None:
                buffers[name] = result


F = torch.nn.functional
X = torch.linspace(-2, 2, 48).reshape(2, 4, 6)
IMAGE = torch.linspace(-1, 1, 2 * 4 * 7 * 6).reshape(2, 4, 7, 6)
FILTERS = IMAGE[:, :2, :3, :3].sin()
BIAS = torch.tensor([1.0, -1.0])
TRANSPOSED = IMAGE.reshape(4, 2, 7, 6)[:, :, :3, :2].cos()
WEIGHTS = {"convolution": (FILTERS, BIAS), "transposed": (TRANSPOSED,)}
PROGRAMS = {
    "broadcast": lambda x: x.exp() + x[0] * 2,
    "views": lambda x: x.permute(2, 0, 1).reshape(3, 16)[:, ::3] + 1,
    "cat": lambda x: torch.cat([x, x[:, :1], x.flip(1)], 1),
    "stack": lambda x: torch.stack([x, -x], 1),
    "pad": lambda x: F.pad(x, (2, -1, 0, 3), value=7.0),
    "reflect": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "softmax": lambda x: x.softmax(1),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "var": lambda x: x.var((0, 2)),
    "argmax": lambda x: (x.argmax(1), x.argmin()),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.int().cumprod(2) + x.cumprod(0).sum(0).int(),
    "logcumsumexp": lambda x: x.logcumsumexp(2),
    "cummax": lambda x: x.cummax(2),
    "sort": lambda x: x.sort(1, descending=True),
    "topk": lambda x: x.topk(2, 1),
    "gather": lambda x: x.gather(1, torch.tensor([[[0], [3], [1]], [[2], [2], [0]]]).expand(2, 3, 6)),
    "index": lambda x: x[:, torch.tensor([3, -1, 0])],
    "embedding": lambda x: F.embedding(torch.tensor([[1, 0], [3, 2]]), x[0]),
    "index_put": lambda x: x.index_put((torch.tensor([1, 0, 1]),), torch.ones(4, 6), accumulate=True),
    "scatter": lambda x: x.scatter(1, torch.tensor([[[0, 2, 3, 1, 0, 1]], [[1, 1, 0, 0, 2, 3]]]), 5.0),
    "index_add": lambda x: x.index_add(1, torch.tensor([0, 0, 2]), torch.ones(2, 3, 6)),
    "matmul": lambda x: x @ x.transpose(1, 2),
    "addmm": lambda x: torch.addmm(x[0, :, 0], x[0], x[1].t(), beta=2, alpha=3),
    "tril": lambda x: x.tril() + torch.triu(x, 1),
    "repeat": lambda x: x.repeat(2, 1, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "roll": lambda x: x.roll((1, -2), (0, 2)),
    "unfold": lambda x: x.unfold(2, 3, 2) * 2,
    "diagonal": lambda x: x.diagonal(1, 1, 2) * 2,
    "where": lambda x: torch.where(x > 0, x, x.floor_divide(2)),
    "nested": lambda x: F.pad(x.reshape(2, 2, 2, 6).transpose(1, 2), (1, 1, 1, 0)).reshape(2, -1),
    "scalar": lambda x: x.sum() + 1,
}
IMAGES = {
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool": lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "upsample": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "bilinear": lambda x: F.interpolate(x, (5, 9), mode="bilinear"),
    "convolution": lambda x, weight, bias: F.conv2d(x, weight, bias, 2, 1, 1, 2),
    "transposed": lambda x, weight: F.conv_transpose2d(x, weight, stride=2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True),
    "group_norm": lambda x: F.group_norm(x, 2),
}


@pytest.mark.parametrize("name", [*PROGRAMS, *IMAGES])
def test_bodies_by_arrays_are_the_interpreters(name: str) -> None:
    function, x = (PROGRAMS[name], X) if name in PROGRAMS else (IMAGES[name], IMAGE)
    inputs = [x, *WEIGHTS.get(name, ())]
    graph = lower(contract(capture_function(function, inputs, portable_decompositions())).graph_module)
    assert any(not isinstance(node.body, Host) for node in graph.nodes)
    run_arrays(graph, inputs)


# -- decomposed rows --------------------------------------------------------------------------------


class Without(TorchArrays):
    """Torch tensors without some rows."""

    def __init__(self, lacks: set[str]) -> None:
        super().__init__()
        self.lacks = lacks

    def elementwise(self, name: str, *args: Array) -> Array:
        return NotImplemented if name in self.lacks else super().elementwise(name, *args)


SPANS = {
    "asin": (-1, 1), "acos": (-1, 1), "atanh": (-1, 1), "erfinv": (-1, 1), "acosh": (1, 50),
    "log1p": (-1, 9), "log2": (0, 9), "log10": (0, 9), "rsqrt": (0, 9), "hypot": (-50, 50),
    "exp2": (-20, 20), "expm1": (-20, 20), "sinh": (-30, 30), "cosh": (-30, 30), "erfc": (-4, 9),
    "tan": (-1.5, 1.5),
}  # fmt: skip
SLACK = {"digamma": 256, "lgamma": 40, "fma": 20}  # these cancel beside their roots
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.0, torch.inf, -torch.inf, torch.nan, 1e-30, 1e-9, -1e-9]


def ulps(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error, in units in the last place of the exact value (or of 1, below that, for roots)."""
    same = (found.double() == exact) | (found.isnan() & exact.isnan())
    scale = exact.abs().clamp_min(torch.finfo(found.dtype).tiny) * torch.finfo(found.dtype).eps
    return torch.where(same, 0.0, (found.double() - exact).abs() / scale).max().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", sorted(name for name in DECOMPOSED if TABLE[name].rule is Rule.FLOAT))
def test_decomposed_rows_are_close_to_torchs(name: str, dtype: torch.dtype) -> None:
    if name == "nextafter":
        x, y = torch.tensor(EDGES, dtype=dtype), torch.tensor([*EDGES[1:], 3.0], dtype=dtype)
        found = run_row(name, x, y)
        assert torch.equal(found.nan_to_num(7.0), torch.nextafter(x, y).nan_to_num(7.0))
        return
    low, high = SPANS.get(name, (-9, 9))
    edges = torch.tensor(EDGES, dtype=dtype)
    x = torch.cat([torch.linspace(low, high, 801, dtype=dtype), edges])
    args = [x, x.flip(0), x.roll(3)][: TABLE[name].arity]
    found, eager = run_row(name, *args), apply(name, args)
    wide = apply(name, [arg.double() for arg in args])
    assert torch.equal(found.isnan(), eager.isnan()), name
    assert torch.equal(found.isinf(), eager.isinf()), name
    usual = eager.isfinite() & (wide.abs() > 1e-2)  # beside roots, the absolute error is what counts
    bound = 4 * ulps(eager[usual], wide[usual]) + SLACK.get(name, 12)
    assert ulps(found[usual], wide[usual]) <= bound, name
    finite = eager.isfinite()
    gap = (found - wide)[finite & ~usual].abs()
    assert gap.numel() == 0 or gap.max() <= SLACK.get(name, 16) * torch.finfo(dtype).eps


def run_row(name: str, *args: torch.Tensor) -> torch.Tensor:
    """One row without the dialect's own."""
    dialect = Without({name, *(["atan2"] if name == "atan" else [])})
    arrays = [Array(arg, arg.dtype, tuple(map(N, arg.shape))) for arg in args]
    return dialect.apply(name, *arrays).value


@pytest.mark.parametrize("name", ["remainder", "floordiv", "fmod", "int_pow", "sign"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_decomposed_rows_are_exact_on_integers(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([7, 5, 100, 0, 1, 2, 3], dtype=dtype)
    x = torch.cat([x, -x]) if dtype.is_signed else x
    grid = torch.cartesian_prod(x, x[x != 0])
    args = [grid[:, 0].contiguous(), grid[:, 1].contiguous()][: TABLE[name].arity]
    assert torch.equal(run_row(name, *args), apply(name, args))


def test_decomposed_random_bits_are_the_interpreters() -> None:
    args = [torch.randint(-(2**63), 2**63 - 1, (50,)) for _ in range(3)]
    assert torch.equal(run_row("philox", *args), apply("philox", args))
