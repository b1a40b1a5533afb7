"""Execution of Linalg modules on tensors: bufferized, lowered to LLVM, compiled and called in this process.

This path is not optimized for speed. It checks modules against eager execution, and implements
``Exported.run``.
"""

from __future__ import annotations

import builtins
import ctypes
import ctypes.util
import math
import re
import time
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

import torch

from smelt.errors import SmeltError
from smelt.mlir.bindings import INTEGERS, arith, cf, element_name, execution_engine, func, ir, scf
from smelt.mlir.diagnostics import run_pipeline_with_repro_report
from smelt.mlir.modules import clone, declare, function_of, operations, type_of

_FAIL, _DONE = "smelt_fail", "smelt_done"
_PLAIN, _OPTIMIZED = 0, 2
"""LLVM's optimization levels."""
_OPTIMIZING_TAKES = 10
"""The ratio of compile times of `_OPTIMIZED` to `_PLAIN` code."""
_SHAPE = re.compile(r"(?:(?:\d+|\?)x)+")
_LOWERING = (
    "builtin.module("
    "canonicalize,"
    "func.func(linalg-fuse-elementwise-ops),"
    "func.func(refback-generalize-tensor-pad),"
    "func.func(refback-generalize-tensor-concat),"
    "func.func(tm-tensor-bufferize),"
    "one-shot-bufferize{ANALYSIS bufferize-function-boundaries allow-return-allocs-from-loops "
    "function-boundary-type-conversion=identity-layout-map},"
    "refback-mlprogram-bufferize,"
    "buffer-deallocation-pipeline,"
    "convert-bufferization-to-memref,"
    "func.func(tm-tensor-to-loops),"
    "func.func(refback-munge-memref-copy),"
    "func.func(convert-linalg-to-loops),"
    "func.func(lower-affine),"
    "convert-shape-to-std,"
    "convert-complex-to-standard,"
    "func.func(math-extend-to-supported-types{target-type=f32}))"
)
_TO_LLVM = (
    "builtin.module("
    "func.func(refback-expand-ops-for-llvm),"
    "func.func(arith-expand{include-bf16=true}),"
    "func.func(convert-math-to-llvm),"
    "convert-math-to-libm,"
    "expand-strided-metadata,"
    "lower-affine,"
    "convert-scf-to-cf,"
    "finalize-memref-to-llvm,"
    "convert-arith-to-llvm,"
    "convert-index-to-llvm,"
    "convert-complex-to-llvm,"
    "convert-func-to-llvm,"
    "convert-cf-to-llvm,"
    "reconcile-unrealized-casts)"
)

DTYPES = {
    element_name(dtype): dtype
    for dtype in (
        *(torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64, *INTEGERS),
        *(torch.complex64, torch.complex128),
    )
} | {"si8": torch.int8, "ui8": torch.uint8}
_NUMBERS = {"i1": ctypes.c_bool, "i64": ctypes.c_int64, "i32": ctypes.c_int32, "f32": ctypes.c_float}
_NUMBERS |= {"f64": ctypes.c_double, "index": ctypes.c_int64, "i8": ctypes.c_int8}


