"""Elementwise and broadcasting operators of topi against torch."""

import pytest
import torch

import smelt
from smelt import te, topi
from smelt.te.create import create_prim_func
from smelt.topi.names import BROADCAST, ELEMENTWISE
from tests.topi.support import check, topi_of

torch.manual_seed(0)
TORCH = {
    "negative": "neg",
    "identity": "clone",
    "fast_exp": "exp",
    "fast_erf": "erf",
    "fast_tanh": "tanh",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "mod": "fmod",
    "floor_mod": "remainder",
    "log_add_exp": "logaddexp",
    "power": "pow",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
    "greater": "gt",
    "less": "lt",
    "equal": "eq",
    "not_equal": "ne",
    "greater_equal": "ge",
    "less_equal": "le",
}
INTEGER = ("left_shift", "right_shift", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")


def reference(name):
    return getattr(torch, TORCH.get(name, name))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name):
    x = torch.tensor([[0.3, -0.6, 0.0], [1.5, float("inf"), float("nan")]])
    if name in INTEGER:
        x = torch.tensor([[0, 1, -7], [100, 5, 2]])
    check(getattr(topi, name), reference(name), x)


@pytest.mark.parametrize("name", BROADCAST)
def test_broadcast(name):
    a, b = torch.randn(2, 1, 3), torch.randn(4, 1).abs() + 0.25
    if name in INTEGER:
        a, b = torch.randint(-9, 9, (2, 1, 3)), torch.randint(0, 5, (4, 1))
    if name == "power":
        a = a.abs()
    check(getattr(topi, name), reference(name), a, b)


@pytest.mark.parametrize("name", [name for name in BROADCAST if name not in ("log_add_exp", "atan2")])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_numbers(name, dtype):
    if name in INTEGER and dtype == "float32":
        pytest.skip("of integers")
    x = torch.tensor([1, 2, 5]).to(getattr(torch, dtype))
    number = torch.tensor(2, dtype=x.dtype)
    rounding = {"rounding_mode": "trunc"} if (name, dtype) == ("divide", "int32") else {}
    ours, theirs = getattr(topi, name), reference(name)
    check(lambda a: ours(a, 2), lambda a: theirs(a, number, **rounding), x)
    check(lambda a: ours(2, a), lambda a: theirs(number, a, **rounding), x)


def test_values_that_are_no_tensors():
    n = te.var("n")
    assert (
        topi.add(1, 2) == 3
        and str(topi.add(n, 2)) == "n + 2"
        and str(topi.maximum(te.const(1), 2)) == "maximum(1, 2)"
    )
    assert topi.exp(te.const(1.0)).dtype == "float32"


def test_mixed_dtypes():
    x, y = torch.tensor([1, 2, 3]), torch.randn(3)
    check(topi.add, torch.add, x, y)
    check(lambda a: topi.multiply(a, 2.5), lambda a: a * 2.5, x.int())
    check(lambda a: topi.multiply(a, 2), lambda a: a * 2, torch.tensor([True, False]))


def test_names_of_stages_and_loops():
    x, b = te.placeholder((2, 3), name="x"), te.placeholder((3,), name="b")
    added, power = topi.add(x, b), topi.exp(x)
    assert (added.op.name, added.op.tag, [axis.name for axis in added.op.axis]) == (
        "T_add",
        "broadcast",
        ["ax0", "ax1"],
    )
    assert (power.op.name, power.op.tag, [axis.name for axis in power.op.axis]) == (
        "compute",
        "elemwise",
        ["i0", "i1"],
    )
    assert str(added.op.body[0]) == "x[ax0, ax1] + b[ax1]" and added.op.input_tensors == (x, b)


def test_an_axis_of_one_keeps_its_name():
    x, b = te.placeholder((1, 3), name="x"), te.placeholder((3,), name="b")
    assert str(topi.add(x, b).op.body[0]) == "x[ax0, ax1] + b[ax1]"
    assert str(topi.add(x, te.placeholder((2, 1), name="y")).op.body[0]) == "x[0, ax1] + y[ax0, 0]"
    assert str(topi.exp(x).op.body[0]) == "exp(x[i0, i1])"


