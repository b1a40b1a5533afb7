"""Dynamo's graph → Programs, through AOTAutograd: functional, decomposed, split into forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import compile_lock
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from smelt.capture.partition import partition
from smelt.capture.program import Input, InputRole, Kind, OutputRole, Program

Compiled = Callable[[list[Any]], Sequence[Any]]
"""A compiled program. It takes ONE list, may clear it (so that inputs are freed early), and returns the
outputs.
"""

CompileProgram = Callable[[Program], Compiled]

_TRUSTING = ("skip_tensor_guards_with_matching_dict_tags", "use_recursive_dict_tags_for_guards")
"""Settings by which Dynamo before 2.13 checks no tensor guards while no dict has changed: ``weight.data = …``
with other strides, another dtype or class would go unnoticed, and kernels are specialized to these.
"""


def capture_aot(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    compile_program: CompileProgram,
    decompositions: Mapping[Any, Callable[..., Any]],
    name: str = "graph",
) -> Callable[..., Any]:
    """Runs AOTAutograd on Dynamo's graph; ``compile_program`` gets each Program and returns its executor.

    ``compile_program`` is called once for an inference graph, twice (forward, then backward) for a training
    graph; the backward may come only at the first ``.backward()``. Returns the function for Dynamo. Sizes
    saved for the backward become ``size`` inputs of the backward Program, before its tensors.

    The partitioner is min-cut. Its ``compiler`` argument is not read by torch 2.11-2.14 (one table of
    recomputable operators); ``torch._functorch.config``, which smelt does not change, decides the
    recomputation in the backward. Random operators are never recomputed (`smelt.capture.partition`).
    """

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        for setting in _TRUSTING:  # read after the backend's work, so it cannot be for one compilation
            setattr(dynamo_config, setting, False)

    def compiler(kind: Kind) -> Callable[[GraphModule, Sequence[Any]], Compiled]:
        return partial(_compile, kind=kind, compile_program=compile_program, name=name)

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=dict(decompositions),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    return backend(graph_module, list(example_inputs))


def _compile(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    kind: Kind,
    compile_program: CompileProgram,
    name: str,
) -> Compiled:
    # A backward compiled late comes from the autograd engine, outside Dynamo's own lock. The fake-tensor mode
    # that AOTAutograd has on at this point would turn every tensor the compiler makes into a fake one.
    with compile_lock, _disable_current_modes():
        program = program_from_aot(graph_module, example_inputs, kind, name)
        return boxed(compile_program(program))


def tell_orders(program: Program, orders: Iterable[tuple[int, tuple[int, ...]]]) -> None:
    """Tells AOTAutograd the layouts of saved outputs: it compiles the backward for exactly these strides.

    ``orders``: (output, its dimensions in memory order, outermost first); all others have the program's
    layout.
    """
    context, known = TracingContext.try_get(), dict(orders)
    if not known or context is None or context.output_strides is None:
        return
    for position, output in enumerate(program.outputs):
        value = output.meta.get("val") if isinstance(output, Node) else None
        if not isinstance(value, torch.Tensor):
            context.output_strides.append(None)
            continue
        strides, step = list(value.stride()), 1
        for dim in reversed(known.get(position, ())):
            strides[dim] = step
            step = step * value.shape[dim]
        context.output_strides.append(tuple(strides))


def by_pytorch(program: Program) -> Compiled:
    """The program run by PyTorch, operator by operator."""
    forward = program.graph_module.forward

    def call(args: list[Any]) -> Sequence[Any]:
        with torch.no_grad():  # AOTAutograd has made the derivative already
            results = forward(*args)
        args.clear()
        return results

    return call


def boxed(compiled: Compiled) -> Compiled:
    """Marks ``compiled`` as taking one list: without the mark AOTAutograd wraps it once more."""
    if getattr(compiled, "_boxed_call", False):
        return compiled
    try:
        compiled._boxed_call = True  # type: ignore[attr-defined]
    except AttributeError:

        def call(args: list[Any]) -> Sequence[Any]:
            return compiled(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call
    return compiled


def program_from_aot(
    graph_module: GraphModule, example_inputs: Sequence[Any], kind: Kind, name: str
) -> Program:
    """The Program of one AOTAutograd graph; roles come from the tracing context of the compilation."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    for node, example in zip(placeholders, example_inputs):
        if kind == "backward" or "val" not in node.meta:  # the examples have the strides of the saved tensors
            node.meta["val"] = example
    static = set(getattr(metadata, "static_input_indices", None) or ()) if kind != "backward" else set()
    wanted = [bool(each.requires_grad) for each in getattr(metadata, "input_info", None) or ()]
    inputs = tuple(
        _input(node, position in static, kind, position < len(wanted) and wanted[position])
        for position, node in enumerate(placeholders)
    )
    outputs = graph_module.graph.output_node().args[0]
    assert isinstance(outputs, (list, tuple))
    visible = len(outputs)
    if kind == "forward" and metadata is not None:
        visible = min(int(metadata.num_forward), len(outputs))
    seen: OutputRole = "gradient" if kind == "backward" else "user"
    roles: list[OutputRole] = [seen if place < visible else "saved" for place in range(len(outputs))]
    if kind != "backward" and metadata is not None:
        first = len(metadata.tokens) + metadata.num_mutated_inp_runtime_indices
        for place, info in enumerate(metadata.output_info, first):
            if info.output_type in (OutputType.alias_of_input, OutputType.is_input):
                roles[place] = "alias"
    return Program(graph_module, kind, inputs, tuple(roles), f"{name} {kind}")


def _input(node: Node, static: bool, kind: Kind, wants_gradient: bool) -> Input:
    value = node.meta.get("val")
    role: InputRole = "user"
    if not isinstance(value, torch.Tensor):
        role = "size"
    elif kind == "backward":
        role = "tangent" if node.name.startswith("tangents_") else "saved"
    elif static:
        # Dynamo marks both the same way; a parameter is a tensor that requires a gradient.
        role = "parameter" if wants_gradient else "buffer"
    return Input(node.name, role, static, _path(node))


def _path(node: Node) -> str | None:
    target = getattr(node.meta.get("desc"), "target", None)
    return target if isinstance(target, str) else None