class Executable:
    """A module's function, compiled; calling it with arguments returns its results.

    Args:
        module: an ``ir.Module`` of Linalg, tensor, arith, scf … on builtin tensors; it is not modified.
        name: the function to call.
        calls: implementations of the functions that the module declares without a body, by name: tensors and
            numbers in, tensors out.

    Arguments and results are tensors and Python numbers. Arguments are never mutated. A failed assertion
    (``cf.assert``) ends the call and raises. LLVM optimizes once the calls have taken longer than an
    optimized compilation would: that takes ten times as long, and most modules are called once or twice.

    Raises:
        PipelineError: SM0712, something in the module has no lowering to LLVM.
        SmeltError: SM0718, there is no such function.

    >>> from smelt.mlir.bindings import new_context
    >>> from torch_mlir import ir
    >>> text = "func.func @twice(%x: tensor<?xf32>) -> tensor<?xf32> {"
    >>> text += " %0 = linalg.add ins(%x, %x : tensor<?xf32>, tensor<?xf32>) outs(%x : tensor<?xf32>)"
    >>> text += " -> tensor<?xf32> return %0 : tensor<?xf32> }"
    >>> Executable(ir.Module.parse(text, context=new_context()), "twice")(torch.tensor([1.0, 2.0]))
    [tensor([2., 4.])]
    """

    def __init__(
        self, module: Any, name: str = "main", calls: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.name = name
        self.callbacks: dict[str, Any] = {}
        self.raised: list[BaseException] = []
        self.messages: list[str] = []
        self.failed: list[int] = []
        with module.context, ir.Location.unknown():
            copy = clone(module)
            function = function_of(copy, name)
            kind = type_of(function)
            self.inputs = [_Kind(str(each)) for each in kind.inputs]
            self.results = [_Kind(str(each)) for each in kind.results]
            _keep_arguments(function, len(self.inputs))
            for each, function in (calls or {}).items():
                self.callbacks[each] = self._linked(function_of(copy, each), function)
            if self.callbacks:
                _assert_calls(copy, self.callbacks)
                self.callbacks[_DONE] = ctypes.CFUNCTYPE(ctypes.c_bool)(lambda: not self.raised)
            self.messages = _replace_assertions(copy)
            # a pass bufferizes torch-mlir's own dialect, and the analysis cannot look through it
            analysis = "copy-before-write" if "tm_tensor" in _dialects(copy) else ""
            lowering = _LOWERING.replace("ANALYSIS ", analysis and analysis + " ")
            run_pipeline_with_repro_report(copy, lowering, "lowering to loops")
            _call_libm(copy)
            _round_float32(copy)
            run_pipeline_with_repro_report(copy, _TO_LLVM, "lowering to LLVM")
            _stop_where_assertions_fail(copy)
        load_conversions()
        self.module = copy
        self.callback = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.failed.append)
        self.patience = math.inf
        started = time.perf_counter()
        self.engine = self._compiled(_PLAIN)
        if "ml_program" not in _dialects(module):  # a second compilation would reset its variables
            self.patience = _OPTIMIZING_TAKES * (time.perf_counter() - started)

    def _compiled(self, level: int) -> Any:
        """The machine code of the lowered module at an LLVM optimization level."""
        with self.module.context:
            engine = execution_engine.ExecutionEngine(self.module, opt_level=level)
        engine.register_runtime(_FAIL, self.callback)
        for name, callback in self.callbacks.items():
            engine.register_runtime(name, callback)
        engine.raw_lookup(f"_mlir_ciface_{self.name}")  # compiles
        return engine

    def _linked(self, declaration: Any, function: Callable[..., Any]) -> Any:
        """A C function for a declared function. The module's call raises the exceptions of ``function``."""
        declaration.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
        kind = type_of(declaration)
        inputs, results = ([_Kind(str(each)) for each in kinds] for kinds in (kind.inputs, kind.results))
        unsigned = list(ir.DenseBoolArrayAttr(declaration.attributes["smelt.unsigned"]))
        fields = [(f"field{place}", type(each.empty())) for place, each in enumerate(results)]
        layout = type("Results", (ctypes.Structure,), {"_fields_": fields})
        kinds = [(type(each.empty()), each.is_tensor) for each in inputs]
        types = [ctypes.POINTER(kind) if is_tensor else kind for kind, is_tensor in kinds]

        def called(returned: Any, *values: Any) -> None:
            try:
                given = [
                    each.unpack(value.contents if each.is_tensor else value)
                    for each, value in zip(inputs, values)
                ]
                given = [each.view(torch.uint8) if sign else each for each, sign in zip(given, unsigned)]
                made = function(*given)
                made = list(made) if isinstance(made, (tuple, list)) else [made]
                for place, (each, value) in enumerate(zip(results, made, strict=True)):
                    setattr(returned.contents, f"field{place}", each.copied(value, place))
            except BaseException as error:  # C code would lose the exception
                self.raised.append(error)

        return ctypes.CFUNCTYPE(None, ctypes.POINTER(layout), *types)(called)

    def __call__(self, *values: Any) -> list[Any]:
        """The results for these arguments.

        Raises:
            SmeltError: SM0719, arguments of other ranks, dtypes or sizes than the function's.
            RuntimeError: an assertion of the module failed; or the built-in exception that its message begins
                with (``IndexError: …``).
        """
        if len(values) != len(self.inputs):
            raise SmeltError("SM0719", f"{len(values)} arguments for a function of {len(self.inputs)}")
        packed = [kind.pack(value, place) for place, (kind, value) in enumerate(zip(self.inputs, values))]
        passed = [_pointer(argument) for argument, _ in packed]
        fields = [kind.empty() for kind in self.results]
        returned: Any = None
        if len(fields) == 1 and not self.results[0].is_tensor:
            passed.append(ctypes.pointer(fields[0]))
        elif fields:
            layout = {"_fields_": [(f"field{place}", type(each)) for place, each in enumerate(fields)]}
            returned = type("Results", (ctypes.Structure,), layout)()
            passed.insert(0, _pointer(returned))
        if self.patience < 0:
            self.engine, self.patience = self._compiled(_OPTIMIZED), math.inf
        self.failed.clear()
        self.raised.clear()
        started = time.perf_counter()
        self.engine.invoke(self.name, *passed)
        self.patience -= time.perf_counter() - started
        if self.raised:
            raise self.raised[0]
        if self.failed:
            raise _exception(self.messages[self.failed[0]])
        if returned is not None:
            fields = [getattr(returned, f"field{place}") for place in range(len(fields))]
        results = [kind.unpack(each) for kind, each in zip(self.results, fields)]
        for address in {each.allocated for each in fields if isinstance(each, ctypes.Structure)} - {None}:
            _FREE(address)
        return results


