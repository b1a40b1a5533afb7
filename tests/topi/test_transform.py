"""Reductions and transformations of topi against torch."""

import pytest
import torch

import smelt
from smelt import te, topi
from tests.topi.support import check

torch.manual_seed(0)
X = torch.randn(2, 3, 4)
I = torch.tensor([[1, 0], [2, 2]])  # noqa: E741


@pytest.mark.parametrize("axis", [None, 1, -1, (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"])
def test_reductions(name, axis, keepdims):
    dims = [0, 1, 2] if axis is None else [axis % 3] if isinstance(axis, int) else list(axis)

    def of_torch(a):
        if name in ("max", "min"):
            return getattr(torch, f"a{name}")(a, dims, keepdims)
        if name in ("sum", "any", "all"):
            return getattr(torch, name)(a, dim=dims, keepdim=keepdims)
        kept = [d for d in range(3) if d not in dims]
        flat = a.permute(*kept, *dims).flatten(len(kept))
        found = getattr(torch, name)(flat, dim=-1)
        for d in dims if keepdims else []:
            found = found.unsqueeze(d)
        return found

    x = X > 0 if name in ("any", "all") else X
    check(lambda a: getattr(topi, name)(a, axis, keepdims), of_torch, x)


def test_names_of_reductions():
    x = te.placeholder((2, 3, 4), name="x")
    total = topi.sum(x, axis=1)
    assert total.op.name == "x_red" and [axis.name for axis in total.op.axis] == ["ax0", "ax1"]
    assert [axis.name for axis in total.op.reduce_axis] == ["k1"] and total.op.tag == "comm_reduce"
    assert topi.sum(te.placeholder((3,), "int8")).dtype == "int8"
    check(lambda a: topi.collapse_sum(a, (3, 1)), lambda a: a.sum((0, 2), True)[0], X)


CASES = {
    "broadcast_to": (lambda a: topi.broadcast_to(a, (5, 2, 3, 4)), lambda a: a.expand(5, 2, 3, 4)),
    "expand_dims": (lambda a: topi.expand_dims(a, -2, 2), lambda a: a[:, :, None, None]),
    "transpose": (topi.transpose, lambda a: a.permute(2, 1, 0)),
    "transpose_axes": (lambda a: topi.transpose(a, (1, 0, 2)), lambda a: a.transpose(0, 1)),
    "reshape": (lambda a: topi.reshape(a, (4, -1)), lambda a: a.reshape(4, 6)),
    "squeeze": (lambda a: topi.squeeze(topi.expand_dims(a, 1)), lambda a: a),
    "squeeze_axis": (lambda a: topi.squeeze(topi.expand_dims(a, 1, 2), axis=1), lambda a: a[:, None]),
    "flip": (lambda a: topi.flip(a, 1), lambda a: a.flip(1)),
    "concatenate": (lambda a: topi.concatenate([a, a + 1, a], 1), lambda a: torch.cat([a, a + 1, a], 1)),
    "stack": (lambda a: topi.stack([a, -a], 2), lambda a: torch.stack([a, -a], 2)),
    "split": (lambda a: topi.split(a, 2, axis=2), lambda a: a.split(2, 2)),
    "split_indices": (lambda a: topi.split(a, (1, 3), axis=2), lambda a: a.split([1, 2, 1], 2)),
    "strided_slice": (lambda a: topi.strided_slice(a, [0, 1], [2, 3], [1, 1]), lambda a: a[:, 1:3]),
    "strided_slice_negative": (
        lambda a: topi.strided_slice(a, [0, 0, -1], [2, 3, -5], [1, 2, -2]),
        lambda a: a[:, ::2].flip(2)[..., ::2],
    ),
    "strided_slice_axes": (lambda a: topi.strided_slice(a, [1], [9], axes=[2]), lambda a: a[..., 1:]),
    "strided_slice_size": (
        lambda a: topi.strided_slice(a, [0, 1, 1], [1, 2, -1], slice_mode="size"),
        lambda a: a[:1, 1:3, 1:],
    ),
    "strided_set": (
        lambda a: topi.strided_set(a, topi.full((2, 2, 2), "float32", 7), [0, 1, 2], [2, 3, 4]),
        lambda a: torch.cat([a[:, :1], torch.cat([a[:, 1:, :2], torch.full((2, 2, 2), 7.0)], 2)], 1),
    ),
    "repeat": (lambda a: topi.repeat(a, 3, 1), lambda a: a.repeat_interleave(3, 1)),
    "tile": (lambda a: topi.tile(a, (2, 1, 3)), lambda a: a.repeat(2, 1, 3)),
    "trilu": (lambda a: topi.trilu(a, 1, True), lambda a: a.triu(1)),
    "tril": (lambda a: topi.trilu(a, -1, False), lambda a: a.tril(-1)),
    "full_like": (lambda a: topi.full_like(a, 3), lambda a: torch.full_like(a, 3)),
    "layout": (lambda a: topi.layout_transform(a, "NCW", "NWC"), lambda a: a.transpose(1, 2)),
    "cumsum": (lambda a: topi.cumsum(a, 1), lambda a: a.cumsum(1)),
    "cumsum_flat": (topi.cumsum, lambda a: a.flatten().cumsum(0)),
    "shape": (topi.shape, lambda a: torch.tensor([2, 3, 4], dtype=torch.int32)),
    "meshgrid": (
        lambda a: topi.meshgrid([topi.arange(3), topi.arange(2)], "xy"),
        lambda a: torch.meshgrid(torch.arange(3.0), torch.arange(2.0), indexing="xy"),
    ),
    "arange": (lambda a: topi.arange(1, 8, 3, "int32"), lambda a: torch.arange(1, 8, 3, dtype=torch.int32)),
    "full": (lambda a: topi.full((2, 2), "int64", 5), lambda a: torch.full((2, 2), 5)),
    "eye": (lambda a: topi.eye(3, 4, 1), lambda a: torch.ones(3, 4).tril(1).triu(1)),
    "expand_like": (
        lambda a: topi.expand_like(topi.sum(a, 1), a, 1),
        lambda a: a.sum(1, True).expand(2, 3, 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_transformations(name):
    ours, theirs = CASES[name]
    check(ours, theirs, X)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_positions(dtype):
    at = I.to(dtype)
    check(lambda a, i: topi.take(a, i, axis=1), lambda a, i: a[:, i.long()], X, at)
    check(topi.take, lambda a, i: a.flatten()[i.long()], X, at)
    check(
        lambda a, i: topi.take(a, i, axis=1, mode="clip"),
        lambda a, i: a[:, (i.long() + 9).clamp(0, 2)],
        X,
        at + 9,
    )
    check(lambda a, i: topi.take(a, i, axis=1, mode="wrap"), lambda a, i: a[:, i.long() % 3], X, at + 9)
    check(lambda a, i: topi.gather(a, 1, i), lambda a, i: a.gather(1, i.long()), X[0], at)
    check(topi.gather_nd, lambda a, i: a[i[0].long(), i[1].long()], torch.randn(3, 3), at)
    check(
        lambda i: topi.one_hot(i, 5, -1, 3, -1, "int32"),
        lambda i: torch.nn.functional.one_hot(i.long(), 3).int() * 6 - 1,
        at,
    )
    with pytest.raises(IndexError):
        check(lambda a, i: topi.take(a, i, axis=0), None, X, at + 9)


def test_more_positions():
    at = torch.tensor([[1, 0], [1, 1]])
    check(lambda a, i, j: topi.adv_index(a, [i, j]), lambda a, i, j: a[i, j.long()], X, at, at.int()[0])
    check(
        lambda a, b: topi.slice_scatter(a, b, 1, 4, 2, 2)[0],
        lambda a, b: a.slice_scatter(b, 2, 1, 4, 2),
        X,
        X[..., :2],
    )
    check(lambda a: topi.sliding_window(a, 1, (2, 3), (1, 1)), lambda a: a.unfold(1, 2, 1).unfold(2, 3, 1), X)
    check(topi.tensor_size, lambda a: torch.tensor(24, dtype=torch.int32), X)
    check(lambda a: topi.cumprod(a, 2), lambda a: a.cumprod(2), X)
    rows = X.sort(-1).values
    check(topi.searchsorted, torch.searchsorted, rows, X)
    check(
        lambda s, v: topi.searchsorted(s, v, True),
        lambda s, v: torch.searchsorted(s, v, right=True),
        rows[0, 0],
        X,
    )


@pytest.mark.parametrize("subscripts", ["ijk,kl->lij", "ijk->i", "ijk->kji", "ijk,ijk", "ijk,kl"])
def test_einsum(subscripts):
    given = {"ijk": X, "kl": torch.randn(4, 2)}
    tensors = [given[term] for term in subscripts.split("->")[0].split(",")]
    check(lambda *a: topi.einsum(subscripts, *a), lambda *a: torch.einsum(subscripts, *a), *tensors)


def test_sequences():
    lengths = torch.tensor([2, 0], dtype=torch.int32)
    want = X.clone()
    want[0, 2:], want[1] = 9, 9
    check(lambda a, n: topi.sequence_mask(a, n, 9.0, axis=1), lambda a, n: want, X, lengths)
    turned = X.clone()
    turned[0, :2] = X[0, :2].flip(0)
    check(topi.reverse_sequence, lambda a, n: turned, X, lengths)


def test_products():
    a, b = torch.randn(3, 4), torch.randn(5, 4)
    check(lambda x, y: topi.matmul(x, y, transp_b=True), lambda x, y: x @ y.T, a, b)
    check(lambda x, y: topi.matmul(x, y, True), lambda x, y: x.T @ y, a, torch.randn(3, 2))
    check(lambda x, y: topi.tensordot(x, y, 1), lambda x, y: torch.tensordot(x, y, 1), X, a.T)
    check(
        lambda x, y: topi.tensordot(x, y, [[0, 2], [1, 0]]),
        lambda x, y: torch.tensordot(x, y, [[0, 2], [1, 0]]),
        X,
        torch.randn(4, 2),
    )
    check(lambda x, y: topi.matmul(x, y), lambda x, y: (x.float() @ y.float()).half(), a.half(), b.T.half())


@pytest.mark.parametrize(
    ("code", "program"),
    [
        ("SM1121", lambda x: topi.squeeze(x, 1)),
        ("SM1121", lambda x: topi.split(x, 2, 1)),
        ("SM1121", lambda x: topi.reshape(x, (5, 5))),
        ("SM1121", lambda x: topi.concatenate([x, topi.sum(x, 1)])),
        ("SM1121", lambda x: topi.strided_slice(x, [0], [1], [0])),
        ("SM1121", lambda x: topi.sequence_mask(x, x, 0, 2)),
        ("SM1123", lambda x: topi.take(x, x, batch_dims=1)),
        ("SM1123", lambda x: topi.take(x, x, mode="else")),
        ("SM1123", lambda x: topi.cumsum(x, 0, exclusive=True)),
        ("SM1123", lambda x: topi.cumprod(x, 0, exclusive=True)),
        ("SM1123", lambda x: topi.einsum("...i->i", x)),
        ("SM1121", lambda x: topi.einsum("ij->i", x)),
        ("SM1121", lambda x: topi.einsum("iii->i", x)),
        ("SM1121", lambda x: topi.einsum("ijk->il", x)),
        ("SM1121", lambda x: topi.sliding_window(x, 1, [2], [1])),
        ("SM1123", lambda x: topi.meshgrid([x], "no")),
    ],
)
def test_refusals(code, program):
    with pytest.raises(smelt.SmeltError) as caught:
        program(te.placeholder((2, 3, 4), name="x"))
    assert caught.value.code == code, caught.value


def test_sizes_that_calls_decide():
    n = te.var("n")
    x = te.placeholder((n, 4), name="x")
    assert tuple(topi.transpose(x).shape) == (4, n)
    assert tuple(topi.reshape(x, (2, 2, n)).shape) == (2, 2, n)
    assert tuple(topi.concatenate([x, x]).shape) == (2 * n, 4)
    assert tuple(topi.sum(x, axis=1, keepdims=True).shape) == (n, 1)
    assert tuple(topi.nn.softmax(x).shape) == (n, 4)
    assert tuple(topi.nn.dense(x, te.placeholder((3, 4))).shape) == (n, 3)
