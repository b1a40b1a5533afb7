"""A plain function of tensors → a Program, by ``make_fx``: no Dynamo, no autograd. For tests and tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from smelt.capture.program import Input, Program


def capture_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    *,
    dynamic: bool = False,
    name: str = "graph",
) -> Program:
    """Traces ``function(*args)``: tensors in, any nest of tensors out (flattened).

    Source lines are known of functions named ``forward`` only (``make_fx`` keeps no others). ``dynamic``:
    every size of every argument that is not 0 or 1 becomes a symbol. In-place changes of the arguments become
    ``aten.copy_`` onto them.

    >>> program = capture_function(lambda x: x.add_(1), [torch.zeros(2)])
    >>> [node.target.__name__ for node in program.graph_module.graph.nodes if node.op == "call_function"]
    ['add.Tensor', 'copy_.default']
    """

    def flat(*values: Any) -> tuple[Any, ...]:
        return tuple(pytree.tree_leaves(function(*values)))

    mode: Literal["symbolic", "fake"] = "symbolic" if dynamic else "fake"
    with torch.no_grad():
        graph_module = make_fx(
            functionalize(flat, remove="mutations"),
            decomposition_table=dict(decompositions or {}),  # type: ignore[arg-type]
            tracing_mode=mode,
            record_stack_traces=True,
        )(*args)
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    inputs = tuple(
        Input(node.name, "user" if isinstance(node.meta.get("val"), torch.Tensor) else "size")
        for node in placeholders
    )
    outputs = graph_module.graph.output_node().args[0]
    assert isinstance(outputs, (list, tuple))
    return Program(graph_module, "inference", inputs, tuple("user" for _ in outputs), name)
