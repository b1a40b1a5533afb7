"""Prints the loop graph as a readable script: types, shapes, computations, and origins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from sympy import Expr, Symbol
from torch.utils._sympy.functions import FloorDiv, Min

from smelt.loops.dependencies import variables
from smelt.loops.ir import (
    Attention,
    Attentions,
    Bind,
    Buffer,
    Check,
    Contraction,
    Extern,
    Fold,
    Graph,
    Native,
    Node,
    Pointwise,
    Reduction,
    Scan,
    Sort,
    StridedView,
    accumulator,
)
from smelt.loops.record import RecordedValue, Recorder
from smelt.loops.straightline import MaskedInstruction, Recordable
from smelt.symbolic import contiguous_strides, same
from smelt.symbolic.text import python_text

_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def type_text(dtype: torch.dtype) -> str:
    """The short name of a dtype.

    >>> type_text(torch.bfloat16), type_text(torch.uint8), type_text(torch.bool)
    ('bf16', 'u8', 'bool')
    """
    name = str(dtype).removeprefix("torch.")
    kind = name.rstrip("0123456789")
    return _SHORT[kind] + name[len(kind) :] if kind in _SHORT else name


def index_text(index: Iterable[Any]) -> str:
    """Expressions with commas between them."""
    return ", ".join(python_text(expr) for expr in index)


def buffer_text(buffer: Any) -> str:
    """``name: f32[2, 3]``, with the strides where they are not row-major, and the halo where there is one.

    >>> import sympy
    >>> from smelt.loops.ir import Buffer
    >>> two, three = sympy.Integer(2), sympy.Integer(3)
    >>> buffer_text(Buffer("x", torch.float32, (two, three), (sympy.Integer(1), two)))
    'x: f32[2, 3] strides (1, 2)'
    """
    text = f"{buffer.name}: {type_text(buffer.dtype)}[{index_text(buffer.shape)}]"
    expected = contiguous_strides(buffer.shape)
    plain = all(
        size == 1 or same(stride, want) for size, stride, want in zip(buffer.shape, buffer.strides, expected)
    )
    text = text if plain else f"{text} strides ({index_text(buffer.strides)})"
    if isinstance(buffer, Buffer) and buffer.paired:
        text = f"{text} complex"
    if not isinstance(buffer, Buffer) or not buffer.halo:
        return text
    return f"{text} halo ({', '.join(f'{before}+{after}' for before, after in buffer.halo)})"


def print_graph(graph: Graph) -> str:
    """The script of a loop graph; `smelt explain --stage loops` shows it."""
    lines = ["graph("]
    for name in graph.inputs:
        if isinstance(name, Symbol):
            hint = f"  # {graph.hints[name]} while capturing" if name in graph.hints else ""
            lines.append(f"    {name}: size,{hint}")
        else:
            lines.append("    _," if name is None else f"    {buffer_text(graph.buffers[name])},")
    lines.append("):")
    lines += [f"    {buffer_text(graph.buffers[name])} = constant" for name in graph.constants]
    for node in graph.nodes:
        lines += [f"    {line}" for line in node_lines(node, graph)]
    lines += [f"    {mutation.target}[...] = {mutation.source}" for mutation in graph.mutations]
    lines.append(f"    return {', '.join(_value_text(out) for out in graph.outputs)}")
    return "\n".join(lines) + "\n"


def node_lines(node: Node, graph: Graph) -> list[str]:
    """The lines of a node: its origin, the buffers it writes, and its loop function as straight-line code."""
    where = f"  {node.origin.where}" if node.origin.where else ""
    lines = [f"# {node.origin.op}{where}"]
    outputs = [buffer_text(graph.buffers[name]) if name is not None else "_" for name in node.outputs]
    body = node.body
    if isinstance(body, Extern):
        return lines + _extern_lines(body, outputs)
    if isinstance(body, Bind):
        return [*lines, f"{body.symbol}: size = {python_text(body.value)}"]
    if isinstance(body, Check):
        return [*lines, f"check {python_text(body.condition)}, else {body.kind}: {body.message}"]
    if isinstance(body, Contraction):
        return lines + _contraction_lines(node, body, graph, outputs)
    if isinstance(body, Attentions):
        return lines + _attention_lines(node, body, graph, outputs)
    if isinstance(body, Scan):
        return lines + _scan_lines(node, body, graph, outputs)
    if isinstance(body, Fold):
        return lines + _fold_lines(node, body, graph, outputs)
    if isinstance(body, Sort):
        order = "descending" if body.descending else "ascending"
        limit = python_text(body.shape[-1])
        return [*lines, f"{', '.join(outputs)} = first {limit} of each row of {body.source}, {order}"]
    if isinstance(body, Native):
        return [*lines, f"{', '.join(outputs)} = kernel {body.kernel.name}({', '.join(body.reads)})"]
    index = variables("i", len(body.shape))
    place: Sequence[Expr] = index
    rindex: tuple[Symbol, ...] = ()
    if isinstance(body, Reduction):
        rindex = variables("r", len(body.reduce_shape))
        kind = f"reduce {body.kind}"
    else:
        kind = "pointwise" if isinstance(body, Pointwise) else f"copy of {body.base}, then scatter"
    dtypes = {name: buffer.dtype for name, buffer in graph.buffers.items()}
    sizes = (*body.shape, *body.reduce_shape) if isinstance(body, Reduction) else body.shape
    recorder = Recorder(dtypes, dict(zip((*index, *rindex), sizes)), origin=node.origin)
    if isinstance(body, Reduction):
        value = recorder.run(body.inner_fn, index, rindex)
    else:
        value = recorder.run(body.inner_fn, index)
        if not isinstance(body, Pointwise):
            place = recorder.run(body.place, index)
    steps, last = code_lines(recorder.instructions, value.name)
    lines.append(f"{', '.join(outputs)} = {kind}")
    loops = ", ".join(
        f"{variable} in range({python_text(size)})" for variable, size in zip(index, body.shape)
    )
    inner = "    "
    if loops:
        lines.append(f"{inner}for {loops}:")
        inner += "    "
    names = [name if name is not None else "_" for name in node.outputs]
    if isinstance(body, Reduction):
        over = ", ".join(f"{v} in range({python_text(size)})" for v, size in zip(rindex, body.reduce_shape))
        lines.append(f"{inner}for {over}:" if over else f"{inner}once:")
        lines += [f"{inner}    {step}" for step in steps]
        lines.append(
            f"{inner}    {', '.join(f'{n}[{index_text(index)}]' for n in names)} {body.kind}= {last}"
        )
        return lines
    sign = store_sign(None if isinstance(body, Pointwise) else body.mode)
    lines += [f"{inner}{step}" for step in steps]
    lines.append(f"{inner}{names[0]}[{index_text(place)}] {sign} {last}")
    return lines


def _contraction_lines(node: Node, body: Contraction, graph: Graph, outputs: Sequence[str]) -> list[str]:
    index, rindex = variables("i", len(body.shape)), variables("r", len(body.reduce_shape))
    extents = dict(zip((*index, *rindex), (*body.shape, *body.reduce_shape)))
    dtypes = {name: buffer.dtype for name, buffer in graph.buffers.items()}

    def code(function: Callable[..., Any], *over: Any) -> tuple[list[str], str]:
        recorder = Recorder(dtypes, extents, origin=node.origin)
        value = recorder.run(function, *over)
        return code_lines(recorder.instructions, value.name)

    loops, over = (
        ", ".join(f"{variable} in range({python_text(extents[variable])})" for variable in each)
        for each in (index, rindex)
    )
    into = f"{node.outputs[0]}[{index_text(index)}]"
    before, start = ([], "0") if body.start is None else code(body.start, index)
    left, lhs = code(body.lhs, index, rindex)
    right, rhs = code(body.rhs, index, rindex)
    turn = [*left, f"left = {lhs}", *right, f"{into} += left * {rhs}"] if left or right else None
    return [
        f"{', '.join(outputs)} = contraction, as {body.call.target}",
        f"    for {loops}:",
        *(f"        {line}" for line in [*before, f"{into} = {start}"]),
        f"        for {over}:",
        *(f"            {line}" for line in turn or [f"{into} += {lhs} * {rhs}"]),
    ]


def _attention_lines(node: Node, body: Attentions, graph: Graph, outputs: Sequence[str]) -> list[str]:
    index, (key, depth) = variables("i", len(body.shape)), variables("r", 2)
    (*outer, query, column) = index
    keys, width = body.reduce_shape
    extents = dict(zip((*index, key, depth), (*body.shape, keys, width)))
    dtypes = {name: buffer.dtype for name, buffer in graph.buffers.items()}
    product, above = (RecordedValue(name, accumulator(body.dtype)) for name in ("product", "above"))

    def code(name: str, function: Callable[..., Any], *over: Any) -> list[str]:
        recorder = Recorder(dtypes, extents, origin=node.origin)
        for given in (product, above):
            recorder.adopt(given)
        steps, last = code_lines(recorder.instructions, recorder.run(function, *over).name)
        return [*steps, f"{name} = {last}"]

    def loop(*over: Symbol) -> str:
        return ", ".join(f"{each} in range({python_text(extents[each])})" for each in over)

    names = [name if name is not None else "_" for name in node.outputs]
    of = body if isinstance(body, Attention) else body.attention
    seen = keys if of.seen is None else Min(keys, of.seen((*outer, query)))
    left = code("left", of.query, (*outer, query), (depth,))
    right = code("right", of.key, (*outer, key), (depth,))
    value = code("value", of.value, (*outer, key, column))
    kept, times = [], ""
    if of.kept is not None:
        kept, times = code("kept", of.kept, (*outer, query, key)), " * kept"
    lines = [
        f"    for {loop(*outer, query)}:",
        f"        for {key} in range({python_text(seen)}):",
        "            product = 0",
        f"            for {loop(depth)}:",
        *(f"                {line}" for line in [*left, *right, "product += left * right"]),
        *(f"            {line}" for line in code("score", of.score, (*outer, query, key), product)),
    ]
    if isinstance(body, Attention):
        return [
            f"{', '.join(outputs)} = attention, as {body.call.target}",
            *lines,
            f"            {names[1]}[{index_text((*outer, query))}] logsumexp= score",
            *(f"            {line}" for line in kept),
            f"            for {loop(column)}:",
            *(f"                {line}" for line in value),
            f"                {names[0]}[{index_text(index)}] += softmax over {key} of score{times} * value",
        ]
    shared = list(outer)
    if not same(body.heads, body.shape[-3]):
        shared[-1] = FloorDiv(shared[-1], FloorDiv(body.shape[-3], body.heads))
    weighted = [
        f"dP += upstream * value{times}",
        f"{names[2]}[{index_text((*shared, key, column))}] += P{times} * upstream",
    ]
    upstream = code("upstream", body.upstream, index)
    scored = [
        f"{names[0]}[{index_text((*outer, query, depth))}] += dS * right",
        f"{names[1]}[{index_text((*shared, key, depth))}] += dS * left",
    ]
    return [
        f"{', '.join(outputs)} = gradients of attention, as {body.call.target}",
        *lines,
        *(f"            {line}" for line in code("logsumexp", body.logsumexp, (*outer, query))),
        *(f"            {line}" for line in kept),
        "            P, dP = exp(score - logsumexp), 0",
        f"            for {loop(column)}:",
        *(f"                {line}" for line in [*value, *upstream, *weighted]),
        *(f"            {line}" for line in code("inner", body.inner, (*outer, query))),
        "            above = P * (dP - inner)",
        *(
            f"            {line}"
            for line in code("dS", body.derivative, (*outer, query, key), product, above)
        ),
        f"            for {loop(depth)}:",
        *(f"                {line}" for line in [*left, *right, *scored]),
    ]


def _scan_lines(node: Node, body: Scan, graph: Graph, outputs: Sequence[str]) -> list[str]:
    index = variables("i", len(body.shape))
    dtypes = {name: buffer.dtype for name, buffer in graph.buffers.items()}
    recorder = Recorder(dtypes, dict(zip(index, body.shape)), origin=node.origin)
    state, first = _carried(recorder, body)
    after, made = recorder.run(body.inner_fn, index, tuple(state))
    results, carried = [value.name for value in made], [value.name for value in after]
    code, texts = _iteration_lines(recorder, [*results, *carried])
    loops = ", ".join(f"{v} in range({python_text(size)})" for v, size in zip(index, body.shape))
    names = [name if name is not None else "_" for name in node.outputs]
    places = ", ".join(f"{name}[{index_text(index)}]" for name in names)
    parts = ", ".join(value.name for value in state)
    return [
        f"{', '.join(outputs)} = scan along {index[body.dim]} from {first}",
        f"    for {loops}:",
        *(f"        {line}" for line in code),
        f"        {places} = {', '.join(texts.get(name, name) for name in results)}",
        f"        {parts} = {', '.join(texts.get(name, name) for name in carried)}",
    ]


def _fold_lines(node: Node, body: Fold, graph: Graph, outputs: Sequence[str]) -> list[str]:
    index, (turn,) = variables("i", len(body.shape)), variables("r", 1)
    dtypes = {name: buffer.dtype for name, buffer in graph.buffers.items()}
    recorder = Recorder(dtypes, dict(zip((*index, turn), (*body.shape, body.turns))), origin=node.origin)
    state, first = _carried(recorder, body)
    carried = [value.name for value in recorder.run(body.inner_fn, index, turn, tuple(state))]
    code, texts = _iteration_lines(recorder, carried)
    loops = ", ".join(f"{v} in range({python_text(size)})" for v, size in zip(index, body.shape))
    names = [name if name is not None else "_" for name in node.outputs]
    parts = ", ".join(value.name for value in state)
    head = [f"{', '.join(outputs)} = fold from {first}", *([f"    for {loops}:"] if loops else [])]
    inner = "        " if loops else "    "
    return [
        *head,
        f"{inner}for {turn} in range({python_text(body.turns)}):",
        *(f"{inner}    {line}" for line in code),
        f"{inner}    {parts} = {', '.join(texts.get(name, name) for name in carried)}",
        f"{inner}{', '.join(f'{name}[{index_text(index)}]' for name in names)} = {parts}",
    ]


def _carried(recorder: Recorder, body: Scan | Fold) -> tuple[list[RecordedValue], str]:
    """The carried values of an iteration, and the text of their initial values."""
    state = [RecordedValue(f"state{number}", dtype) for number, (dtype, _) in enumerate(body.state)]
    for value in state:
        recorder.adopt(value)
    first = (
        f"{value.name}: {type_text(value.dtype)} = {number}" for value, (_, number) in zip(state, body.state)
    )
    return state, ", ".join(first)


def _iteration_lines(recorder: Recorder, results: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The code of an iteration, and the texts of the values that it stores."""
    steps = list(recorder.instructions)
    uses = Counter(results)
    _count(steps, uses)
    texts: dict[str, str] = {}
    return _code_lines(steps, uses, texts, 88), texts


