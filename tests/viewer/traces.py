"""Traces that no model has to be compiled for: a transformer's encoder, of as many layers as a test wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.viewer.texts import LAYERS, MODEL, WIDTH, WORDS, norm, product

_LAYER, _ATTEND, _FEED = [0, 49, "forward"], [0, 38, "forward"], [0, 39, "forward"]
_MADE = {
    "smelt": "0.1.0",
    "torch": "2.13.0",
    "machine": "Intel Xeon Platinum 8481C, AVX-512",
    "threads": 2,
    "options": {"mode": "default"},
    "date": "2026-11-30",
    "command": "smelt view model.py:Encoder --profile",
}
_COMPILE = [
    ("Dynamo", 0.0, 0.9, 0),
    ("AOTAutograd", 0.9, 0.7, 0),
    ("smelt", 1.6, 0.62, 0),
    ("contract", 1.6, 0.1, 1),
    ("lowering", 1.7, 0.12, 1),
    ("schedule", 1.82, 0.3, 1),
    ("print C++", 2.12, 0.1, 1),
    ("C++ compiler", 2.22, 2.9, 0),
    ("load", 5.12, 0.02, 0),
]


class _Graph:
    def __init__(self) -> None:
        self.operators: list[dict[str, Any]] = []
        self.loops: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}

    def operator(self, op: str, shape: str, inputs: list[int], module: str, *lines: Any) -> int:
        """A call of ATen, with a loop node of it."""
        count = self.counts[op] = self.counts.get(op, -1) + 1
        name = f"{op}_{count}" if count else op
        given = ", ".join(self.operators[each]["name"] for each in inputs)
        place = len(self.operators)
        self.operators.append(
            {
                "name": name,
                "op": f"aten.{op}.{'Tensor' if op == 'add' else 'default'}",
                "text": f"{name}: f32[{shape}] = {op}({given})",
                "inputs": inputs,
                "lines": [list(line) for line in lines],
                "module": module,
            }
        )
        if op != "view":
            kind = "contraction" if op == "addmm" else "pointwise"
            loops = ", ".join(f"i{axis} in range({size})" for axis, size in enumerate(shape.split(", ")))
            body = f"    for {loops}:\n        b{place}[i0, i1] = {op}(b{place - 1})"
            text = f"b{place}: f32[{shape}] = {kind}\n{body}"
            self.loops.append({"text": text, "operators": [place]})
        return place

    def step(self, name: str, origins: list[int], micros: float, work: tuple[int, int], **more: Any) -> None:
        """A step of so many microseconds, with so many operations and bytes."""
        kind = "aten" if "reason" in more else "kernel"
        count = len(self.steps)
        self.steps.append(
            {
                "id": f"{kind[0]}{count}",
                "kind": kind,
                "name": name,
                "origins": origins,
                "loops": [at for at, loop in enumerate(self.loops) if loop["operators"][0] in origins],
                "seconds": micros / 1e6,
                "calls": 1.0,
                "operations": work[0],
                "moved": work[1],
                "parallel": "norm" not in name,
                "run": count // 4,
                "reason": None,
                "apart": None,
                "alternatives": None,
                "nest": None,
                "code": more.get("nest"),
                **more,
            }
        )

    def layer(self, number: int, x: int) -> int:
        """The operators and steps of a layer of the encoder; its result."""
        flat, wide, heads = f"{WORDS}, {WIDTH}", f"{WORDS}, {4 * WIDTH}", f"1, 12, {WORDS}, 64"
        path = f"layers.{number}"
        attention = f"{path}.attention"
        products, split = [], []
        for line, part in ((22, "query"), (23, "key"), (24, "value")):
            stack = [[0, line, "forward"], _ATTEND, _LAYER]
            products.append(self.operator("addmm", flat, [x], f"{attention}.{part}", *stack))
            split.append(
                self.operator("view", heads, products[-1:], attention, [1, 9, "split_heads"], *stack)
            )
        mixed = self.operator("attention", heads, split, attention, [0, 25, "forward"], _ATTEND, _LAYER)
        out = self.operator(
            "addmm", flat, [mixed], f"{attention}.output", [0, 26, "forward"], _ATTEND, _LAYER
        )
        added = self.operator("add", flat, [x, out], path, _ATTEND, _LAYER)
        normed = self.operator("native_layer_norm", flat, [added], f"{path}.first", _ATTEND, _LAYER)
        fed = [[1, 19, "forward"], _FEED, _LAYER]
        up = self.operator("addmm", wide, [normed], f"{path}.mlp.up", *fed)
        gelu = self.operator("gelu", wide, [up], f"{path}.mlp", *fed)
        down = self.operator("addmm", flat, [gelu], f"{path}.mlp.down", *fed)
        again = self.operator("add", flat, [normed, down], path, _FEED, _LAYER)
        result = self.operator("native_layer_norm", flat, [again], f"{path}.second", _FEED, _LAYER)
        slower = 1 + 0.03 * (number * 7 % 5)
        barrier = "a product: its sums end before the next step may begin"
        whole, rows = (
            "the next step, attention, reads all of a row",
            "a row of the norm is read by many products",
        )
        few = 8 * WORDS * WIDTH
        measured = {"alternatives": "native 410 µs, ATen 520 µs"}
        rule = {
            "reason": "ATen's product is faster at this shape",
            "alternatives": "native 230 µs, ATen 190 µs",
        }
        self.step(
            "fused_addmm", products, 410 * slower, _work(3 * WIDTH, WIDTH), nest=0, apart=whole, **measured
        )
        self.step("attention", [mixed, *split], 150 * slower, _work(2 * WORDS, WIDTH), nest=1, apart=barrier)
        self.step("addmm", [out], 190 * slower, _work(WIDTH, WIDTH), **rule)
        self.step(
            "fused_add_layer_norm",
            [added, normed],
            46 * slower,
            (few, 12 * WORDS * WIDTH),
            nest=2,
            apart=rows,
        )
        self.step(
            "fused_addmm_gelu", [up, gelu], 640 * slower, _work(4 * WIDTH, WIDTH), nest=3, apart=barrier
        )
        self.step(
            "fused_addmm_add", [down, again], 720 * slower, _work(WIDTH, 4 * WIDTH), nest=4, apart=barrier
        )
        self.step("layer_norm", [result], 30 * slower, (few, few), nest=5)
        return result


def _work(columns: int, depth: int) -> tuple[int, int]:
    """Operations and bytes of a product with all words."""
    return 2 * WORDS * columns * depth, 4 * (WORDS * columns + WORDS * depth + columns * depth)


def trace(
    layers: int = 12, *, timed: bool = True, seconds: Callable[[str, int], float] | None = None
) -> dict[str, Any]:
    """The trace of an encoder, seven steps a layer. ``seconds``: the time of a step, by name and layer."""
    graph = _Graph()
    texts = (
        product("fused_addmm", WORDS, 3 * WIDTH, WIDTH, []),
        product("attention", WORDS, WORDS, 64, [("exp", 0), ("div", 0)]),
        norm("fused_add_layer_norm", 2),
        product("fused_addmm_gelu", WORDS, 4 * WIDTH, WIDTH, [("gelu", 1)]),
        product("fused_addmm_add", WORDS, WIDTH, 4 * WIDTH, [("residual", 1)]),
        norm("layer_norm", 1),
    )
    x = graph.operator("view", f"{WORDS}, {WIDTH}", [], "", _LAYER)
    for number in range(layers):
        x = graph.layer(number, x)
    for at, step in enumerate(graph.steps):
        if seconds is not None:
            step["seconds"] = seconds(step["name"], at // 7)
        if not timed:
            step["seconds"] = None
    total = sum(step["seconds"] or 0 for step in graph.steps)
    names = ("name", "begin", "seconds", "depth")
    whole = {
        "name": "graph 0",
        "kind": "inference",
        "sizes": [f"s0 = {WORDS} (2 to 512)"],
        "guards": ["x.dtype == torch.float32", "x.size(1) == s0", "not torch.is_grad_enabled()"],
        "operators": graph.operators,
        "loops": graph.loops,
        "steps": graph.steps,
        "nests": [film for film, _ in texts],
        "codes": [code for _, code in texts],
    }
    return {
        "schema": "smelt.trace",
        "version": 1,
        "title": "encoder (inference)",
        "made": _MADE,
        "peaks": {"flops": 1.35e12, "bytes": 4.0e10} if timed else None,
        "run_seconds": total * 1.02 if timed else None,
        "files": [
            {"path": "/home/me/encoder/model.py", "name": "model.py", "first": 1, "text": MODEL},
            {"path": "/home/me/encoder/layers.py", "name": "layers.py", "first": 1, "text": LAYERS},
        ],
        "compile": [dict(zip(names, span)) for span in _COMPILE],
        "graphs": [whole],
    }
