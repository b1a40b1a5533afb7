"""Passes on a TorchScript graph before it is written as Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from smelt.capture.torchscript.graphs import Block, Node, Value, gradient_mode, is_custom, is_module
from smelt.capture.torchscript.operators import READS, overload, template_of
from smelt.errors import SmeltError

_WRITTEN = frozenset(
    {
        *("prim::Constant", "prim::If", "prim::Loop", "prim::RaiseException"),
        *("prim::TupleConstruct", "prim::DictConstruct", "prim::NumToTensor.Scalar"),
    }
)
"""Nodes that `smelt.capture.torchscript.source` writes itself."""
_GRADIENTS = ("prim::CreateObject", "prim::Enter", "prim::Exit")
_ELSEWHERE = ("FutureType", "InterfaceType", "AwaitType", "FunctionType", "PyObjectType")
SCRIPTED = "torchscript"
"""The key of nodes for a piece of a graph that TorchScript runs; ``constant`` is its function."""


# -- numbers that a trace has as tensors
# --------------------------------------------------------------------------------------

_OF_NUMBERS: dict[str, tuple[str, str | None]] = {
    f"aten::{name}.{other}": (f"aten::{plain}.int", None)
    for name, plain in (("mul", "mul"), ("add", "add"), ("sub", "sub"), ("floor_divide", "floordiv"))
    for other in ("Tensor", "Scalar")
}
_OF_NUMBERS["aten::floor_divide"] = ("aten::floordiv.int", None)
_OF_NUMBERS["aten::div.Tensor"] = ("aten::div.int", None)
_OF_NUMBERS["aten::div.Tensor_mode"] = ("aten::floordiv.int", "floor")


def numbers_for_tensors(block: Block) -> None:
    """``aten::Int(aten::mul(prim::NumToTensor(n), {2}))`` → ``n * 2``, in place: the arithmetic of traces on
    sizes, which as tensors would be data-dependent.
    """
    for node in list(block.walk()):
        if node.key not in ("aten::Int.Tensor", "aten::Float.Tensor", "aten::ScalarImplicit", "aten::item"):
            continue
        number = _number(node.inputs[0])
        if number is None:
            continue
        of_floats = node.key == "aten::Float.Tensor"
        node.inputs[0].users.remove(node)
        node.inputs = [number]
        number.users.append(node)
        whole = number.node is None or number.node.key != "aten::div.int"
        node.key = "aten::Float.int" if of_floats else "prim::unchecked_cast" if whole else "aten::Int.float"
        node.schema = None
    _drop_unused(block)


def _number(value: Value) -> Value | None:
    """The number from which a tensor was made, computed right before the tensor."""
    node = value.node
    if node is None:
        return None
    if node.key == "prim::NumToTensor.Scalar":
        return node.inputs[0] if node.inputs[0].kind in ("IntType", "BoolType") else None
    if node.is_constant:
        held = node.constant
        if isinstance(held, torch.Tensor):
            if held.dim() or held.is_floating_point() or held.is_complex():
                return None
            held = held.item()
        elif type(held) is not int:
            return None
        return Node("prim::Constant", None, None, constant=held).gives("number", torch._C.IntType.get())
    if node.key not in _OF_NUMBERS:
        return None
    plain, mode = _OF_NUMBERS[node.key]
    if any(not _is_plain(each, place, mode) for place, each in enumerate(node.inputs[2:])):
        return None
    numbers = [_number(each) for each in node.inputs[:2]]
    if None in numbers:
        return None
    made = Node(plain, None, None, [each for each in numbers if each is not None], where=node.where)
    for each in made.inputs:
        each.users.append(made)
    result = made.gives(f"{value.name}_number", torch._C.IntType.get())
    assert node.block is not None
    node.block.nodes.insert(node.block.nodes.index(node), made)
    made.block = node.block
    return result


def _is_plain(value: Value, place: int, mode: str | None) -> bool:
    """Whether the third argument of an operator on two numbers is ``alpha=1``, or the given mode."""
    known = value.node is not None and value.node.is_constant
    return known and value.node is not None and value.node.constant == (1 if mode is None else mode)


def _drop_unused(block: Block) -> None:
    changed = True
    while changed:
        changed = False
        for node in reversed(list(block.walk())):
            pure = node.key == "prim::Constant" or (node.schema is not None and not node.schema.is_mutable)
            if not pure or not node.outputs or node.blocks or node.block is None or node.key in READS:
                continue
            if not any(value.users or value.is_returned for value in node.outputs):
                for value in node.inputs:
                    value.users.remove(node)
                node.block.nodes.remove(node)
                node.block, changed = None, True


# -- pieces that TorchScript runs
# --------------------------------------------------------------------------------------


def is_written(node: Node) -> bool:
    """Whether a node can be written as Python, without its blocks."""
    if node.key in _GRADIENTS:
        context = (node.outputs if node.key == "prim::CreateObject" else node.inputs)[0]
        return gradient_mode(context) is not None
    if node.key in ("prim::GetAttr", "prim::SetAttr"):
        return is_module(node.inputs[0])
    if node.key in _WRITTEN or node.key == SCRIPTED or template_of(node.key, node.schema) is not None:
        return True
    if node.schema is None or overload(node.key) is None:
        return False
    return not any(type(each.type) is torch._C.Type or _is_open(each) for each in node.schema.arguments)


def _is_open(argument: Any) -> bool:
    """Whether an argument's type is a type variable (``t[]``): PyTorch's operators cannot be called with
    it.
    """
    text = str(argument.type)
    return "VarType" in str(argument.type.kind()) or text in ("t", "List[t]", "t[]", "Optional[t]")


def leave_to_torchscript(block: Block) -> list[Node]:
    """Replaces parts that cannot be written as Python by calls of TorchScript's interpreter; returns these
    calls.

    A piece has the nodes from the first unsupported one to the last one that uses a value that Python cannot
    represent.

    Raises:
        SmeltError: SM0111, a piece uses the module, or changes a list or dict of the rest.
    """
    made = []
    for node in list(block.nodes):
        for inner in node.blocks:
            if is_written(node):
                made += leave_to_torchscript(inner)
    begin = 0
    while begin < len(block.nodes):
        if is_written(block.nodes[begin]):
            begin += 1
            continue
        end = begin + 1
        place = begin
        while place < end:
            for value in block.nodes[place].outputs:
                if not _fits_python(value):
                    users = [block.nodes.index(each) for each in map(_at(block), value.users) if each]
                    end = max(end, *(each + 1 for each in users)) if users else end
            place += 1
        ahead, nodes = _parameters_ahead(block.nodes[begin:end])
        call = _call_of(nodes)
        call.block = block
        block.nodes[begin:end] = [*ahead, call]
        made.append(call)
        begin += len(ahead) + 1
    return made


def _parameters_ahead(nodes: list[Node]) -> tuple[list[Node], list[Node]]:
    """The piece's reads of modules, which move before it if it sets nothing, and the rest of it."""

    def of_module(node: Node, key: str) -> bool:
        return node.key == key and is_module(node.inputs[0])

    if any(of_module(inner, "prim::SetAttr") for node in nodes for inner in node.walk()):
        return [], nodes
    ahead = [node for node in nodes if of_module(node, "prim::GetAttr")]
    return ahead, [node for node in nodes if not of_module(node, "prim::GetAttr")]


