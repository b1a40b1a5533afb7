"""Operators of neural networks of topi against torch."""

import pytest
import torch
from torch.nn import functional as F

import smelt
from smelt import te, topi
from smelt.nest.stages import raised
from smelt.nest.tree import stages
from tests.topi.support import check

nn = topi.nn
torch.manual_seed(0)
X = torch.randn(2, 4, 3, 3)
W, V = torch.randn(4), torch.randn(4)

ACTIVATIONS = {
    "relu": (nn.relu, torch.relu),
    "leaky_relu": (lambda a: nn.leaky_relu(a, 0.1), lambda a: F.leaky_relu(a, 0.1)),
    "softplus": (nn.softplus, F.softplus),
    "gelu": (nn.gelu, F.gelu),
    "silu": (nn.silu, F.silu),
    "elu": (nn.elu, F.elu),
    "hardswish": (nn.hardswish, F.hardswish),
    "hardsigmoid": (nn.hardsigmoid, F.hardsigmoid),
    "softmax": (nn.softmax, lambda a: a.softmax(-1)),
    "softmax_1": (lambda a: nn.softmax(a, 1), lambda a: a.softmax(1)),
    "log_softmax": (lambda a: nn.log_softmax(a, 1), lambda a: a.log_softmax(1)),
    "lrn": (lambda a: nn.lrn(a, 3, 1, 0.1, 0.5, 2.0), lambda a: F.local_response_norm(a, 3, 0.1, 0.5, 2.0)),
    "flatten": (nn.flatten, lambda a: a.flatten(1)),
    "pad": (
        lambda a: nn.pad(a, (0, 1, 0, 2), (0, 0, 1, 0), 5.0),
        lambda a: F.pad(a, (2, 0, 0, 1, 1, 0), value=5.0),
    ),
    "mirror": (
        lambda a: nn.mirror_pad(a, (0, 0, 1, 2), (0, 0, 2, 0), "REFLECT"),
        lambda a: F.pad(a, (2, 0, 1, 2), "reflect"),
    ),
    "depth_to_space": (lambda a: nn.depth_to_space(a, 2, mode="CRD"), lambda a: F.pixel_shuffle(a, 2)),
    "space_to_depth": (
        lambda a: nn.depth_to_space(nn.space_to_depth(nn.pixel_shuffle(a, 2), 2), 2),
        lambda a: F.pixel_shuffle(a, 2),
    ),
    "upsampling": (lambda a: nn.upsampling(a, 2, 2), lambda a: F.interpolate(a, scale_factor=2)),
    "bilinear": (
        lambda a: nn.upsampling(a, 2, 2, method="bilinear"),
        lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"),
    ),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_of_one_tensor(name):
    check(*ACTIVATIONS[name], X, tolerance=40)


def test_softmax_has_tvms_stages():
    x = te.placeholder((2, 3), name="x")
    kernel = te.create_prim_func([x, nn.softmax(x)]).kernel
    names = [stage.name for stage in stages(kernel.body)]
    assert names == ["T_softmax_maxelem", "T_softmax_exp", "T_softmax_expsum", "T_softmax_norm"]
    assert not isinstance(raised(kernel), str)


def test_softmax_of_large_numbers_and_half():
    check(nn.softmax, lambda a: a.softmax(-1), torch.tensor([[1000.0, 999.0], [-1000.0, -999.0]]))


def test_normalizations():
    w, v, last = W, V, torch.randn(3)
    check(
        lambda x, g, b: nn.layer_norm(x, g, b, -1),
        lambda x, g, b: F.layer_norm(x, (3,), g, b),
        X,
        last,
        last + 1,
        tolerance=40,
    )
    check(
        lambda x, g, b: nn.group_norm(x, g, b, 2, 1, [2, 3]),
        lambda x, g, b: F.group_norm(x, 2, g, b),
        X,
        w,
        v,
        tolerance=40,
    )
    check(
        lambda x, g, b: nn.instance_norm(x, g, b, 1, [2, 3]),
        lambda x, g, b: F.instance_norm(x, weight=g, bias=b),
        X,
        w,
        v,
        tolerance=40,
    )
    check(
        lambda x, g: nn.rms_norm(x, g, -1), lambda x, g: F.rms_norm(x, (3,), g, 1e-5), X, last, tolerance=40
    )
    mean, var = torch.randn(4), torch.rand(4) + 0.5
    check(
        nn.batch_norm,
        lambda x, g, b, m, s: (F.batch_norm(x, m, s, g, b), m, s),
        X,
        w,
        v,
        mean,
        var,
        tolerance=40,
    )

    def trained(x, g, b, m, s):
        m, s = m.clone(), s.clone()
        return F.batch_norm(x, m, s, g, b, training=True), m, s

    def ours(x, g, b, m, s):
        return nn.batch_norm(x, g, b, m, s, training=True)

    check_first(ours, trained, X, w, v, mean, var)
    check(nn.prelu, F.prelu, X, w)
    check(nn.scale_shift_nchw, lambda x, g, b: x * g[:, None, None] + b[:, None, None], X, w, v)
    check(nn.bias_add, lambda x, b: x + b[:, None, None], X, w)


def check_first(ours, theirs, *tensors):
    """Only what both define alike: torch's moving variance is the unbiased one."""
    check(lambda *a: list(ours(*a))[:2], lambda *a: theirs(*a)[:2], *tensors, tolerance=40)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_dense(dtype):
    a, w = (torch.randn(3, 5) * 3).to(dtype), (torch.randn(4, 5) * 3).to(dtype)
    b = (torch.randn(4) * 3).to(dtype)
    wide = torch.float32 if dtype is torch.float16 else dtype
    check(nn.dense, lambda a, w: (a.to(wide) @ w.to(wide).T).to(dtype), a, w)
    check(nn.dense, lambda a, w, b: (a.to(wide) @ w.to(wide).T).to(dtype) + b, a, w, b)


def test_dense_of_another_dtype():
    a, w = torch.randint(-9, 9, (3, 5), dtype=torch.int8), torch.randint(-9, 9, (4, 5), dtype=torch.int8)
    check(lambda a, w: nn.dense(a, w, out_dtype="int32"), lambda a, w: a.int() @ w.int().T, a, w)


@pytest.mark.parametrize(("ta", "tb"), [(False, True), (True, False), (True, True), (False, False)])
def test_batches(ta, tb):
    a, b = torch.randn(2, 3, 4), torch.randn(1, 4, 5)
    x, y = (a.mT if ta else a).contiguous(), (b.mT if tb else b).contiguous()
    turn = lambda t, turned: t.mT if turned else t  # noqa: E731
    theirs = lambda x, y: turn(x, ta) @ turn(y, tb)  # noqa: E731
    check(lambda x, y: nn.batch_matmul(x, y, transpose_a=ta, transpose_b=tb), theirs, x, y)
    check(lambda x, y: nn.matmul(x, y, transpose_a=ta, transpose_b=tb), theirs, x, y)
    more = torch.randn(3, 1, *x.shape[1:])
    check(lambda x, y: nn.matmul(x, y, transpose_a=ta, transpose_b=tb), theirs, more, y)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 0, 1, 1), (2, 1, 1, 1), ((1, 2), (1, 0), (1, 2), 1), (1, 1, 1, 2), (1, (1, 2, 0, 1), 1, 1)],
)
def test_convolutions(stride, padding, dilation, groups):
    x, w = torch.randn(1, 4, 5, 6), torch.randn(2, 4 // groups, 3, 2)

    def theirs(x, w):
        if isinstance(padding, tuple) and len(padding) == 4:
            top, left, bottom, right = padding
            return F.conv2d(F.pad(x, (left, right, top, bottom)), w, None, stride, 0, dilation, groups)
        return F.conv2d(x, w, None, stride, padding, dilation, groups)

    check(lambda x, w: nn.conv(x, w, stride, padding, dilation, groups, "NCHW"), theirs, x, w)
    nhwc = lambda x, w: nn.conv(x, w, stride, padding, dilation, groups, "NHWC", "HWIO")  # noqa: E731
    check(
        nhwc,
        lambda a, b: theirs(x, w).permute(0, 2, 3, 1),
        x.permute(0, 2, 3, 1).contiguous(),
        w.permute(2, 3, 1, 0).contiguous(),
    )


def test_groups_and_gradients_of_convolutions():
    x, w = torch.randn(1, 4, 3, 4), torch.randn(4, 2, 2, 3)
    check(
        lambda x, w: nn.group_conv2d_transpose_nchw(x, w, (1, 2), (1, 0), "float32", (0, 1), 2),
        lambda x, w: F.conv_transpose2d(x, w, stride=(1, 2), padding=(1, 0), output_padding=(0, 1), groups=2),
        x,
        w,
    )
    row, kernel = torch.randn(1, 4, 5), torch.randn(4, 3, 2)
    ours = lambda x, w: nn.conv1d_transpose_ncw(x, w, 2, 0)  # noqa: E731
    check(ours, lambda x, w: F.conv_transpose1d(x, w, stride=2), row, kernel)
    grouped = torch.randn(2, 2, 3)
    check(
        lambda x, w: nn.group_conv1d_ncw(x, w, groups=2), lambda x, w: F.conv1d(x, w, groups=2), row, grouped
    )
    volume, cube = torch.randn(1, 2, 2, 3, 2), torch.randn(2, 1, 2, 2, 2)
    check(
        lambda x, w: nn.conv3d_transpose_ncdhw(x, w, 1, 1),
        lambda x, w: F.conv_transpose3d(x, w, padding=1),
        volume,
        cube,
    )


@pytest.mark.parametrize(
    ("name", "mode"), [("reflect", "reflect"), ("replicate", "replicate"), ("circular", "circular")]
)
def test_padding_by_own_elements(name, mode):
    ours = getattr(nn, f"{name}_pad")
    check(lambda a: ours(a, (0, 0, 1, 2), (0, 0, 2, 0)), lambda a: F.pad(a, (2, 0, 1, 2), mode), X)


def test_names_of_a_convolution():
    x, w = te.placeholder((1, 2, 5, 5), name="x"), te.placeholder((3, 2, 3, 3), name="w")
    out = nn.conv2d(x, w, 1, 1, 1)
    assert (out.op.name, out.op.tag, out.shape) == ("conv2d_nchw", "conv2d_nchw", (1, 3, 5, 5))
    assert [axis.name for axis in (*out.op.axis, *out.op.reduce_axis)] == [
        "nn",
        "ff",
        "yy",
        "xx",
        "rc",
        "ry",
        "rx",
    ]
    assert out.op.input_tensors[0].op.name == "pad_temp"


def test_other_convolutions():
    x, w = torch.randn(1, 2, 7), torch.randn(3, 2, 3)
    check(lambda x, w: nn.conv1d(x, w, 2), lambda x, w: F.conv1d(x, w, stride=2), x, w)
    check(lambda x, w: nn.conv1d_ncw(x, w, padding="SAME"), lambda x, w: F.conv1d(x, w, padding=1), x, w)
    volume, kernel = torch.randn(1, 1, 3, 3, 3), torch.randn(2, 1, 2, 2, 2)
    check(lambda x, w: nn.conv3d_ncdhw(x, w, 1, 1, 1), lambda x, w: F.conv3d(x, w, padding=1), volume, kernel)
    image, depth = torch.randn(1, 3, 5, 5), torch.randn(3, 2, 3, 3)
    check(
        lambda x, w: nn.depthwise_conv2d_nchw(x, w, 2, 1, 1),
        lambda x, w: F.conv2d(x, w.reshape(6, 1, 3, 3), stride=2, padding=1, groups=3),
        image,
        depth,
    )
    check(
        lambda x, w: nn.conv2d_transpose_nchw(x, w, (2, 2), (1, 1), "float32", (1, 1)),
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        image,
        depth,
    )
    check(
        lambda a: nn.dilate(a, (1, 2)), lambda a: torch.stack([a, a * 0], 2).flatten(1)[:, :-1], image[0, 0]
    )


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_pooling(kind, ceil, counted):
    x = torch.randn(1, 2, 5, 6)

    def theirs(x):
        if kind == "max":
            return F.max_pool2d(x, (2, 3), 2, 1, ceil_mode=ceil)
        return F.avg_pool2d(x, (2, 3), 2, 1, ceil, counted)

    check(
        lambda x: nn.pool2d(x, (2, 3), (2, 2), (1, 1), (1, 1, 1, 1), kind, ceil, "NCHW", counted), theirs, x
    )


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_other_pooling(kind):
    x = torch.randn(1, 2, 5, 6)
    adaptive = getattr(F, f"adaptive_{kind}_pool2d")
    check(lambda x: nn.adaptive_pool(x, (2, 4), kind), lambda x: adaptive(x, (2, 4)), x)
    check(lambda x: nn.global_pool(x, kind), lambda x: adaptive(x, 1), x)
    check(lambda x: nn.pool1d(x, 2, 2, 1, (0, 0), kind), lambda x: getattr(F, f"{kind}_pool1d")(x, 2), x[0])
    check(
        lambda x: nn.pool2d(x, 2, 2, 1, (0, 0), kind, layout="NHWC"),
        lambda x: getattr(F, f"{kind}_pool2d")(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1),
        x,
    )


def test_pooling_of_blocks_of_channels():
    x = torch.randn(1, 2, 5, 6, 4)
    plain = lambda x: x.permute(0, 1, 4, 2, 3).reshape(1, 8, 5, 6)  # noqa: E731
    check(
        lambda x: nn.adaptive_pool(x, (1, 2), "avg", "NCHW4c"),
        lambda x: F.adaptive_avg_pool2d(plain(x), (1, 2)).reshape(1, 2, 4, 1, 2).permute(0, 1, 3, 4, 2),
        x,
    )


def test_loss():
    p, t, w = torch.randn(3, 4).log_softmax(1), torch.tensor([1, 0, 3], dtype=torch.int32), torch.rand(4)
    for reduction in ("none", "mean", "sum"):
        check(
            lambda p, t, w: nn.nll_loss(p, t, w, reduction, -100),  # noqa: B023
            lambda p, t, w: F.nll_loss(p, t.long(), w, reduction=reduction),  # noqa: B023
            p,
            t,
            w,
        )


def test_a_program_of_topi_stays_loop_functions():
    x, w = te.placeholder((3, 5), name="x"), te.placeholder((4, 5), name="w")
    func = te.create_prim_func([x, w, nn.softmax(nn.relu(nn.dense(x, w)))])
    assert func.attrs["layout_free_buffers"] == [1]
    assert not isinstance(raised(func.kernel), str)


X4, K4 = te.placeholder((1, 2, 5, 5), name="x"), te.placeholder((3, 2, 3, 3), name="k")


@pytest.mark.parametrize(
    ("code", "program"),
    [
        ("SM1121", lambda: nn.conv2d(X4, te.placeholder((3, 4, 3, 3)), 1, 1, 1)),
        ("SM1121", lambda: nn.conv2d(X4, te.placeholder((3, 2, 7, 7)), 1, 0, 1)),
        ("SM1121", lambda: nn.conv2d(X4, K4, (1, 1, 1), 1, 1)),
        ("SM1121", lambda: nn.softmax(te.placeholder((3,), "int32"))),
        ("SM1121", lambda: nn.pad(X4, (1, 1))),
        ("SM1121", lambda: nn.lrn(X4, 2)),
        ("SM1121", lambda: nn.matmul(X4, te.placeholder((3,)))),
        ("SM1122", lambda: nn.relu(3)),
        ("SM1123", lambda: nn.conv2d(X4, K4, 1, "ELSE", 1)),
        ("SM1123", lambda: nn.conv2d(X4, K4, 1, 1, 1, "NCHW4c")),
        ("SM1123", lambda: nn.pool2d(X4, 2, 2, 1, (0, 0), "sum")),
        ("SM1123", lambda: nn.layer_norm(X4, K4, K4, 1)),
        ("SM1123", lambda: nn.mirror_pad(X4, (0, 0, 1, 1), mode="no")),
        ("SM1123", lambda: nn.upsampling(X4, 2, 2, method="no")),
    ],
)
def test_refusals(code, program):
    with pytest.raises(smelt.SmeltError) as caught:
        program()
    assert caught.value.code == code, caught.value