def test_operators_of_whole_tensors():
    x, y = torch.randn(2, 3), torch.randn(3)
    check(
        lambda a, b: -(a + b) * 2 - 1 / (1 + b) % 3,
        lambda a, b: -(a + b) * 2 - torch.fmod(1 / (1 + b), 3),
        x,
        y,
    )
    check(lambda a: te.tanh(a).astype("float64"), lambda a: torch.tanh(a).double(), x)


def test_others():
    x = torch.randn(2, 3) * 3
    check(lambda a: topi.clip(a, -1, 2), lambda a: a.clamp(-1, 2), x)
    check(lambda a: topi.cast(a, "int32"), lambda a: a.int(), x)
    check(lambda a: topi.reinterpret(a, "int32"), lambda a: a.view(torch.int32), x)
    check(lambda a, b: topi.elemwise_sum([a, b, a]), lambda a, b: a + b + a, x, x + 1)
    check(lambda c, a: topi.where(c, a, 0), lambda c, a: torch.where(c, a, 0.0), x > 0, x)
    check(
        lambda c, a, b: topi.where(c, a, b), lambda c, a, b: torch.where(c != 0, a, b), x.int(), x, x[:, :1]
    )
    check(topi.ceil_log2, lambda a: torch.ceil(torch.log2(a)), x.abs() + 1)


def test_sizes_that_calls_decide():
    n = te.var("n")
    A, B = te.placeholder((n, 3), name="A"), te.placeholder((n, 1), name="B")
    C = topi.add(A, B)
    assert tuple(C.shape) == (n, 3) and create_prim_func([A, B, C]).kernel.sizes
    with pytest.raises(smelt.SmeltError, match="SM1121"):
        topi.add(te.placeholder((n, 3)), te.placeholder((te.var("m"), 3)))


@pytest.mark.parametrize(
    ("code", "program"),
    [
        ("SM1121", lambda: topi.add(te.placeholder((4,)), te.placeholder((3,)))),
        ("SM1121", lambda: topi.acos(te.placeholder((4,), "int16"))),
        ("SM1121", lambda: topi.bitwise_and(te.placeholder((4,)), te.placeholder((4,)))),
        ("SM1121", lambda: topi.sum(te.placeholder((4,)), axis=1)),
        ("SM1121", lambda: topi.nn.dense(te.placeholder((4, 3)), te.placeholder((4, 2)))),
        ("SM1122", lambda: topi.add(te.placeholder((4,)), "text")),
        ("SM1122", lambda: topi.logical_and(1, 2)),
        ("SM1122", lambda: topi.sigmoid("text")),
        ("SM1122", lambda: topi.add(te.placeholder((4,)), te.placeholder((4,))[0])),
        (
            "SM1123",
            lambda: topi.nn.conv2d(te.placeholder((1, 2, 3, 4, 2)), te.placeholder((1, 2, 3, 3)), 1, 0, 1),
        ),
        ("SM1123", lambda: topi.argmax(te.placeholder((4,)), select_last_index=True)),
        ("SM1123", lambda: topi.layout_transform(te.placeholder((4, 3, 2, 2)), "NCHW", "NCHW4c")),
        (
            "SM1120",
            lambda: topi.rows.call(
                "sort", torch.ops.aten.sort.default, [te.placeholder((4,))], topi.written.Labels("s")
            ),
        ),
        (
            "SM1120",
            lambda: topi.rows.call(
                "qr", torch.ops.aten.linalg_qr.default, [te.placeholder((4, 4))], topi.written.Labels("q")
            ),
        ),
    ],
)
def test_refusals(code, program):
    with pytest.raises(smelt.SmeltError) as caught:
        program()
    assert caught.value.code == code, caught.value
    assert caught.value.where.startswith("test_names.py:")


def test_nothing_there():
    with pytest.raises(AttributeError, match="bitserial_dense"):
        topi.bitserial_dense  # noqa: B018
    assert topi_of(lambda a: topi.identity(a), torch.ones(0, 3)).shape == (0, 3)
