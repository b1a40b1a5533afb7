"""``tvm.s_tir.tensor_intrin``: intrinsics of targets by TVM's names, as what they compute.

``DOTS``: name → columns, terms, and the dtypes of the row, the matrix and the sums: each column's sum grows
by the products of a row with it. The others are names alone: where one is asked for, there is none.
"""

from __future__ import annotations

from smelt.script import from_source
from smelt.tir import TensorIntrin

DOTS = {
    "dot_16x4_vnni": (16, 4, "uint8", "int8", "int32"),
    "dot_16x4_avx512": (16, 4, "uint8", "int8", "int32"),
    "dot_4x4_i8i8s32_neon": (4, 4, "int8", "int8", "int32"),
    "dot_4x4_i8i8s32_sdot": (4, 4, "int8", "int8", "int32"),
    "dot_32x4_u8u8i32_vrmpy": (32, 4, "uint8", "uint8", "int32"),
    "dot_32x2_i16i16i32_vdmpy": (32, 2, "int16", "int16", "int32"),
    "sdot4": (1, 4, "int8", "int8", "int32"),
    "dp4a_s8s8s32": (1, 4, "int8", "int8", "int32"),
    "dp4a_s8u8s32": (1, 4, "int8", "uint8", "int32"),
    "dp4a_u8s8s32": (1, 4, "uint8", "int8", "int32"),
}

_TEXT = """
@T.prim_func
def {word}(
    A: T.Buffer(({terms},), "{a}"), B: T.Buffer({matrix}, "{b}"), C: T.Buffer(({columns},), "{c}")
):
    with T.sblock("root"):
{body}
"""
_SUM = 'C[{i}] = C[{i}] + T.Cast("{c}", A[{k}]) * T.Cast("{c}", B[{b}])'


def _dot(name: str, columns: int, terms: int, a: str, b: str, c: str) -> None:
    several = columns > 1
    loops = f"for i, k in T.grid({columns}, {terms}):" if several else f"for k in range({terms}):"
    axes = 'vi, vk = T.axis.remap("SR", [i, k])' if several else 'vk = T.axis.remap("R", [k])'
    said = [
        [
            loops,
            '    with T.sblock("update"):',
            f"        {axes}",
            f"        {_sum('vi', 'vk', several, c)}",
        ],
        [loops, f"    {_sum('i', 'k', several, c)}"],
    ]
    matrix = f"({columns}, {terms})" if several else f"({terms},)"
    desc, impl = (
        from_source(
            _TEXT.format(
                word=word,
                terms=terms,
                columns=columns,
                matrix=matrix,
                a=a,
                b=b,
                c=c,
                body="\n".join(" " * 8 + line for line in lines),
            )
        )
        for word, lines in zip(("desc", "impl"), said)
    )
    TensorIntrin.register(name, desc, impl)


def _sum(i: str, k: str, several: bool, c: str) -> str:
    return _SUM.format(i=i if several else "0", k=k, c=c, b=f"{i}, {k}" if several else k)


for _name, _about in DOTS.items():
    _dot(_name, *_about)
