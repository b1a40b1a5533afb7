"""``torch.export`` programs → Programs: parameters and buffers are inputs with known values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.export._remove_effect_tokens_pass import _remove_effect_tokens
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from smelt.capture.body_constants import make_body_constants
from smelt.capture.program import Input, InputRole, Program
from smelt.errors import SmeltError

_ROLES: dict[InputKind, InputRole] = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
    InputKind.USER_INPUT: "user",
}
_RETURNED = (
    OutputKind.USER_OUTPUT,
    OutputKind.LOSS_OUTPUT,
    OutputKind.GRADIENT_TO_PARAMETER,
    OutputKind.GRADIENT_TO_USER_INPUT,
)
"""Kinds of results of the function; the last three are those of a program with its backward."""


def capture_export(
    exported: ExportedProgram, decompositions: Mapping[Any, Callable[..., Any]], name: str = "graph"
) -> Program:
    """The Program of an ExportedProgram, decomposed with our table (`export_decompositions` of the contract).

    Parameters, buffers and lifted constants come first among the inputs, each with its ``value``. Outputs for
    a mutated buffer or input become ``aten.copy_`` onto it, as in AOTAutograd, and are removed from the
    outputs. Parameters that are one tensor (tied weights) become one input, the first.

    Raises:
        SmeltError: SM0601 an input kind that has no tensor (a token, a script object), a sparse parameter, or
            an effectful program; SM0602 a large constant in a body of control flow.
    """
    for path, each in {**exported.state_dict, **exported.constants}.items():
        if isinstance(each, torch.Tensor) and each.layout is not torch.strided:
            what = f"{path} of the exported program is a tensor of layout {each.layout}"
            raise SmeltError("SM0601", what, remedy="make it dense (PyTorch ends the process at such)")
    make_body_constants(exported)
    lowered = _without_tokens(exported.run_decompositions(dict(decompositions)))
    signature = lowered.graph_signature
    graph = Graph()
    copied: dict[Node, Node] = {}
    returned: Any = graph.graph_copy(lowered.graph_module.graph, copied)
    placeholders = graph.find_nodes(op="placeholder")
    inputs = []
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if spec.kind not in _ROLES:
            raise SmeltError(
                "SM0601",
                f"input {node.name!r} of the exported program is a {spec.kind.name.lower()}",
                remedy="export a model whose inputs are tensors and numbers",
            )
        role = _ROLES[spec.kind]
        if role == "user" and not isinstance(node.meta.get("val"), torch.Tensor):
            role = "size"
        inputs.append(
            Input(node.name, role, role not in ("user", "size"), spec.target, _value(lowered, role, spec))
        )
    by_path = {each.path: node for each, node in zip(inputs, placeholders) if each.path is not None}
    by_name = {node.name: copied[node] for node in lowered.graph_module.graph.find_nodes(op="placeholder")}
    outputs: list[Any] = []
    copies: list[tuple[Node, Any]] = []
    for value, output_spec in zip(returned, signature.output_specs, strict=True):
        if output_spec.kind in _RETURNED:
            outputs.append(value)
        elif output_spec.kind.name in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
            copies.append((by_path[output_spec.target], value))
        elif output_spec.kind.name == "USER_INPUT_MUTATION":
            copies.append((by_name[str(output_spec.target)], value))
        else:
            raise SmeltError(
                "SM0601", f"an output of the exported program is a {output_spec.kind.name.lower()}"
            )
    for target, value in copies:
        node = graph.call_function(torch.ops.aten.copy_.default, (target, value))
        node.meta["val"] = target.meta["val"]
    inputs = _untied(graph, inputs, {target for target, _ in copies})
    graph.output(tuple(outputs))
    graph.output_node().meta["val"] = tuple(_meta(value) for value in outputs)
    graph_module = GraphModule(lowered.graph_module, graph)
    return Program(graph_module, "inference", tuple(inputs), tuple("user" for _ in outputs), name)


def _without_tokens(exported: ExportedProgram) -> ExportedProgram:
    """The program without the tokens that order the checks of linear algebra, which keep their places."""
    effects = exported.graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
    checks = [node for node in effects if node.args[1] is torch.ops.aten._linalg_check_errors.default]
    return _remove_effect_tokens(exported) if checks and checks == effects else exported


def _untied(graph: Graph, inputs: Sequence[Input], mutated: set[Node]) -> list[Input]:
    """The inputs, with one input for each tensor: users of duplicates use the first."""
    first: dict[Any, Node] = {}
    kept = []
    for node, each in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        key = None if node in mutated else _memory_of(each.value)
        if key is not None and key in first:
            node.replace_all_uses_with(first[key])
            graph.erase_node(node)
        else:
            kept.append(each)
            first.setdefault(key, node)
    return kept


def _memory_of(value: torch.Tensor | None) -> Any:
    """The identity of a tensor's memory; None if it has no memory of its own."""
    if value is None or value.layout is not torch.strided or value.numel() == 0:
        return None
    if type(value) not in (torch.Tensor, torch.nn.Parameter, FakeTensor):
        return None
    storage = value.untyped_storage()._cdata
    return storage, value.storage_offset(), value.dtype, tuple(value.shape), tuple(value.stride())


def export(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    decompositions: Mapping[Any, Callable[..., Any]],
    dynamic_shapes: Any = None,
) -> Program:
    """``torch.export.export`` and `capture_export` in one; any ``nn.Module``, also a traced GraphModule."""
    exported = torch.export.export(model, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
    return capture_export(exported, decompositions, type(model).__name__)


def export_function(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic: bool
) -> ExportedProgram:
    """``torch.export`` of a function or module; ``dynamic``: every size is a symbol, if possible."""
    module = function if isinstance(function, torch.nn.Module) else _FunctionModule(function)
    sizes = None
    if dynamic:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        sizes = pytree.tree_map(_every_size, dict(bound))
    return torch.export.export(module, args, dict(kwargs), dynamic_shapes=sizes)


class _FunctionModule(torch.nn.Module):
    """A function as a module, with its signature: ``torch.export`` accepts modules only."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


def _every_size(value: Any) -> dict[int, Any] | None:
    return (
        dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO) if isinstance(value, torch.Tensor) else None
    )


def _value(exported: ExportedProgram, role: InputRole, spec: Any) -> torch.Tensor | None:
    if role not in ("parameter", "buffer", "constant"):
        return None
    value = exported.state_dict.get(spec.target)
    return exported.constants.get(spec.target) if value is None else value


def _meta(value: Any) -> Any:
    return value.meta.get("val") if isinstance(value, Node) else value
