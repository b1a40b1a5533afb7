"""The buffers of a script: parameters, allocations, views of either; and its sizes."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import sympy
import torch
from sympy import Expr, Integer, Symbol

from smelt.nest.ir import Alloc, For, Param, Stmt
from smelt.nest.scopes import unique_name
from smelt.nest.stages import Fresh
from smelt.script.desugar import at
from smelt.script.expressions import Index, Reader
from smelt.script.outside import UNKNOWN
from smelt.script.parse import Source, literal, near, word_of
from smelt.script.views import Buffer, flat_view, region_view
from smelt.script.words import NAMED_DTYPES
from smelt.symbolic import contiguous_strides


class Buffers:
    """The parser state for a function's buffers: names and their values."""

    def __init__(self, function: ast.FunctionDef, source: Source) -> None:
        self.function, self.source = function, source
        self.fresh = Fresh()
        self.reader = Reader(source, self.fresh)
        self.params: list[Param] = []
        self.handles: dict[str, str] = {}
        """A handle among the parameters → its buffer, "" before it is matched."""
        self.sizes: list[Symbol] = []
        self.free: set[Symbol] = set()
        """The sizes that are no parameters: unused ones are dropped."""
        self.texts: set[str] = set()
        """The sizes that a text within a shape declares."""
        self.loops: dict[Symbol, For] = {}
        self.declared: set[str] = set()
        """The buffers declared by the statements of this depth."""
        self.hoisted: list[list[Stmt]] = [[]]
        """The allocations of the function, and of each enclosing block, which come first in it."""

    def param(self, arg: ast.arg) -> None:
        note = arg.annotation
        if isinstance(note, ast.Call) and word_of(note.func) in ("Buffer", "buffer"):
            self._buffer(arg.arg, note.args, note.keywords, note)
            return
        if isinstance(note, ast.Subscript) and word_of(note.value) == "Buffer":  # TVM of 2022
            parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
            shaped = (
                [parts[0]] if isinstance(parts[0], ast.Tuple) else [ast.Tuple(list(parts[:1]), ast.Load())]
            )
            self._buffer(arg.arg, [*shaped, *parts[1:]], [], note)
            return
        word = "" if note is None else word_of(note.func if isinstance(note, ast.Call) else note)
        if word == "handle":
            self.handles[arg.arg] = ""
            return
        if word in NAMED_DTYPES or word == "boolean":
            self.variable(arg.arg, NAMED_DTYPES.get(word, torch.bool))
            return
        what = f"the parameter {arg.arg} is no buffer, handle or number"
        raise self.source.error("SM1204", what, arg, remedy=f'{arg.arg}: T.Buffer((128, 128), "float32")')

    def variable(self, name: str, dtype: torch.dtype, number: bool = True) -> None:
        """A number parameter: an integer is a size, other dtypes are buffers without dimensions.

        ``number`` False: it is a returned value, which is always such a buffer.
        """
        if name in self.texts and dtype is not torch.int32 and name not in self._arguments():
            raise self.source.error("SM1204", f"{name} is an int32 already", self.function)
        if number and not dtype.is_floating_point and dtype is not torch.bool:
            if name not in self.reader.names:
                self.size(name)
                if name not in self._arguments():
                    self.free.add(self.sizes[-1])
            return
        self.reader.buffers[name] = Buffer(dtype, (), name)
        self.reader.scalars.add(name)
        self.params.append(Param(name, dtype, (), ()))

    def _arguments(self) -> set[str]:
        return {arg.arg for arg in self.function.args.args}

    def size(self, name: str) -> None:
        symbol = self.fresh(name)
        self.sizes.append(symbol)
        self.reader.names[name] = Index(symbol)

    def _buffer(
        self, name: str, args: Sequence[ast.AST], keywords: Sequence[ast.keyword], node: ast.AST
    ) -> None:
        given = {each.arg: each.value for each in keywords}
        shape_node = args[0] if args else given.get("shape")
        if shape_node is None:
            raise self.source.error("SM1204", f"{name} has no shape", node)
        shape = self.shape(shape_node)
        dtype = self.dtype(args[1] if len(args) > 1 else given.get("dtype"))
        strides = self._strides(given, shape)
        streamed = "smelt_streamed" in given
        self.reader.buffers[name] = Buffer(dtype, shape, name)
        self.params.append(Param(name, dtype, shape, strides, streamed=streamed))

    def _strides(self, given: Mapping[str | None, ast.expr], shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
        if "strides" not in given or is_empty(given["strides"]):
            return contiguous_strides(shape)
        return self.shape(given["strides"])

    def shape(self, node: ast.AST) -> tuple[Expr, ...]:
        """The sizes of a shape. A text as ``"n + 1"``, or an outer variable, declares the names in it."""
        found = []
        for part in self.reader.spread([node]):  # type: ignore[list-item]
            value = self.reader.python(part)
            if isinstance(value, str):
                try:
                    part = at(ast.parse(value, mode="eval").body, part)
                except SyntaxError:
                    raise self.source.error("SM1204", f"{value!r} is no size", part) from None
                for each in ast.walk(part):
                    if isinstance(each, ast.Name) and each.id not in (*self.reader.names, "T"):
                        self.texts.add(each.id)
                        self.size(each.id)
            elif isinstance(part, ast.Name) and value is not UNKNOWN and not isinstance(value, (int, Expr)):
                self.size(part.id)
            found.append(self.reader.index(part))
        return tuple(found)

    def dtype(self, node: ast.AST | None) -> torch.dtype:
        if node is None:
            return torch.float32
        return self.reader.dtype(node)

    def match(self, name: str, call: ast.Call) -> None:
        given = {str(each.arg): each.value for each in call.keywords}
        first = call.args[0] if call.args else call
        if isinstance(first, ast.Subscript):
            self._region(name, first, call.args[1] if len(call.args) > 1 else given.get("shape"), call)
            return
        handle = word_of(first)
        if handle not in self.handles:
            what = f"{handle or ast.unparse(first)} is no handle among the parameters"
            raise self.source.error("SM1205", what, first, remedy=near(handle, self.handles))
        self.handles[handle] = name
        self._buffer(name, call.args[1:], call.keywords, call)

    def _region(self, name: str, node: ast.Subscript, shape: ast.expr | None, call: ast.Call) -> None:
        """``A = T.match_buffer(B[0:4, i], (4, 1))``: a view."""
        base = self.reader.buffer(node.value)
        region = self.span(base, node)
        sizes = tuple(extent for _, extent in region) if shape is None else self.shape(shape)
        view = region_view(base, region, sizes)
        if view is None:
            what = f"the region has the shape {tuple(extent for _, extent in region)}, not {sizes}"
            raise self.source.error("SM1204", what, call)
        self.reader.buffers[name] = view

    def span(self, base: Buffer, node: ast.Subscript) -> list[tuple[Expr, Expr]]:
        """The begin and the extent of a region in each dimension."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(parts) != len(base.shape):
            what = f"{ast.unparse(node.value)} has {len(base.shape)} dimensions, {len(parts)} are given"
            raise self.source.error("SM1206", what, node)
        region = []
        for part, size in zip(parts, base.shape):
            if not isinstance(part, ast.Slice):
                region.append((self.reader.index(part), Integer(1)))
                continue
            if part.step is not None and not (isinstance(part.step, ast.Constant) and part.step.value == 1):
                raise self.source.error("SM1204", "a region has no steps", part.step)
            begin = self.reader.index(part.lower) if part.lower else Integer(0)
            end = self.reader.index(part.upper) if part.upper else size
            region.append((begin, sympy.expand(end - begin)))
        return region

    def alloc(self, name: str, call: ast.Call, word: str) -> None:
        given = {each.arg: each.value for each in call.keywords}
        shape = self.shape(call.args[0] if call.args else given["shape"])
        dtype = self.dtype(call.args[1] if len(call.args) > 1 else given.get("dtype"))
        if word == "decl_buffer" and "data" in given:
            self._view(name, given, shape, dtype, call)
            return
        scope = str(literal(given["scope"], self.source)) if "scope" in given else ""
        aligned = literal(given["smelt_aligned"], self.source) if "smelt_aligned" in given else ()
        if name in self.declared:
            raise self.source.error("SM1204", f"{name} is allocated twice", call)
        self.declared.add(name)
        memory = unique_name(name, (buffer.memory for buffer in self.reader.buffers.values()))
        self.reader.buffers[name] = Buffer(dtype, shape, memory)
        alloc = Alloc(memory, dtype, shape, "" if scope == "global" else scope, tuple(aligned))
        looped = {symbol for size in shape for symbol in size.free_symbols} & self.loops.keys()
        if word == "sblock_alloc_buffer" and not looped:
            self.hoisted[-1].append(alloc)
        else:
            self.reader.stmts.append(alloc)

    def _view(
        self,
        name: str,
        given: Mapping[str | None, ast.expr],
        shape: tuple[Expr, ...],
        dtype: torch.dtype,
        call: ast.Call,
    ) -> None:
        """``A = T.decl_buffer((256,), data=B.data)``: a view."""
        data = given["data"]
        if word_of(data) in self.handles:
            self.handles[word_of(data)] = name
            offset = given.get("elem_offset")
            if offset is not None and self.reader.index(offset) != 0:
                raise self.source.error("SM1204", "a handle is of a buffer's first element", offset)
            self._buffer(name, call.args, call.keywords, call)
            return
        base = self.reader.buffer(data.value if isinstance(data, ast.Attribute) else data)
        if base.dtype != dtype:
            what = f"a view of {dtype} on memory of {base.dtype}"
            raise self.source.error("SM1207", what, call)
        offset = self.reader.index(given["elem_offset"]) if "elem_offset" in given else Integer(0)
        self.reader.buffers[name] = flat_view(base, shape, self._strides(given, shape), offset)


def is_empty(node: ast.AST) -> bool:
    return (isinstance(node, (ast.Tuple, ast.List)) and not node.elts) or (
        isinstance(node, ast.Constant) and node.value is None
    )


__all__ = ["Buffers", "is_empty"]
