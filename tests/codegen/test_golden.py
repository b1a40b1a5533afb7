"""The C++ of three kernels, as people read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from smelt.codegen.cpp import print_unit
from smelt.loops.ir import Origin
from smelt.nest.ir import Accumulate, Kernel, Let, LoopKind, Store, Update
from tests.codegen.support import SIZE, block, number, param, single
from tests.codegen.test_nests import F32, H, J, K, embedding, kernel, load, loop, padded

VECTOR = LoopKind.VECTOR


def layernorm() -> Kernel:
    shape = [SIZE, 768]
    params = [param("x", F32, shape), param("w", F32, [768]), param("y", F32, shape, written=True)]
    row = [
        Accumulate("a", "welford", F32),
        loop(J, 768, load("x1", "x", H, J), Update("a", "x1"), kind=VECTOR, step=16),
        Let("mean", F32, "read", ("a", 0)),
        Let("m2", F32, "read", ("a", 1)),
        Let("count", F32, "constant", (768.0,)),
        Let("var", F32, "truediv", ("m2", "count")),
        Let("eps", F32, "constant", (1e-5,)),
        Let("sum", F32, "add", ("var", "eps")),
        Let("scale", F32, "rsqrt", ("sum",)),
        loop(
            K,
            768,
            load("x2", "x", H, K),
            Let("d", F32, "sub", ("x2", "mean")),
            Let("n", F32, "mul", ("d", "scale")),
            load("w", "w", K),
            Let("r", F32, "mul", ("n", "w")),
            Store("y", (H, K), "r"),
            kind=VECTOR,
            step=16,
        ),
    ]
    built = kernel("layernorm", params, loop(H, SIZE, *row, kind=LoopKind.PARALLEL))
    return replace(built, origins=(Origin("aten.native_layer_norm", "model.py:3 in forward"),))


def softmax_of_197() -> Kernel:
    params = [
        param("x", F32, [64, 197]),
        param("m", F32, [64], written=True),
        param("s", F32, [64], written=True),
    ]
    row = [
        Accumulate("a", "online_softmax", F32),
        loop(J, 197, load("v", "x", H, J), Update("a", "v"), kind=VECTOR, step=16),
        Let("m", F32, "read", ("a", 0)),
        Let("s", F32, "read", ("a", 1)),
        Store("m", (H,), "m"),
        Store("s", (H,), "s"),
    ]
    return Kernel("softmax", tuple(params), (), block(loop(H, 64, *row)))


def own_text(built: Kernel) -> str:
    """The unit without the header."""
    text = print_unit([single(built)]).text
    return text[text.rindex("namespace smelt {") :]


def test_layernorm(golden: Callable[[str, str], None]) -> None:
    golden("layernorm.cpp", own_text(layernorm()))


def test_softmax_with_a_tail(golden: Callable[[str, str], None]) -> None:
    golden("softmax.cpp", own_text(softmax_of_197()))


def test_embedding_with_checks(golden: Callable[[str, str], None]) -> None:
    golden("embedding.cpp", own_text(embedding(8)))


def test_padding_with_masks(golden: Callable[[str, str], None]) -> None:
    golden("padded.cpp", own_text(padded(8)))


def test_only_needed_sections_are_in_the_text() -> None:
    plain = loop(H, SIZE, load("v", "x", H), Let("r", F32, "add", ("v", "v")), Store("y", (H,), "r"))
    params = [param("x", F32, [SIZE]), param("y", F32, [SIZE], written=True)]
    text = print_unit([single(kernel("plain", params, plain))]).text
    assert "smelt_math.h" not in text
    assert "#include" not in text
    assert "smelt_reduce.h" in print_unit([single(layernorm())]).text


def test_numbers_keep_their_type() -> None:
    from smelt.codegen.cpp.types import literal

    assert literal(float("-inf"), torch.float32) == "-__builtin_inff()"
    assert literal(-0.0, torch.float64) == "-0.0"
    assert literal(300, torch.uint8) == "u8(44)"
    assert literal(-(2**63), torch.int64) == "(-i64(9223372036854775807) - 1)"
    assert literal(1e39, torch.float32) == "__builtin_inff()"
    assert number(3) == 3
