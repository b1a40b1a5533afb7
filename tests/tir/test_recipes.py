"""Recipes are steps that a person could have written: checked, printed, and as fast as smelt's own nests."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt import te, topi
from smelt.nest.scopes import reads
from smelt.nest.tree import stages
from smelt.schedule.loops import Target
from smelt.tir import PrimFunc, Schedule, ScheduleError, recipes
from tests.nest.staging import same
from tests.tir.compiling import compiled, cpp_of


def product(
    rows: int, columns: int, depth: int, form: str = "nn", batch: int = 0, relu: bool = True
) -> PrimFunc:
    """A product of matrices, of which "t" are transposed in memory, perhaps of batches, perhaps with relu."""
    b = (batch,) if batch else ()
    left, right = form
    x = te.placeholder((*b, depth, rows) if left == "t" else (*b, rows, depth), name="X")
    y = te.placeholder((*b, columns, depth) if right == "t" else (*b, depth, columns), name="Y")
    k = te.reduce_axis((0, depth), name="k")

    def element(*index: object) -> object:
        *at, i, j = index
        one = x[(*at, k, i)] if left == "t" else x[(*at, i, k)]
        return te.sum(one * (y[(*at, j, k)] if right == "t" else y[(*at, k, j)]), axis=k)

    z = te.compute((*b, rows, columns), element, name="matmul")
    if not relu:
        return te.create_prim_func([x, y, z])
    return te.create_prim_func([x, y, te.compute(z.shape, lambda *i: te.max(z(*i), 0.0), name="relu")])


TARGETS = {"AVX-512": Target(64, (), 2), "AVX2": Target(32), "NEON": Target(16)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("sizes", "form", "batch", "relu"),
    [
        ((9, 20, 7), "nn", 0, True),
        ((8, 16, 5), "nt", 0, True),
        ((5, 3, 4), "tn", 2, False),
    ],
)
def test_it_keeps_what_is_computed(
    sizes: tuple[int, int, int], form: str, batch: int, relu: bool, target: str
) -> None:
    """The interpreter runs what the intrinsics say; on every machine."""
    func = product(*sizes, form, batch, relu)
    sch = Schedule(func)
    sch.apply(recipes.matmul, target=TARGETS[target])
    same(func.kernel, sch.func.kernel, exactly=False)


@pytest.mark.parametrize(
    ("sizes", "form", "batch", "relu"),
    [
        ((33, 83, 40), "nn", 0, True),
        ((64, 48, 50), "nt", 0, False),
        ((19, 40, 33), "tt", 2, True),
        ((64, 96, 1030), "tn", 0, True),
        ((67, 96, 2100), "nn", 0, True),
    ],
)
def test_it_sums_as_smelts_own_kernels_do(
    sizes: tuple[int, int, int], form: str, batch: int, relu: bool
) -> None:
    """Bit for bit: the same terms in the same order."""
    func = product(*sizes, form, batch, relu)
    sch = Schedule(func)
    sch.apply(recipes.matmul)
    for one, other in zip(compiled(sch), compiled(func)):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert "smelt_tile_" in cpp_of(sch.func.kernel)


def test_its_steps_are_printed_and_can_be_changed() -> None:
    func = product(16, 32, 8)
    sch = Schedule(func)
    sch.apply(recipes.matmul, target=TARGETS["AVX2"])
    text = str(sch.trace)
    assert "reindex_cache_read" in text and "tensor_intrin='smelt.tile_" in text
    again = Schedule(func)
    sch.trace.apply_to_schedule(again)
    assert again.mod.script() == sch.mod.script()


def test_a_tile_is_placed_by_hand() -> None:
    func = product(8, 32, 6, relu=False)
    sch = Schedule(func)
    block = sch.get_block("matmul")
    i, j, k = sch.get_loops(block)
    j_0, j_1 = sch.split(j, factors=[None, 32])
    i_0, i_1 = sch.split(i, factors=[None, 4])
    sch.reorder(j_0, i_0, i_1, j_1, k)
    with pytest.raises(ScheduleError, match=r"SM1038.*8 iterations|4 iterations"):
        sch.tensorize(i_1, "smelt.tile_8x32")
    sch.tensorize(i_1, "smelt.tile_4x32")
    sch.prefetch("matmul_o", "Y", lambda i, j, k: (k, 4 * i), 2)
    with pytest.raises(ScheduleError, match=r"SM1038.*prefetches already"):
        sch.prefetch("matmul_o", "Y", lambda i, j, k: (k, i), 2)
    same(func.kernel, sch.func.kernel, exactly=False)
    text = cpp_of(sch.func.kernel)
    assert "smelt_tile_4x32_ahead_" in text
    for one, other in zip(compiled(sch), compiled(func)):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def attention(heads: int, queries: int, keys: int, depth: int, columns: int, form: str = "after") -> PrimFunc:
    """softmax(Q K^T / 4) V: divided by the sums ``after`` the product, or ``before``, perhaps with a bias."""
    q = te.placeholder((heads, queries, depth), name="Q")
    k, v = (te.placeholder((heads, keys, n), name=name) for name, n in (("K", depth), ("V", columns)))
    bias = te.placeholder((queries, keys), name="bias")
    r, j = te.reduce_axis((0, depth), name="r"), te.reduce_axis((0, keys), name="j")
    s = te.compute((heads, queries, keys), lambda h, i, j: te.sum(q[h, i, r] * k[h, j, r], axis=r), name="S")
    t = te.compute(
        s.shape, lambda h, i, j: s[h, i, j] / 4 + (bias[i, j] if "bias" in form else 0.0), name="T"
    )
    if "after" in form:
        m = te.compute((heads, queries), lambda h, i: te.max(t[h, i, j], axis=j), name="M")
        w = te.compute(s.shape, lambda h, i, j: te.exp(t[h, i, j] - m[h, i]), name="W")
        a = te.reduce_axis((0, keys), name="a")
        total = te.compute((heads, queries), lambda h, i: te.sum(w[h, i, a], axis=a), name="total")
    else:
        w = topi.nn.softmax(t)
    b = te.reduce_axis((0, keys), name="b")
    shape = (heads, queries, columns)
    o = te.compute(shape, lambda h, i, c: te.sum(w[h, i, b] * v[h, b, c], axis=b), name="O")
    out = te.compute(shape, lambda h, i, c: o[h, i, c] / total[h, i], name="out") if "after" in form else o
    return te.create_prim_func([q, k, v, *([bias] if "bias" in form else []), out])


@pytest.mark.parametrize("target", ["AVX-512", "NEON"])
def test_attention_keeps_what_is_computed(target: str) -> None:
    func = attention(1, 5, 9, 3, 6, "before, bias")
    sch = Schedule(func)
    sch.apply(recipes.attention, "O", TARGETS[target])
    same(func.kernel, sch.func.kernel, exactly=False)


@pytest.mark.parametrize(
    ("sizes", "form"), [((3, 50, 70, 24, 40), "after"), ((2, 64, 530, 16, 96), "before, bias")]
)
def test_attention_stays_in_the_cache(sizes: tuple[int, ...], form: str) -> None:
    """Scores of all queries are nowhere in memory, and what tiles make is what eager makes."""
    heads, queries, keys, depth, columns = sizes
    sch = Schedule(attention(*sizes, form))
    sch.apply(recipes.attention, block="O")
    q, k, v = (
        torch.randn(heads, queries, depth),
        torch.randn(heads, keys, depth),
        torch.randn(heads, keys, columns),
    )
    bias, out = torch.randn(queries, keys), torch.zeros(heads, queries, columns)
    smelt.build(sch)(*(q, k, v, bias, out) if "bias" in form else (q, k, v, out))
    mask = bias.double() if "bias" in form else None
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), mask, scale=0.25
    )
    torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=2e-6)
    text = cpp_of(sch.func.kernel)
    assert text.count("smelt_tile_") >= 4 and f"[{heads * queries * keys}]" not in text


def test_attention_needs_scores() -> None:
    sch = Schedule(product(8, 16, 4))
    with pytest.raises(ScheduleError, match=r"SM1049: attention: no product leads to X"):
        sch.apply(recipes.attention)


def gradients(heads: int, queries: int, keys: int, depth: int, columns: int) -> PrimFunc:
    """dQ, dK and dV of softmax(Q K^T / 4) V, given the gradient dO of its result."""
    q, k, v, g = (
        te.placeholder((heads, size, n), name=name)
        for name, size, n in (
            ("Q", queries, depth),
            ("K", keys, depth),
            ("V", keys, columns),
            ("dO", queries, columns),
        )
    )
    scores, over = (heads, queries, keys), lambda size, name: te.reduce_axis((0, size), name=name)
    r, c, j, i = over(depth, "r"), over(columns, "c"), over(keys, "j"), over(queries, "i")
    s = te.compute(scores, lambda h, i, j: te.sum(q[h, i, r] * k[h, j, r], axis=r), name="S")
    p = topi.nn.softmax(te.compute(scores, lambda h, i, j: s[h, i, j] / 4, name="T"))
    dp = te.compute(scores, lambda h, i, j: te.sum(g[h, i, c] * v[h, j, c], axis=c), name="dP")
    d = te.compute((heads, queries), lambda h, i: te.sum(p[h, i, j] * dp[h, i, j], axis=j), name="D")
    ds = te.compute(scores, lambda h, i, j: p[h, i, j] * (dp[h, i, j] - d[h, i]) / 4, name="dS")
    dq = te.compute(q.shape, lambda h, i, x: te.sum(ds[h, i, j] * k[h, j, x], axis=j), name="dQ")
    dk = te.compute(k.shape, lambda h, j, x: te.sum(ds[h, i, j] * q[h, i, x], axis=i), name="dK")
    dv = te.compute(v.shape, lambda h, j, x: te.sum(p[h, i, j] * g[h, i, x], axis=i), name="dV")
    return te.create_prim_func([q, k, v, g, dq, dk, dv])


def test_gradients_of_attention_keep_what_is_computed() -> None:
    func = gradients(1, 5, 9, 3, 6)
    sch = Schedule(func)
    sch.apply(recipes.attention_gradients, "dQ", TARGETS["NEON"])
    same(func.kernel, sch.func.kernel, exactly=False)


def test_gradients_of_attention_are_one_nest() -> None:
    """Of all five products, tile by tile, and with no matrix of all scores in memory."""
    heads, queries, keys, depth, columns = sizes = (2, 51, 70, 24, 40)
    sch = Schedule(gradients(*sizes))
    sch.apply(recipes.attention_gradients, block="dQ")
    q, k, v, g = (
        torch.randn(heads, *size)
        for size in ((queries, depth), (keys, depth), (keys, columns), (queries, columns))
    )
    made = [torch.zeros_like(each) for each in (q, k, v)]
    smelt.build(sch)(q, k, v, g, *made)
    exact = [each.double().requires_grad_() for each in (q, k, v)]
    torch.nn.functional.scaled_dot_product_attention(*exact, scale=0.25).backward(g.double())
    for one, other in zip(made, exact):
        assert other.grad is not None
        torch.testing.assert_close(one, other.grad.float(), rtol=1e-5, atol=5e-6)
    text = cpp_of(sch.func.kernel)
    assert f"[{heads * queries * keys}]" not in text and text.count("smelt::team") <= 5


def convolution(
    shape: tuple[int, ...], filters: int, size: int, stride: int, pad: int, layout: str
) -> PrimFunc:
    """A convolution with relu of an image (n, c, h, w), which is in a layout."""
    n, c, h, w = shape
    last = layout == "NHWC"
    x = te.placeholder((n, h, w, c) if last else shape, name="X")
    f = te.placeholder((size, size, c, filters) if last else (filters, c, size, size), name="F")
    conv = topi.nn.conv2d_nhwc if last else topi.nn.conv2d_nchw
    return te.create_prim_func([x, f, topi.nn.relu(conv(x, f, stride, pad, 1))])


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_convolutions_keep_what_is_computed(layout: str) -> None:
    func = convolution((1, 3, 5, 4), 7, 3, 1, 1, layout)
    sch = Schedule(func)
    sch.apply(recipes.convolution, target=TARGETS["NEON"])
    same(func.kernel, sch.func.kernel, exactly=False)


@pytest.mark.parametrize(
    ("shape", "filters", "size", "stride", "pad", "layout"),
    [
        ((1, 5, 9, 8), 7, 3, 1, 1, "NHWC"),
        ((2, 64, 31, 31), 24, 3, 1, 1, "NHWC"),
        ((2, 16, 10, 10), 24, 3, 2, 1, "NCHW"),
        ((1, 16, 6, 6), 20, 1, 1, 0, "NCHW"),
        ((1, 16, 7, 7), 32, 3, 1, 1, "NCHW"),
        ((1, 24, 6, 6), 32, 1, 1, 0, "NCHW"),
        ((1, 24, 6, 6), 32, 1, 1, 0, "NHWC"),
    ],
)
def test_convolutions_are_products_of_patches(
    shape: tuple[int, ...], filters: int, size: int, stride: int, pad: int, layout: str
) -> None:
    sch = Schedule(convolution(shape, filters, size, stride, pad, layout))
    sch.apply(recipes.convolution)
    x, f = torch.randn(shape), torch.randn(filters, shape[1], size, size)
    exact = torch.nn.functional.conv2d(x.double(), f.double(), stride=stride, padding=pad).relu().float()
    if layout == "NHWC":
        x, f, exact = x.permute(0, 2, 3, 1), f.permute(2, 3, 1, 0), exact.permute(0, 2, 3, 1)
    out = torch.zeros(exact.shape)
    smelt.build(sch)(x.contiguous(), f.contiguous(), out)
    torch.testing.assert_close(out, exact, rtol=1e-5, atol=1e-4)
    assert "smelt_tile_" in cpp_of(sch.func.kernel)


@pytest.mark.parametrize("size", [1, 3])
def test_filters_are_transposed_in_registers(size: int) -> None:
    func = convolution((1, 8, 3, 2), 16, size, 1, size // 2, "NCHW")
    sch = Schedule(func)
    sch.apply(recipes.convolution, target=TARGETS["AVX2"])
    assert "sch.turn(" in str(sch.trace)
    same(func.kernel, sch.func.kernel, exactly=False)
    assert "copy_transposed<8>" in cpp_of(sch.func.kernel)


def test_an_image_without_padding_is_copied_once() -> None:
    sch = Schedule(convolution((1, 8, 5, 5), 16, 1, 1, 0, "NHWC"))
    sch.apply(recipes.convolution, target=TARGETS["AVX2"])
    assert "sch.compute_inline(" in str(sch.trace)
    assert sum("X" in reads(each) for each in stages(sch.func.kernel.body)) == 1


def test_convolutions_of_groups_are_refused() -> None:
    x, f = te.placeholder((1, 8, 6, 6), name="X"), te.placeholder((8, 4, 3, 3), name="F")
    sch = Schedule(te.create_prim_func([x, f, topi.nn.group_conv2d_nchw(x, f, 1, 1, 1, 2)]))
    with pytest.raises(ScheduleError, match=r"SM1049.*groups are not known"):
        sch.apply(recipes.convolution)


def test_reductions_in_lanes() -> None:
    x, k = te.placeholder((4, 37), name="X"), te.reduce_axis((0, 37), name="k")
    most = te.compute((4,), lambda i: te.max(x[i, k] * 2.0, axis=k), name="most")
    func = te.create_prim_func([x, most])
    sch = Schedule(func)
    i, k = sch.get_loops("most")
    with pytest.raises(ScheduleError, match=r"SM1007: reduce_in_lanes\(i\)"):
        sch.reduce_in_lanes(i)
    sch.reduce_in_lanes(k)
    same(func.kernel, sch.func.kernel)
    assert "reduce_max<values<f32, " in cpp_of(sch.func.kernel)
    for one, other in zip(compiled(sch), compiled(func)):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_what_is_refused() -> None:
    def func(element: object, shape: tuple[int, ...] = (8, 8), depth: int = 8) -> PrimFunc:
        x, y = te.placeholder((8, 8), name="X"), te.placeholder((8, 8), name="Y")
        k = te.reduce_axis((0, depth), name="k")
        return te.create_prim_func([x, y, te.compute(shape, lambda *i: element(x, y, k, *i), name="C")])  # type: ignore[operator]

    sums = Schedule(func(lambda x, y, k, i, j: te.sum(x[i, k] + y[k, j], axis=k)))
    with pytest.raises(ScheduleError, match=r"SM1049: a product in C: it is no sum of products"):
        sums.apply(recipes.matmul)
    turned = Schedule(func(lambda x, y, k, i, j: te.sum(x[j, k] * y[k, i], axis=k)))
    with pytest.raises(ScheduleError, match=r"SM1049.*not of X alone"):
        turned.apply(recipes.matmul)
    vector = Schedule(func(lambda x, y, k, i: te.sum(x[i, k] * y[k, 0], axis=k), (8,)))
    with pytest.raises(ScheduleError, match="SM1049"):
        vector.apply(recipes.matmul)
    none = Schedule(func(lambda x, y, k, i, j: x[i, j]))
    with pytest.raises(ScheduleError, match=r"SM1049: apply\(matmul\): 0 blocks sum"):
        none.apply(recipes.matmul)
    other = Schedule(product(8, 16, 4))
    with pytest.raises(ScheduleError, match=r"SM1038.*no register tile"):
        other.prefetch("matmul", "Y", lambda i, j, k: (k, j), 1)
    with pytest.raises(ScheduleError, match=r"SM1031.*no parameter Z"):
        other.prefetch("matmul", "Z", lambda i, j, k: (k, j), 1)
    assert not any(stage.text for stage in stages(other.func.kernel.body))


def test_rest_tiles_end_where_their_blocks_do() -> None:
    sch = Schedule(product(10, 20, 4))
    i, j = sch.get_loops("relu")
    i_0, i_1 = sch.split(i, factors=[None, 4])
    whole, rest = sch.loop_partition(i_0, factors=[2, None])
    for each in (whole, rest):
        sch.tighten(each)
    text = sch.mod.script()
    assert "T.where" not in text and "T.grid(2, 4, 20)" in text
    assert [int(sch.get(each).extent) for each in sch.get_loops(sch.get_child_blocks(rest)[0])] == [1, 2, 20]
    del i_1, j
    func = product(10, 20, 4)
    same(func.kernel, sch.func.kernel)
    smelt.build(sch)