def _fits_python(value: Value) -> bool:
    return is_custom(value) if value.kind == "ClassType" else value.kind not in _ELSEWHERE


def _at(block: Block) -> Any:
    """The function from a node to the node of a block that is or contains it."""

    def found(node: Node) -> Node | None:
        return next((each for each in block.nodes if any(inner is node for inner in each.walk())), None)

    return found


def _call_of(nodes: list[Node]) -> Node:
    first = next(node for node in nodes if not is_written(node))
    inside = {id(node) for each in nodes for node in each.walk()}
    own = {id(value) for each in nodes for node in each.walk() for value in node.outputs}
    own |= {id(value) for each in nodes for node in each.walk() for b in node.blocks for value in b.inputs}
    given: list[Value] = []
    for node in (inner for each in nodes for inner in each.walk()):
        for value in [*node.inputs, *(value for block in node.blocks for value in block.outputs)]:
            if id(value) not in own and all(value is not each for each in given):
                given.append(value)
        changed = node.schema.arguments if node.schema is not None else ()
        for argument, value in zip(changed, node.inputs):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            if writes and id(value) not in own and value.kind != "TensorType":
                raise _refused(first, f"{node.key} changes a {value.type} of the rest of the program")
    for value in given:
        if not _fits_python(value):
            raise _refused(first, f"it needs a {value.type}, which Python does not have")
    constants = [value for value in given if value.node is not None and value.node.is_constant]
    given = [value for value in given if all(value is not each for each in constants)]
    results = [
        value
        for node in nodes
        for value in node.outputs
        if value.is_returned or any(id(user) not in inside for user in value.users)
    ]
    call = Node(SCRIPTED, None, None, given, results, where=first.where, left=first.key)
    call.constant = _function_of(nodes, given, constants, results)
    for value in given:
        value.users = [user for user in value.users if id(user) not in inside] + [call]
    for value in results:
        value.node = call
    return call