def _extern_lines(body: Extern, outputs: list[str]) -> list[str]:
    args = [_value_text(arg) for arg in body.args]
    args += [f"{name}={_value_text(value)}" for name, value in body.kwargs.items()]
    left = ", ".join(outputs) if body.symbol is None else f"{body.symbol}: size"
    reason = "" if body.reason is None else f"  # fallback: {body.reason}"
    call = f"{body.target}({', '.join(args)}){reason}"
    lines = [f"{left} = {call}" if left else call]
    for each in body.sizes:
        of = f".shape[{each.dim}]" if each.dim is not None else ""
        lines.append(f"{each.symbol}: size = {outputs[each.output].partition(':')[0]}{of}")
    for number, inner in enumerate(body.bodies):
        lines.append(f"    body {number} = {print_graph(inner).rstrip()}".replace("\n", "\n    "))
    return [line for text in lines for line in text.split("\n")]


def _value_text(value: Any) -> str:
    if isinstance(value, StridedView):
        offset = "" if value.offset == 0 else f" offset {python_text(value.offset)}"
        dtype = "" if value.dtype is None else f" {type_text(value.dtype)}"
        return (
            f"{value.buffer}[{index_text(value.shape)}] strides ({index_text(value.strides)}){offset}{dtype}"
        )
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value_text(item) for item in value)}]"
    return python_text(value) if isinstance(value, Expr) and value.is_integer else str(value)


