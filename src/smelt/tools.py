"""Small tools for inspecting graphs."""

from __future__ import annotations

from typing import Any

import torch


def node_schema_str(node: Any) -> str:
    """The schema of a node's operator, of TorchScript (``torch._C.Node``) or FX (``torch.fx.Node``).

    Nodes that call no operator with a schema (constants, branches, placeholders, Python functions) have "".

    >>> graph = torch._C.parse_ir(
    ...     "graph(%x : Tensor):\\n  %one : int = prim::Constant[value=1]()\\n"
    ...     "  %y : Tensor = aten::add(%x, %x, %one)\\n  return (%y)"
    ... )
    >>> node_schema_str(list(graph.nodes())[1])
    'aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> (Tensor)'
    """
    if isinstance(node, torch.fx.Node):
        target = node.target if node.op == "call_function" else None
        text = str(target._schema) if isinstance(target, torch._ops.OpOverload) else ""
    else:
        text = node.schema()
    if "->" not in text:  # TorchScript says "(no schema)"
        return ""
    called, returned = text.rsplit(" -> ", 1)
    return f"{called} -> {returned if returned.startswith('(') else f'({returned})'}"
