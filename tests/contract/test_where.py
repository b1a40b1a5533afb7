"""Source lines from stack traces."""

from __future__ import annotations

import os

import torch

from smelt.contract.where import UNKNOWN, attach, parse

_OURS = '  File "/somewhere/model.py", line 12, in forward\n    y = self.linear(x)\n'
_TORCH = os.path.dirname(torch.__file__)
_LIBRARY = f'  File "{_TORCH}/nn/modules/linear.py", line 134, in forward\n    return F.linear()\n'
_GENERATED = '  File "<eval_with_key>.3", line 9, in forward\n    cond = cond()\n'


def test_the_innermost_frame_outside_torch() -> None:
    assert parse(_OURS + _LIBRARY) == "model.py:12 in forward"


def test_generated_code_is_no_users_line() -> None:
    assert parse(_OURS + _GENERATED) == "model.py:12 in forward"
    assert parse(_GENERATED) is None


def test_torchs_own_frame_where_there_is_no_other() -> None:
    assert parse(_LIBRARY) == "linear.py:134 in forward"


def test_text_without_frames() -> None:
    assert parse("") is None


def graph_of(*metas: dict[str, object]) -> torch.fx.Graph:
    graph = torch.fx.Graph()
    last = graph.placeholder("x")
    for meta in metas:
        last = graph.call_function(torch.ops.aten.sin.default, (last,))
        last.meta.update(meta)
    graph.output((last,))
    return graph


def wheres(graph: torch.fx.Graph) -> list[str]:
    attach(graph)
    return [node.meta["where"] for node in graph.nodes if node.op == "call_function"]


def test_a_backward_node_takes_the_line_of_its_forward_node() -> None:
    graph = graph_of({"stack_trace": _OURS, "seq_nr": 7}, {"seq_nr": 7})
    assert wheres(graph) == ["model.py:12 in forward"] * 2


def test_else_the_module_is_named() -> None:
    stack = {"0": ("L['self'].encoder.layer.0", torch.nn.Linear)}
    assert wheres(graph_of({"fwd_nn_module_stack": stack})) == ["module encoder.layer.0"]


def test_else_the_line_of_an_argument_else_unknown() -> None:
    assert wheres(graph_of({}, {"stack_trace": _OURS}, {})) == [UNKNOWN, *["model.py:12 in forward"] * 2]