# -- straight-line code ----------------------------------------------------------------------------------


def code_lines(steps: Iterable[Recordable], result: str, width: int = 88) -> tuple[list[str], str]:
    """Recorded code as lines of text, with values of a single use inlined; and the result's text.

    >>> from smelt.loops.straightline import Instruction
    >>> f32 = torch.float32
    >>> code_lines([Instruction("v0", f32, "load", ("x", ())), Instruction("v1", f32, "exp", ("v0",))], "v1")
    ([], 'exp(x[])')
    """
    steps = list(steps)
    uses = Counter([result])
    _count(steps, uses)
    texts: dict[str, str] = {}
    return _code_lines(steps, uses, texts, width), texts.get(result, result)


def _count(steps: Iterable[Recordable], uses: Counter[str]) -> None:
    for step in steps:
        if isinstance(step, MaskedInstruction):
            uses.update((step.mask, step.result))
            _count(step.body, uses)
        else:
            uses.update(arg for arg in step.args if isinstance(arg, str))


def _code_lines(
    steps: Iterable[Recordable], uses: Counter[str], texts: dict[str, str], width: int
) -> list[str]:
    lines: list[str] = []
    for step in steps:
        head = f"{step.name}: {type_text(step.dtype)}"
        if isinstance(step, MaskedInstruction):
            inner = _code_lines(step.body, uses, texts, width)
            mask, result = texts.get(step.mask, step.mask), texts.get(step.result, step.result)
            if not inner and uses[step.name] == 1 and len(mask) + len(result) < width - 30:
                texts[step.name] = f"({result} where {mask} else {step.other})"
                continue
            lines.append(f"{head} = where {mask}, else {step.other}:")
            lines += [f"    {line}" for line in [*inner, result]]
            continue
        text = instruction_text(step, lambda name: texts.get(name, name))
        if step.index is not None:
            lines.append(f"{step.index} = {text}")
        elif step.op == "constant" or (uses[step.name] == 1 and len(text) <= width):
            texts[step.name] = text
        elif uses[step.name]:
            lines.append(f"{head} = {text}")
    return lines


