"""Texts of the traces: a model, and nests and C++ like those of smelt, each line with its operators."""

from __future__ import annotations

from typing import Any

WORDS, WIDTH = 128, 768

MODEL = '''\
"""A small encoder."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from layers import MLP, split_heads


class Attention(nn.Module):
    """Self-attention with one projection for each of query, key and value."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = split_heads(self.query(x), self.heads)
        key = split_heads(self.key(x), self.heads)
        value = split_heads(self.value(x), self.heads)
        mixed = scaled_dot_product_attention(query, key, value)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.mlp = MLP(width)
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x + self.attention(x))
        return self.second(x + self.mlp(x))


class Encoder(nn.Module):
    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x  # </script><script>alert("a model may say this")</script>
'''

LAYERS = '''\
import torch
from torch import nn
from torch.nn.functional import gelu


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(batch, words, heads * width) → (batch, heads, words, width)."""
    batch, words, width = x.shape
    return x.view(batch, words, heads, width // heads).transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(gelu(self.up(x)))
'''


class Text:
    """Lines and the operators that they came from."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.marks: list[list[int]] = []

    def add(self, line: str, *marks: int) -> None:
        self.lines.append(line)
        self.marks.append(list(marks))

    def frame(self, name: str) -> dict[str, Any]:
        return {"pass": name, "lines": self.lines, "marks": self.marks}


def _head(name: str, *sizes: int) -> str:
    first, second, third, out = sizes
    return f"kernel {name}(p0: f32[{first}], p1: f32[{second}], p2: f32[{third}], out p3: f32[{out}]):"


def _signature(name: str) -> str:
    inputs = ", ".join(f"const f32_buffer* in{number}" for number in range(3))
    return f"static void kernel_{name}({inputs}, f32_buffer* out3) {{"


def product(name: str, rows: int, columns: int, depth: int, epilogue: list[tuple[str, int]]) -> Any:
    """The film and the code of a product with an epilogue: (operator of the protocol, mark) each."""
    film = []
    sizes = (rows * depth, columns * depth, columns, rows * columns)

    def ends(text: Text, indent: str, place: str, which: str = "") -> None:
        text.add(f"{indent}v1{which}: f32 = acc0{which}.0", 0)
        text.add(f"{indent}v2{which}: f32 = p2[{place}]", 0)
        text.add(f"{indent}v3{which}: f32 = add(v1{which}, v2{which})", 0)
        value = "v3" + which
        for number, (function, mark) in enumerate(epilogue, 4):
            text.add(f"{indent}v{number}{which}: f32 = {function}({value})", mark)
            value = f"v{number}{which}"
        text.add(f"{indent}p3[{columns}*i0 + {place}] = {value}", *({mark for _, mark in epilogue} or {0}))

    def begin() -> Text:
        text = Text()
        text.add(_head(name, *sizes))
        return text

    text = begin()
    text.add(f"    for i0 in range({rows}), i1 in range({columns}):", 0)
    text.add("        acc0: f32 = sum()", 0)
    text.add(f"        for i2 in range({depth}):", 0)
    text.add(f"            acc0 update p0[{depth}*i0 + i2] * p1[{depth}*i1 + i2]", 0)
    ends(text, "        ", "i1")
    film.append(text.frame("as fused"))

    text = begin()
    text.add(f"    parallel for i1 in range({columns}):", 0)
    text.add(f"        for i0 in range({rows}):", 0)
    text.add("            acc0: f32 = sum()", 0)
    text.add(f"            for i2 in range({depth}):", 0)
    text.add(f"                acc0 update p0[{depth}*i0 + i2] * p1[{depth}*i1 + i2]", 0)
    ends(text, "            ", "i1")
    film.append(text.frame("choose_loops"))

    text = begin()
    text.add(f"    parallel for i1_0 in range({columns // 64}):", 0)
    text.add(f"        for i0 in range({rows}):", 0)
    text.add("            vector for i1_1 in range(64) step 16:", 0)
    text.add("                acc0: f32 = sum()", 0)
    text.add(f"                for i2 in range({depth}):", 0)
    text.add(f"                    v0: f32 = p0[{depth}*i0 + i2]", 0)
    text.add(f"                    acc0 update fma(v0, p1[64*{depth}*i1_0 + 64*i2 + i1_1], acc0)", 0)
    ends(text, "                ", "64*i1_0 + i1_1")
    film.append(text.frame("vectorize"))

    text = begin()
    text.add(f"    parallel for i1_0 in range({columns // 64}):", 0)
    text.add(f"        for i0_0 in range({rows // 4}):", 0)
    tiles = [f"_{row}_{column}" for row in range(4) for column in range(4)]
    for tile in tiles:
        text.add(f"            carry acc0{tile}: f32 = 0.0", 0)
    text.add(f"            for i2 in range({depth}):", 0)
    for column in range(4):
        text.add(f"                w_{column}: f32 = p1[{64 * depth}*i1_0 + 64*i2 + {16 * column}]", 0)
    for row in range(4):
        text.add(f"                v0_{row}: f32 = p0[{4 * depth}*i0_0 + i2 + {row * depth}]", 0)
        for column in range(4):
            text.add(
                f"                acc0_{row}_{column} = fma(v0_{row}, w_{column}, acc0_{row}_{column})", 0
            )
    for tile in tiles:
        ends(text, "            ", f"64*i1_0 + {16 * int(tile[-1])}", tile)
    film.append(text.frame("tile_registers"))

    code = Text()
    code.add(_signature(name))
    code.add(f"  parallel({columns // 64}, [&](i64 begin, i64 end) {{", 0)
    code.add("    for (i64 d0 = begin; d0 < end; ++d0) {", 0)
    code.add(f"      for (i64 d1 = 0; d1 < {rows // 4}; ++d1) {{", 0)
    for number in range(16):
        code.add(f"        vec<f32, 16> c{number} = splat<16>(0.0f);", 0)
    code.add(f"        for (i64 d2 = 0; d2 < {depth}; ++d2) {{", 0)
    for column in range(4):
        code.add(
            f"          const auto w{column} = load<16>(in1 + d0*{64 * depth} + d2*64 + {16 * column});", 0
        )
    for row in range(4):
        code.add(f"          const f32 x{row} = in0[d1*{4 * depth} + d2 + {row * depth}];", 0)
        for column in range(4):
            number = 4 * row + column
            code.add(f"          c{number} = fma(splat<16>(x{row}), w{column}, c{number});", 0)
    code.add("        }", 0)
    for number in range(16):
        code.add(
            f"        const auto s{number} = add(c{number}, load<16>(in2 + d0*64 + {16 * (number % 4)}));", 0
        )
        value = f"s{number}"
        for step, (function, mark) in enumerate(epilogue):
            code.add(f"        const auto e{step}_{number} = {function}({value});", mark)
            value = f"e{step}_{number}"
        place = f"d1*{4 * columns} + d0*64 + {columns * (number // 4) + 16 * (number % 4)}"
        code.add(f"        store(out3 + {place}, {value});", *({mark for _, mark in epilogue} or {0}))
    for closing in ("      }", "    }", "  });", "}"):
        code.add(closing)
    asm = [f"kernel_{name}:", "        push    rbp", "        mov     rbp, rsp"]
    asm += [
        f"        vfmadd231ps zmm{n}, zmm{16 + n % 4}, dword ptr [rdi + {4 * n}]{{1to16}}" for n in range(16)
    ]
    asm += ["        inc     rax", "        jne     .LBB0_3", "        ret"]
    return film, {
        "language": "c++", "name": name, "lines": code.lines, "marks": code.marks,
        "more": [{"language": "asm", "name": name, "lines": asm, "marks": [[0] for _ in asm]}],
    }  # fmt: skip


def norm(name: str, marks: int) -> Any:
    """A layer norm, with an addition before it where ``marks`` is 2."""
    last = marks - 1
    film = []
    for title, loop in (("as fused", "for"), ("vectorize", "vector for")):
        step = " step 16" if loop.startswith("vector") else ""
        text = Text()
        text.add(_head(name, WORDS * WIDTH, WIDTH, WIDTH, WORDS * WIDTH))
        text.add(f"    {'parallel ' if step else ''}for i0 in range({WORDS}):", *range(marks))
        text.add("        acc0: f32 = welford()", last)
        text.add(f"        {loop} i1 in range({WIDTH}){step}:", *range(marks))
        text.add(f"            v0: f32 = p0[{WIDTH}*i0 + i1]", 0)
        if marks == 2:
            text.add(f"            v1: f32 = p3[{WIDTH}*i0 + i1]", 0)
            text.add("            v2: f32 = add(v0, v1)", 0)
        text.add("            acc0 update v2", last)
        text.add("        v5: f32 = rsqrt(add(acc0.1, 1e-05))", last)
        text.add(f"        {loop} i1 in range({WIDTH}){step}:", last)
        text.add(
            f"            p3[{WIDTH}*i0 + i1] = add(mul(mul(sub(v2, acc0.0), v5), p1[i1]), p2[i1])", last
        )
        film.append(text.frame(title))
    code = Text()
    code.add(_signature(name))
    code.add(f"  for (i64 d0 = 0; d0 < {WORDS}; ++d0) {{", *range(marks))
    code.add("    welford<f32, 16> a0;", last)
    code.add(f"    for (i64 d1 = 0; d1 < {WIDTH}; d1 += 16) {{", *range(marks))
    code.add(f"      const auto v0 = load<16>(in0 + d0*{WIDTH} + d1);  // x", 0)
    code.add("      a0.update(v0);", last)
    code.add("    }", last)
    code.add("    const f32 v5 = rsqrt(add(reduce(a0).variance, 1e-05f));", last)
    code.add(f"    for (i64 d1 = 0; d1 < {WIDTH}; d1 += 16)", last)
    normed = f"mul(sub(load<16>(in0 + d0*{WIDTH} + d1), a0.mean), v5)"
    code.add(
        f"      store(out3 + d0*{WIDTH} + d1, fma({normed}, load<16>(in1 + d1), load<16>(in2 + d1)));", last
    )
    code.add("  }")
    code.add("}")
    return film, {"language": "c++", "name": name, "lines": code.lines, "marks": code.marks, "more": []}