def executable(module: Any, calls: Mapping[str, Callable[..., Any]]) -> Callable[..., list[Any]]:
    """Compile a module for execution; each dialect's package has a function of this name."""
    return Executable(module, calls=calls)


class _Kind:
    """How one argument or result is passed. ``text`` is its MLIR type."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_tensor = text.startswith("tensor<")
        inside = text.removeprefix("tensor<").removesuffix(">").split(", ")[0]
        found = _SHAPE.match(inside) if self.is_tensor else None
        self.sizes = (
            [] if found is None else [None if size == "?" else int(size) for size in found[0].split("x")[:-1]]
        )
        self.element = inside if found is None else inside[found.end() :]
        if self.element not in (DTYPES if self.is_tensor else _NUMBERS):
            raise SmeltError("SM0719", f"a {text} cannot be passed")

    def pack(self, value: Any, place: int) -> tuple[Any, Any]:
        """The C argument for a value, and the object that must stay alive with it."""
        if not self.is_tensor:
            number = value.item() if isinstance(value, torch.Tensor) else value
            return _NUMBERS[self.element](number), None  # type: ignore[arg-type]
        wanted = DTYPES[self.element]
        if not isinstance(value, torch.Tensor) or not _same_width(value.dtype, wanted):
            given = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            raise SmeltError("SM0719", f"argument {place} is {given}", why=f"the module takes {self.text}")
        fits = len(self.sizes) == value.dim() and all(a in (None, b) for a, b in zip(self.sizes, value.shape))
        if not fits:
            what = f"argument {place} has the shape {list(value.shape)}"
            raise SmeltError("SM0719", what, why=f"the module takes {self.text}")
        dense = value.detach().resolve_conj().resolve_neg().contiguous()
        return _descriptor(value.dim())(
            dense.data_ptr(), dense.data_ptr(), 0, tuple(dense.shape), tuple(dense.stride())
        ), dense

    def copied(self, value: Any, place: int) -> Any:
        """The result of `pack`, in memory that the receiver frees."""
        packed, dense = self.pack(value, place)
        size = dense.numel() * dense.itemsize
        packed.allocated = packed.aligned = _MALLOC(max(size, 1))
        ctypes.memmove(packed.aligned, dense.data_ptr(), size)
        return packed

    def empty(self) -> Any:
        """Memory for a result."""
        return _descriptor(len(self.sizes))() if self.is_tensor else _NUMBERS[self.element]()

    def unpack(self, returned: Any) -> Any:
        """A result as a tensor with its own memory, or as a number."""
        if not self.is_tensor:
            return returned.value if hasattr(returned, "value") else returned
        shape, dtype = list(returned.sizes), DTYPES[self.element]
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        start = returned.aligned + returned.offset * dtype.itemsize
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(start)
        return torch.frombuffer(memory, dtype=dtype).clone().reshape(shape)


@lru_cache(maxsize=32)
def _descriptor(rank: int) -> type[ctypes.Structure]:
    """MLIR's memref descriptor."""
    fields = [
        ("allocated", ctypes.c_void_p),
        ("aligned", ctypes.c_void_p),
        ("offset", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * rank),
        ("strides", ctypes.c_int64 * rank),
    ]
    return type(f"MemRef{rank}", (ctypes.Structure,), {"_fields_": fields})


def _pointer(argument: Any) -> Any:
    """A pointer to the argument, as ``invoke`` takes it; a memref is itself passed by a pointer."""
    pointer = ctypes.pointer(argument)
    return ctypes.pointer(pointer) if isinstance(argument, ctypes.Structure) else pointer