def store_sign(mode: str | None) -> str:
    """The sign of a store: it replaces the element, or combines it with the value.

    >>> store_sign(None), store_sign("add"), store_sign("maximum")
    ('=', '+=', 'maximum=')
    """
    return "=" if mode is None else {"add": "+=", "mul": "*="}.get(mode, f"{mode}=")


def instruction_text(step: Any, name_of: Callable[[str], str] = str) -> str:
    """The right-hand side of a Let or an Instruction."""
    if step.op == "load":
        return f"{step.args[0]}[{index_text(step.args[1])}]"
    if step.op == "constant":
        return str(step.args[0])
    if step.op == "index_expr":
        return f"{type_text(step.dtype)}({python_text(step.args[0])})"
    if step.op in ("to_dtype", "bitcast"):
        call = type_text(step.dtype) if step.op == "to_dtype" else f"bitcast_{type_text(step.dtype)}"
        return f"{call}({name_of(step.args[0])})"
    if step.op == "indirect_index":
        value, size, wrap, check = step.args
        flags = [flag for flag, on in (("wrap", wrap), ("check", check)) if on]
        flags += [f"raises={check}"] if isinstance(check, str) else []
        return f"index({', '.join([name_of(value), f'size={python_text(size)}', *flags])})"
    return f"{step.op}({', '.join(name_of(a) if isinstance(a, str) else str(a) for a in step.args)})"
