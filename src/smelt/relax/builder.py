"""`BlockBuilder` writes a module step by step; every step binds a variable."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import sympy
from sympy import Expr as Size
from sympy import Symbol

from smelt import te
from smelt.relax.infer import infer
from smelt.relax.primfuncs import argument_name
from smelt.relax.rewrite import as_known, check_scopes, substituted
from smelt.relax.types import (
    ObjectStructInfo,
    PrimStructInfo,
    RelaxError,
    ShapeStructInfo,
    StructInfo,
    TensorStructInfo,
    TupleStructInfo,
    plain,
)
from smelt.relax.values import (
    Attrs,
    Binding,
    BindingBlock,
    Call,
    Constant,
    DataflowBlock,
    DataflowVar,
    Expr,
    Function,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    StringImm,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
    call_tir,
    convert,
)
from smelt.script import structural_hash
from smelt.script.module import GlobalVar, IRModule, PrimFunc

Leaf = (Var, Constant, ShapeExpr, PrimValue, StringImm, Tuple, GlobalVar)


class _Function:
    """The scope of one function while it is written."""

    def __init__(
        self,
        builder: BlockBuilder,
        name: str,
        params: Any,
        attrs: Mapping[str, Any],
        is_pure: bool,
        private: bool,
    ) -> None:
        self.builder, self.name, self.is_pure, self.private = builder, name, is_pure, private
        self.params, self.attrs = params, dict(attrs)
        self.blocks: list[BindingBlock] = []
        self.done = False

    def __enter__(self) -> _Function:
        if self.builder._scopes:
            what = f"function {self.name!r} inside of function {self.builder._scope.name!r}"
            raise RelaxError("SM1301", what, remedy="end the one before the other begins")
        BlockBuilder._stack.append(self.builder)
        self.builder._scopes.append(self)
        self.builder._begin(BindingBlock())
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.builder._scopes.pop()
        self.builder._open.clear()
        BlockBuilder._stack.pop()
        if kind is None and not self.done:
            what = f"emit_func_output must be called in function {self.name!r}, once"
            raise RelaxError("SM1301", what, remedy="end the function with bb.emit_func_output(value)")


class _Dataflow:
    """The scope of one dataflow block while it is written."""

    def __init__(self, builder: BlockBuilder) -> None:
        self.builder = builder

    def __enter__(self) -> _Dataflow:
        self.builder._close()
        self.builder._begin(DataflowBlock())
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if self.builder._open:
            self.builder._close()
            self.builder._begin(BindingBlock())


class BlockBuilder:
    """Writes functions of a module: ``function``, ``dataflow``, ``emit``, ``emit_te``, …, ``get``.

    >>> from smelt.relax.operators import op
    >>> x = Var("x", TensorStructInfo((2, 3), "float32"))
    >>> bb = BlockBuilder()
    >>> with bb.function("main", [x]):
    ...     with bb.dataflow():
    ...         y = bb.emit_output(bb.emit(op.exp(x)))
    ...     main = bb.emit_func_output(y)
    >>> [binding.var.name_hint for block in bb.get()["main"].body.blocks for binding in block.bindings]
    ['lv', 'gv']
    """

    _stack: ClassVar[list[BlockBuilder]] = []

    def __init__(self, mod: IRModule | None = None) -> None:
        self._module = IRModule(mod.functions if mod is not None else None)
        if mod is not None:
            self._module.attrs.update(mod.attrs)
        self._scopes: list[_Function] = []
        self._open: list[BindingBlock] = []
        self._names: dict[str, int] = {}
        self._bound: dict[Var, Any] = {}
        self._placeholders: dict[int, tuple[Any, Var]] = {}
        self._equal: dict[str, GlobalVar] | None = None

    @staticmethod
    def current() -> BlockBuilder | None:
        """The builder whose function is being written."""
        return BlockBuilder._stack[-1] if BlockBuilder._stack else None

    # -- scopes ----------------------------------------------------------------------------------------------

    def function(
        self,
        name: str,
        params: Any = None,
        attrs: Mapping[str, Any] | None = None,
        pure: bool = True,
        private: bool = False,
    ) -> _Function:
        """``with bb.function("main", [x, y]):`` begins a function. ``params`` may also come at its end."""
        return _Function(self, name, self._params(params), attrs or {}, pure, private)

    def dataflow(self) -> _Dataflow:
        """``with bb.dataflow():`` begins a block without effects."""
        return _Dataflow(self)

    @property
    def _scope(self) -> _Function:
        if not self._scopes:
            raise RelaxError("SM1301", "no function is being written", remedy='use "with bb.function(name):"')
        return self._scopes[-1]

    def _begin(self, block: BindingBlock) -> None:
        self._open.append(block)

    def _close(self) -> BindingBlock:
        block = self._open.pop()
        if block.bindings and self._scopes:
            self._scope.blocks.append(block)
        return block

    def _begin_dataflow_block(self) -> None:
        self._begin(DataflowBlock())

    def _begin_binding_block(self) -> None:
        self._begin(BindingBlock())

    def _end_block(self) -> BindingBlock:
        return self._close()

    def current_block_is_dataflow(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1], DataflowBlock)

    @property
    def _block(self) -> BindingBlock:
        if not self._open:
            raise RelaxError("SM1301", "no block is being written", remedy='use "with bb.function(name):"')
        return self._open[-1]

    def _params(self, params: Any) -> list[Var] | None:
        if params is None:
            return None
        found = []
        for each in [params] if isinstance(params, (Var, te.Tensor)) else list(params):
            each = self._value(each)
            if not isinstance(each, Var):
                what = f"a parameter of type {type(each).__name__}"
                raise TypeError(f"SM1301: {what}: parameters are relax.Var or te placeholders")
            found.append(each)
        return found

    def _value(self, value: Any) -> Any:
        """An expression; a te placeholder stands for one variable, the same at each use."""
        if isinstance(value, te.Tensor):
            found = self._placeholders.get(id(value))
            if found is None:
                info = TensorStructInfo(tuple(value.shape), value.dtype)
                found = self._placeholders[id(value)] = value, Var(value.op.name, info)
            return found[1]
        if isinstance(value, (list, tuple)):
            return Tuple([self._value(each) for each in value])
        return convert(value)

    # -- bindings --------------------------------------------------------------------------------------------

    def get_unique_name(self, name_prefix: str) -> str:
        """The name, or the name followed by a number if it is taken."""
        base = name_prefix.rstrip(string.digits) or name_prefix
        if name_prefix not in self._names:
            self._names[name_prefix] = 0
            return name_prefix
        number = self._names.get(base, 0)
        while True:
            number += 1
            name = f"{base}{number}"
            if name not in self._names:
                break
        self._names[base] = number
        self._names.setdefault(name, 0)
        return name

    def _new_var(self, info: StructInfo, output: bool, hint: str) -> Var:
        inside = self.current_block_is_dataflow() and not output
        name = self.get_unique_name(hint or ("lv" if inside else "gv"))
        return DataflowVar(name, info) if inside else Var(name, info)

    def normalize(self, expr: Any) -> Any:
        """An expression whose parts are variables or constants; calls in it are bound first."""
        expr = self._value(expr)
        if isinstance(expr, Tuple):
            fields = [self._leaf(each) for each in expr.fields]
            expr = expr if fields == list(expr.fields) else Tuple(fields)
        elif isinstance(expr, Call):
            args = tuple(self._leaf(each) for each in expr.args)
            if any(a is not b for a, b in zip(args, expr.args)):
                expr = as_known(Call(expr.op, args, expr.attrs, expr.sinfo_args), expr)
        elif isinstance(expr, TupleGetItem):
            inner = self._leaf(expr.tuple_value)
            if isinstance(inner, Tuple):
                return inner.fields[expr.index]
            expr = expr if inner is expr.tuple_value else TupleGetItem(inner, expr.index)
        elif isinstance(expr, SeqExpr):
            return self._inlined(expr)
        elif isinstance(expr, If) and not isinstance(expr.cond, Leaf):
            expr = If(self._leaf(expr.cond), expr.true_branch, expr.false_branch)
        if isinstance(expr, Expr) and getattr(expr, "struct_info_", None) is None:
            expr.struct_info_ = infer(expr, self._by_name())
        return expr

    def _leaf(self, value: Any) -> Any:
        if not isinstance(value, Expr):
            return value
        value = self.normalize(value)
        return value if isinstance(value, Leaf) or not self._open else self.emit(value)

    def _inlined(self, body: SeqExpr) -> Any:
        """The value of a body, whose bindings are emitted before; the open block continues after them."""
        kind = type(self._block)
        for block in body.blocks:
            self._switch(type(block))
            for binding in block.bindings:
                self.emit_normalized(binding)
        self._switch(kind)
        return self.normalize(body.body)

    def _switch(self, kind: type[BindingBlock]) -> None:
        if type(self._block) is not kind:
            self._close()
            self._begin(kind())

    def _by_name(self) -> dict[str, Any]:
        return {var.name_hint: function for var, function in self._module.functions.items()}

    def emit(self, expr: Any, name_hint: str = "") -> Var:
        """Bind an expression to a new variable, whose struct info is inferred."""
        return self._bind(expr, False, name_hint)

    def emit_output(self, expr: Any, name_hint: str = "") -> Var:
        """Bind an expression to a variable that is visible outside of the dataflow block."""
        if not self.current_block_is_dataflow():
            what = "emit_output is for dataflow blocks"
            raise RelaxError("SM1301", what, remedy='use it inside of "with bb.dataflow():"')
        return self._bind(expr, True, name_hint)

    def _bind(self, expr: Any, output: bool, hint: str) -> Var:
        if expr is None:
            raise RelaxError("SM1304", "None is no relax value", remedy="emit an expression")
        self._block  # noqa: B018  (raises if no block is open)
        value = self.normalize(expr)
        var = self._new_var(value.struct_info, output, hint)
        self._block.bindings.append(VarBinding(var, value))
        self._bound[var] = value
        return var

    def match_cast(self, value: Any, struct_info: StructInfo, name_hint: str = "") -> Var:
        """Bind a value with more precise struct info than the inferred one; it is checked at run time."""
        value = self._leaf(self._value(value))
        var = self._new_var(struct_info, False, name_hint)
        self._block.bindings.append(MatchCast(var, value, struct_info))
        self._bound[var] = value
        return var

    def emit_normalized(self, binding: Binding) -> None:
        """Add a binding as it is."""
        self._block.bindings.append(binding)
        self._bound[binding.var] = binding.value

    def lookup_binding(self, var: Var) -> Any:
        """The value to which a variable is bound; None for parameters."""
        return self._bound.get(var)

    def emit_func_output(self, output: Any, params: Any = None) -> GlobalVar:
        """End the function with its value. ``params``: its parameters, unless ``function`` was given them.

        Raises:
            RelaxError: SM1301 it is the second time, or parameters are missing or given twice; SM1302 the
                function uses a variable that is neither bound nor a parameter.
        """
        scope = self._scope
        if scope.done:
            what = f"emit_func_output was called in function {scope.name!r} already"
            raise RelaxError(
                "SM1301", what, why="it can be called once in a function", remedy="return a tuple"
            )
        if params is not None and scope.params is not None:
            what = f"the parameters of function {scope.name!r} are given at its beginning and at its end"
            raise RelaxError("SM1301", what, remedy="give params once")
        found = scope.params if params is None else self._params(params)
        if found is None:
            what = f"no parameters of function {scope.name!r}"
            raise RelaxError("SM1301", what, remedy="give params, to bb.function or to emit_func_output")
        if self.current_block_is_dataflow():
            what = "emit_func_output inside of a dataflow block"
            raise RelaxError("SM1301", what, remedy="end the block first, with emit_output")
        value = self._outer(self._leaf(self._value(output)))
        self._close()
        scope.done = True
        attrs = dict(scope.attrs) if scope.private else {**scope.attrs, "global_symbol": scope.name}
        body = SeqExpr(_merged(scope.blocks), value)
        function = Function(found, body, None, scope.is_pure, attrs)
        check_scopes(function, scope.name, blocks=False)
        self._begin(BindingBlock())
        return self._add(function, scope.name)

    def _outer(self, value: Any) -> Any:
        """The output for which a dataflow variable stands: outside of its block the output is used."""
        if isinstance(value, Tuple):
            fields = [self._outer(each) for each in value.fields]
            return value if fields == list(value.fields) else Tuple(fields)
        if isinstance(value, DataflowVar):
            for block in self._scope.blocks:
                for binding in block.bindings:
                    if binding.value is value and not isinstance(binding.var, DataflowVar):
                        return binding.var
        return value

    # -- functions of the module -----------------------------------------------------------------------------

    def add_func(self, func: Any, func_name: str) -> GlobalVar:
        """Add a function; if an equal private one exists, that is used instead."""
        if isinstance(func, PrimFunc):
            if self._equal is None:
                own = self._module.functions.items()
                self._equal = {structural_hash(each): var for var, each in own if isinstance(each, PrimFunc)}
            key = structural_hash(func)
            if key not in self._equal:
                self._equal[key] = self._add(func, func_name)
            return self._equal[key]
        return self._add(func, func_name)

    def _add(self, func: Any, name: str) -> GlobalVar:
        taken = {var.name_hint for var in self._module}
        found, number = name, 0
        while found in taken:
            number += 1
            found = f"{name}{number}"
        if isinstance(func, PrimFunc):
            func = func.with_name(found)
        var = GlobalVar(found)
        self._module[var] = func
        return var

    def update_func(self, gv: GlobalVar, updated_func: Any) -> None:
        """Replace a function by another one."""
        self._module[gv] = updated_func
        self._equal = None

    def call_te(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
        """A call of the PrimFunc that a te function creates for these arguments.

        Variables become te placeholders of their name; lists, tuples and dictionaries may hold them; numbers
        and texts are passed on. ``primfunc_name_hint``, ``primfunc_attrs``: the PrimFunc's name, attributes.
        """
        name = kwargs.pop("primfunc_name_hint", None) or getattr(func, "__name__", "te_function")
        attrs = kwargs.pop("primfunc_attrs", None)
        made = _TeArguments(self)
        te_args, te_kwargs = made.convert(args), made.convert(kwargs)
        result = func(*te_args, **te_kwargs)
        outs = list(result) if isinstance(result, (list, tuple)) else [result]
        if not outs or not all(isinstance(each, te.Tensor) for each in outs):
            what = f"{name} returned {type(result).__name__}"
            raise RelaxError("SM1307", what, remedy="a te function returns a te.Tensor or a list of them")
        numbers = {**made.numbers, **{size: size for size in made.unbound(outs)}}
        primfunc = te.create_prim_func([*made.placeholders, *numbers, *outs])
        primfunc = primfunc.with_attr(attrs) if attrs else primfunc
        private = PrimFunc(primfunc.kernel, primfunc.attrs, True).with_name(name)
        info = [TensorStructInfo(tuple(each.shape), each.dtype) for each in outs]
        var = self.add_func(private, name)
        return call_tir(var, Tuple([*made.values, *numbers.values()]), info if len(info) > 1 else info[0])

    def emit_te(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Var:
        """Bind the result of `call_te` to a new variable."""
        name = kwargs.pop("name_hint", "")
        return self.emit(self.call_te(func, *args, **kwargs), name)

    def call_tir(self, gvar: GlobalVar, args: Any, out_sinfo: Any) -> Call:
        return call_tir(gvar, args, out_sinfo)

    def get(self) -> IRModule:
        """The module so far."""
        found = IRModule(self._module.functions)
        found.attrs.update(self._module.attrs)
        return found

    def finalize(self) -> IRModule:
        """The module with unique function names: functions without ``global_symbol`` give way to others."""
        names = {var: function.attrs.get("global_symbol") for var, function in self._module.items()}
        taken = {name for name in names.values() if name}
        found: dict[GlobalVar, GlobalVar] = {}
        for var, name in names.items():
            own, number = name or var.name_hint, 0
            while not name and own in taken:
                number += 1
                own = f"{var.name_hint}{number}"
            taken.add(own)
            found[var] = GlobalVar(own)
        functions = {
            found[var]: each.with_name(found[var].name_hint)
            if isinstance(each, PrimFunc)
            else each.changed(body=substituted(each.body, found), captured=each.captured)
            for var, each in self._module.items()
        }
        return IRModule(functions, self._module.attrs)


def _merged(blocks: Sequence[BindingBlock]) -> list[BindingBlock]:
    found: list[BindingBlock] = []
    for block in blocks:
        if found and type(block) is BindingBlock is type(found[-1]):
            found[-1] = BindingBlock([*found[-1].bindings, *block.bindings])
        else:
            found.append(block)
    return found


class _TeArguments:
    """Arguments of a te function: tensors become placeholders."""

    def __init__(self, builder: BlockBuilder) -> None:
        self.builder = builder
        self.values: list[Any] = []
        self.placeholders: list[Any] = []
        self.sizes: list[Size] = []
        self.numbers: dict[Symbol, Any] = {}

    def convert(self, value: Any) -> Any:
        if isinstance(value, te.Tensor):
            value = self.builder._value(value)
        if isinstance(value, Tuple):
            return tuple(self.convert(each) for each in value.fields)
        if isinstance(value, Call):
            value = self.builder._leaf(value)
        if isinstance(value, PrimValue):
            return plain(value.value)
        if isinstance(value, ShapeExpr):
            self.sizes += [each for each in value.values if each.free_symbols]
            return [plain(each) for each in value.values]
        if isinstance(value, Expr):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.convert(each) for each in value)
        if isinstance(value, (dict, Attrs)):
            return {key: self.convert(each) for key, each in value.items()}
        if isinstance(value, Size):
            self.sizes.append(value)
            return plain(value)
        if isinstance(size := getattr(value, "expr", None), Size):
            self.sizes.append(size)
        if value is None or isinstance(value, (bool, int, float, str, StructInfo, te.Value)):
            return value
        what = f"emit_te cannot take a {type(value).__name__}"
        raise RelaxError("SM1307", what, remedy="give variables, constants, numbers, or lists of them")

    def _tensor(self, value: Expr) -> Any:
        info = value.struct_info
        if isinstance(info, TensorStructInfo) and info.sizes is not None and info.dtype is not None:
            name = argument_name(value, len(self.placeholders), {each.op.name for each in self.placeholders})
            shape = tuple(plain(each) for each in info.sizes)
            made = te.placeholder(shape, name=name, dtype=info.dtype)
            self.values.append(value)
            self.placeholders.append(made)
            return made
        if isinstance(info, PrimStructInfo) and isinstance(info.value, Size):
            self.sizes.append(info.value)
            return plain(info.value)
        if isinstance(info, PrimStructInfo) and isinstance(value, Var) and info.dtype in ("int32", "int64"):
            number = te.var(value.name_hint, info.dtype)
            self.numbers[number.expr] = value
            return number
        kind = {
            ShapeStructInfo: "a shape variable",
            TupleStructInfo: "a tuple variable",
            ObjectStructInfo: "unknown",
        }
        what = f"emit_te: {value} is {kind.get(type(info), 'a tensor whose sizes are not known')}"
        remedy = "use a ShapeExpr, elements of the tuple, or match_cast the tensor first"
        raise EmitTeError("SM1307", what, remedy=remedy)

    def unbound(self, outs: Sequence[Any]) -> list[Symbol]:
        """Size variables that no placeholder's shape determines."""
        bound = {size for each in self.placeholders for size in _sizes(each)} | self.numbers.keys()
        used: dict[Any, None] = {}
        for size in [*self.sizes, *[s for each in (*self.placeholders, *outs) for s in _sizes(each)]]:
            for symbol in sorted(sympy.sympify(size).free_symbols, key=str):
                used[symbol] = None
        return [symbol for symbol in used if symbol not in bound]


class EmitTeError(RelaxError, AssertionError):
    """An argument that emit_te does not accept; TVM raises AssertionError."""


def _sizes(tensor: Any) -> list[Any]:
    return [getattr(each, "expr", each) for each in tensor.shape]


__all__ = ["BlockBuilder"]