def _same_width(given: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether an integer dtype fits: MLIR's integers are signless, so uint8 is accepted for i8."""
    integers = not (given.is_floating_point or given.is_complex or given is torch.bool)
    return given == wanted or (
        integers
        and not (wanted.is_floating_point or wanted.is_complex or wanted is torch.bool)
        and given.itemsize == wanted.itemsize
    )


def _keep_arguments(function: Any, count: int) -> None:
    """Give the function a C interface, and mark its arguments as read-only."""
    function.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
    kept = ir.DictAttr.get({"bufferization.writable": ir.BoolAttr.get(False)})
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([kept] * count)


def _dialects(module: Any) -> set[str]:
    """The dialects of a module's operations."""
    return {each.name.split(".")[0] for each in operations(module)}


def _assert_calls(module: Any, names: Collection[str]) -> None:
    """After each call of these functions, assert that it did not raise."""
    truth = ir.IntegerType.get_signless(1)
    declare(module, _DONE, [], [truth], interface=True)
    for operation in operations(module, "func.call"):
        if str(operation.attributes["callee"]).strip('@"') in names:
            with ir.InsertionPoint.after(operation), operation.location:
                done = func.CallOp([truth], _DONE, []).results[0]
                cf.assert_(done, "an external function has raised")


def _replace_assertions(module: Any) -> list[str]:
    """Replace ``cf.assert``, which ends the process, by a call that records it; returns the messages."""
    found = operations(module, "cf.assert")
    word, truth = ir.IntegerType.get_signless(64), ir.IntegerType.get_signless(1)
    if found:
        declare(module, _FAIL, [word], [], interface=True)
    messages: list[str] = []
    for operation in found:
        with ir.InsertionPoint(operation), operation.location:
            wrong = arith.xori(operation.operands[0], arith.constant(truth, 1))
            branch = scf.IfOp(wrong)
            with ir.InsertionPoint(branch.then_block):
                func.CallOp([], _FAIL, [arith.constant(word, len(messages))])
                scf.YieldOp([])
        messages.append(ir.StringAttr(operation.attributes["msg"]).value)
        operation.erase()
    return messages


_OF_LIBM = ("math.tanh", "math.log1p", "math.expm1", "math.erf")


def _call_libm(module: Any) -> None:
    """Replace some functions by calls of libm: MLIR's expansions of ``tanh``, ``log1p`` and ``expm1`` by
    ``exp`` and ``log`` lose all digits near 0, and MLIR has no ``erf`` of float64."""
    declared: set[str] = set()
    for operation in operations(module, *_OF_LIBM):
        kind = operation.results[0].type
        name = operation.name.removeprefix("math.") + ("f" if str(kind) == "f32" else "")
        if name not in declared:
            declared.add(name)
            declare(module, name, [kind], [kind])
        with ir.InsertionPoint(operation), operation.location:
            result = func.CallOp([kind], name, [operation.operands[0]]).results[0]
        operation.results[0].replace_all_uses_with(result)
        operation.erase()


def _round_float32(module: Any) -> None:
    """Convert integers to bfloat16 through float32, as PyTorch does. LLVM would call a function for it that
    only newer compilers' libraries have."""
    for operation in operations(module, "arith.sitofp", "arith.uitofp"):
        kind = operation.results[0].type
        if str(kind) != "bf16":
            continue
        with ir.InsertionPoint(operation), operation.location:
            wide = ir.Operation.create(operation.name, [ir.F32Type.get()], [operation.operands[0]]).results[0]
            result = arith.TruncFOp(kind, wide).result
        operation.results[0].replace_all_uses_with(result)
        operation.erase()


def _stop_where_assertions_fail(module: Any) -> None:
    """Return from the function (in LLVM) after each call that records a failed assertion. The code behind it
    relies on the assertion, even for memory sizes."""
    failure = ir.FlatSymbolRefAttr.get(_FAIL)
    for function in module.body.operations:
        if ir.StringAttr(function.attributes["sym_name"]).value.endswith(_FAIL):
            continue
        returns = operations(function, "llvm.return")
        for call in operations(function, "llvm.call"):
            if call.attributes["callee"] != failure:
                continue
            block = call.operation.block
            with ir.InsertionPoint.at_block_terminator(block), call.location:
                terminator = block.operations[len(block.operations) - 1]
                results = [each.type for each in returns[0].operands]
                nothing = [ir.Operation.create("llvm.mlir.zero", results=[kind]) for kind in results]
                ir.Operation.create("llvm.return", operands=[each.results[0] for each in nothing])
            terminator.operation.erase()


def _exception(message: str) -> Exception:
    """A failed assertion's exception: the built-in one that the message begins with, else RuntimeError."""
    name, colon, rest = message.partition(": ")
    kind = getattr(builtins, name, None) if colon else None
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(rest)
    return RuntimeError(message)


@lru_cache(maxsize=1)
def load_conversions() -> None:
    """Let compiled code find the conversions from and to 16-bit floats."""
    found = ctypes.util.find_library("gcc_s")
    if found is not None:
        ctypes.CDLL(found, mode=ctypes.RTLD_GLOBAL)


_FREE, _MALLOC = ctypes.CDLL(None).free, ctypes.CDLL(None).malloc
_FREE.argtypes, _MALLOC.argtypes, _MALLOC.restype = [ctypes.c_void_p], [ctypes.c_size_t], ctypes.c_void_p