def _refused(node: Node, why: str) -> SmeltError:
    return SmeltError(
        "SM0111",
        f"{node.key} can be run by nobody but TorchScript, and not apart from the rest",
        where=node.where,
        why=why,
        remedy="script the model without it, or compile its other parts on their own",
    )


def _function_of(nodes: list[Node], given: list[Value], constants: list[Value], results: list[Value]) -> Any:
    """A TorchScript function of nodes; constants are copied into it."""
    graph: Any = torch._C.Graph()
    known: dict[int, Any] = {}
    for value in given:
        known[value.unique] = graph.addInput()
        known[value.unique].setType(value.type)

    def value_of(each: Any) -> Any:
        return known[each.unique()]

    for node in [*(value.node for value in constants if value.node is not None), *nodes]:
        copy = graph.insertNode(graph.createClone(node.source, value_of))
        known.update((mine.unique, theirs) for mine, theirs in zip(node.outputs, copy.outputs()))
    if len(results) == 1:
        graph.registerOutput(known[results[0].unique])
    elif results:
        packed = graph.insertNode(
            graph.create("prim::TupleConstruct", [known[each.unique] for each in results], 1)
        )
        packed.output().setType(torch._C.TupleType([each.type for each in results]))
        graph.registerOutput(packed.output())
    return torch._C._create_function_from_graph("left_to_torchscript", graph)


# -- compiled pieces
# --------------------------------------------------------------------------------------

FEWEST = 2
"""The fewest calls of ATen in a piece between two reads of data that is compiled."""


def depends_on_data(block: Block) -> set[int]:
    """The ids of all nodes at which compiled code ends: reads of data, parts that TorchScript runs, and
    control flow that contains these or depends on data.
    """
    tainted: set[int] = set()
    found: set[int] = set()
    before = -1
    while before != len(tainted) + len(found):
        before = len(tainted) + len(found)
        _mark(block, tainted, found)
    return found


def _mark(block: Block, tainted: set[int], found: set[int]) -> None:
    for node in block.nodes:
        for inner in node.blocks:
            _mark(inner, tainted, found)
        if node.key in READS or node.key == SCRIPTED:
            found.add(id(node))
            tainted |= _numbers(node.outputs)
            continue
        if any(id(inner) in found for each in node.blocks for inner in each.nodes):
            found.add(id(node))
        asked = list(node.inputs)
        if node.key == "prim::If":
            asked = node.inputs[:1]
        elif node.key == "prim::Loop":
            asked = [*node.inputs[:2], node.blocks[0].outputs[0]]
        if any(id(value) in tainted for value in asked):
            if node.blocks:
                found.add(id(node))
            tainted |= _numbers(node.outputs)
        if node.blocks:
            _carry(node, tainted)


def _carry(node: Node, tainted: set[int]) -> None:
    """Propagates taint: a block's results taint those of its node; a loop's inputs and results taint those of
    its body.
    """
    for block in node.blocks:
        given = block.outputs if node.key == "prim::If" else block.outputs[1:]
        for place, value in enumerate(given):
            if id(value) in tainted:
                tainted |= _numbers([node.outputs[place]])
    if node.key == "prim::Loop":
        body = node.blocks[0]
        for place, value in enumerate(body.inputs[1:]):
            if id(node.inputs[place + 2]) in tainted or id(body.outputs[place + 1]) in tainted:
                tainted |= _numbers([value])


def _numbers(values: Iterable[Value]) -> set[int]:
    return {id(value) for value in values if value.kind != "TensorType"}


def calls_of_aten(nodes: Iterable[Node]) -> int:
    """The number of calls of PyTorch's operators with tensor results."""
    return sum(
        node.schema is not None
        and "torch.ops." in (template_of(node.key, node.schema) or "torch.ops.")
        and any("Tensor" in str(each.type) for each in node.schema.returns)
        for outer in nodes
        for node in outer.walk()
    )
