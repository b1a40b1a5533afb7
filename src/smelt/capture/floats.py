"""Makes floats of modules constants of a graph, until they change.

With ``dynamic=True`` Dynamo makes a symbol of every float, also of each module's ``eps`` and ``p``. After
AOTAutograd, a pass of PyTorch (``tensorify_python_scalars``) finds which of them can be tensors, usually
none, and then Dynamo and AOTAutograd trace everything again, which doubles the compile time. Here the floats
of modules become constants before AOTAutograd, as Dynamo makes them when it traces for the second time.

This happens only when a frame is compiled for the first time: a module with another number at each call costs
one more compilation, and is left to PyTorch from then on. Float arguments of a function are always left to
PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.source import is_from_unspecialized_nn_module_source
from torch._dynamo.symbolic_convert import TensorifyState
from torch._guards import CompileContext
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import guard_scalar


@contextmanager
def floats_settled(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """Makes them constants of Dynamo's graph and removes these inputs, also from Dynamo's code, which is
    written after the backend's work. Yields the remaining example inputs.
    """
    inputs = graph_module.graph.find_nodes(op="placeholder")
    settled = {node: symbol for node in inputs if (symbol := _symbol(node)) is not None}
    if not settled or not _first_time():
        yield list(example_inputs)
        return
    left = [example for node, example in zip(inputs, example_inputs, strict=True) if node not in settled]
    for node in settled:
        number = guard_scalar(node.meta["example_value"].item_memo)
        for item in list(node.users):
            item.replace_all_uses_with(number)
            graph_module.graph.erase_node(item)
        graph_module.graph.erase_node(node)
    graph_module.recompile()
    # PyTorch's pass asks whether a symbol is known to become no tensor, by a name that other frames use too.
    names = set(settled.values()) - TensorifyState.force_specializations
    TensorifyState.force_specializations |= names
    try:
        yield left
    finally:
        TensorifyState.force_specializations -= names


def _first_time() -> bool:
    number = CompileContext.current_compile_id()
    return number is not None and number.frame_compile_id == 0


def _symbol(node: Node) -> str | None:
    """The name of the symbol of a module's float, if the input is one: a tensor of which the graph uses only
    the number.
    """
    arg, example = node.meta.get("grapharg"), node.meta.get("example_value")
    memo = getattr(example, "item_memo", None)
    if arg is None or not isinstance(memo, torch.SymFloat):
        return None
    if not is_from_unspecialized_nn_module_source(arg.source):
        return None
    if not node.users or any(user.target != "item" for user in node.users):
        return None
    return getattr(memo.node._expr, "name", None)
