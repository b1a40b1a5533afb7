"""Execution of StableHLO modules, specialized to their inputs' sizes: by StableHLO's reference interpreter,
or for large computations compiled through Linalg."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt.errors import SmeltError
from smelt.mlir.bindings import func, ir, passmanager, stablehlo
from smelt.mlir.diagnostics import diagnostics_of
from smelt.mlir.execute import DTYPES, Executable
from smelt.mlir.modules import clone, first_part, function_of, operations, retype
from smelt.mlir.stablehlo.dialect import StableHlo

Number = int | float | bool

_STATIC = (
    "func.func(cse),stablehlo-refine-shapes,"
    "func.func(stablehlo-canonicalize-dynamism),stablehlo-refine-shapes"
)
_UNKNOWN_TO_INTERPRETER = frozenset(
    f"stablehlo.{name}"
    for name in ("cholesky", "triangular_solve", "fft", "rng", "rng_bit_generator", "custom_call")
)
_NOT_IN_LINALG = frozenset(
    f"stablehlo.{name}" for name in ("sort", "scatter", "while", "if", "case", "dynamic_update_slice")
)
_TO_LINALG = (
    "builtin.module(func.func(stablehlo-legalize-to-linalg),stablehlo-convert-to-signless,canonicalize,cse)"
)
_MOST_ROUNDS = 64
_MOST_INTERPRETED = 1 << 20
"""The maximal number of computed elements for the interpreter, which takes a second for some millions."""


def evaluate_module(module: Any, inputs: Sequence[torch.Tensor | Number]) -> list[torch.Tensor]:
    """Run ``main`` on tensors and numbers; the module is not modified. A number is a tensor of rank 0.

    The inputs determine most sizes. For each size that depends on data, a run of the operations that it
    depends on determines it. Random numbers come from torch's default generator. The interpreter runs the
    module, unless it computes millions of elements and Linalg has all of its operations.

    Raises:
        SmeltError: SM0731, the interpreter cannot run the module: a size inside of a loop or branch depends
            on data, or it lacks an operation.
    """
    values = [_elements(torch.as_tensor(each)) for each in inputs]
    with module.context, ir.Location.unknown():
        run = _Run(clone(module), values)
        _draw(run.module)
        return run.results()


def executable(module: Any, calls: Mapping[str, Callable[..., Any]]) -> Callable[..., list[Any]]:
    """A callable that runs a StableHLO module; external functions are not supported here."""
    assert not calls
    return lambda *values: evaluate_module(module, values)


class _Run:
    """A module that is made static step by step for given inputs."""

    def __init__(self, module: Any, values: Sequence[torch.Tensor]) -> None:
        self.module, self.values = module, _split(module, values)
        self.given = [_attribute(value) for value in self.values]

    def results(self) -> list[torch.Tensor]:
        types = ",".join(str(each.type) for each in self.given)
        self._refine(f"stablehlo-refine-arguments{{types={types}}}," if self.given else "")
        for _ in range(_MOST_ROUNDS):
            unknown = _first_unknown(self.module)
            if unknown is None:
                break
            self._find_out(*unknown)
            self._refine("")
        kinds = [str(kind) for kind in function_of(self.module).type.results]
        if _work(self.module) > _MOST_INTERPRETED:
            self._interpret_small()
            if _has_linalg(self.module):
                return self._compiled(kinds)
        _plain_results(self.module)
        results = iter(self._evaluate(self.module))
        return [_result(kind, results) for kind in kinds]

    def _compiled(self, kinds: Sequence[str]) -> list[torch.Tensor]:
        """The results of the module compiled through Linalg, whose integers are signless."""
        passes = passmanager.PassManager.parse(_TO_LINALG)
        _attempt("no way to Linalg", self.module, lambda: passes.run(self.module.operation))
        found = map(torch.as_tensor, Executable(self.module)(*self.values))
        return [each.view(torch.uint8) if "ui8>" in kind else each for kind, each in zip(kinds, found)]

    def _refine(self, before: str) -> None:
        passes = passmanager.PassManager.parse(f"builtin.module({before}{_STATIC})")
        _attempt("sizes do not fit", self.module, lambda: passes.run(self.module.operation))

    def _evaluate(self, module: Any) -> list[Any]:
        _check(module)
        return _attempt("it failed", module, lambda: stablehlo.eval_module(module, self.given))

    def _interpret_small(self) -> None:
        """Replace operations that Linalg lacks by constants, if few elements suffice to compute them."""
        place = 0
        while place < len(body := list(function_of(self.module).regions[0].blocks[0])):
            operation = body[place].operation
            place += 1
            if operation.name not in _NOT_IN_LINALG:
                continue
            part = self._part(place, lambda each: list(each.results))
            if _work(part) > _MOST_INTERPRETED or any(
                "complex" in str(each.type) for each in operation.results
            ):
                return
            with ir.InsertionPoint(operation):
                found = [_constant(attribute) for attribute in self._evaluate(part)]
            for result, constant in zip(operation.results, found, strict=True):
                result.replace_all_uses_with(constant)
            operation.erase()
            place += len(found) - 1

    def _part(self, count: int, wanted: Callable[[Any], list[Any]]) -> Any:
        """A module of the function's first ``count`` operations without dead code, which returns the values
        that ``wanted`` selects from the last one."""
        part = first_part(self.module, "main", count, lambda kept, rest: wanted(kept[-1]))
        passmanager.PassManager.parse("builtin.module(func.func(cse))").run(part.operation)
        return part

    def _find_out(self, place: int, operands: Sequence[int]) -> None:
        """Replace the size operands of operation ``place`` by constants."""
        part = self._part(place + 1, lambda each: [each.operands[n] for n in operands])
        found = self._evaluate(part)
        operation = list(function_of(self.module).regions[0].blocks[0])[place].operation
        for n, attribute in zip(operands, found, strict=True):
            with ir.InsertionPoint(operation):
                operation.operands[n] = _constant(attribute)


def _attempt(what: str, module: Any, function: Callable[[], Any]) -> Any:
    with diagnostics_of(module.context) as found:
        try:
            return function()
        except Exception as error:  # the bindings' errors have no public base
            said = "; ".join(map(str, found)) or str(error)
            raise SmeltError("SM0731", f"StableHLO's interpreter: {what}", why=said) from error


# -- modules -------------------------------------------------------------------------------------------


def _constant(attribute: Any) -> Any:
    return ir.Operation.create(
        "stablehlo.constant", results=[attribute.type], attributes={"value": attribute}
    ).results[0]


def _first_unknown(module: Any) -> tuple[int, list[int]] | None:
    """The first operation of the function with a result of unknown size: its position, and the numbers of its
    size operands."""
    for place, each in enumerate(function_of(module).regions[0].blocks[0]):
        operation = each.operation
        if any("?" in str(result.type) for result in operation.results):
            name = operation.name
            first = 0 if name == "stablehlo.dynamic_iota" else 1
            operands = enumerate(operation.operands)
            sizes = [n for n, value in operands if n >= first and _is_sizes(str(value.type))]
            if not name.startswith(_DYNAMIC) or not sizes:
                return None
            return place, sizes
    return None


_DYNAMIC = ("stablehlo.dynamic_", "stablehlo.real_dynamic_slice")


def _is_sizes(kind: str) -> bool:
    return kind.startswith("tensor<") and kind.endswith("xi64>") and kind.count("x") == 1 and "?" not in kind


def _work(module: Any) -> int:
    """The number of elements that the module computes; for products about the number of multiplications."""
    total = 0
    for operation in operations(module):
        sizes = [_count(str(result.type)) for result in operation.results]
        if operation.name in ("stablehlo.convolution", "stablehlo.dot_general"):
            sizes = [math.isqrt(sizes[0] * math.prod(_count(str(each.type)) for each in operation.operands))]
        total += sum(sizes)
    return total


def _count(kind: str) -> int:
    """The number of elements of a static tensor type."""
    sizes = kind.removeprefix("tensor<").split("x")
    return math.prod(int(size) for size in sizes if size.isdigit())


def _has_linalg(module: Any) -> bool:
    """Whether StableHLO's passes convert the whole module to Linalg."""
    return not any(
        operation.name in _NOT_IN_LINALG or "complex" in str(operation.results)
        for operation in operations(module)
    )


def _draw(module: Any) -> None:
    """Replace ``stablehlo.rng``, which the interpreter lacks, by numbers from torch's generator."""
    limits = torch.iinfo(torch.int64)
    for operation in operations(module):
        if operation.name == "stablehlo.rng":
            drawn = torch.randint(limits.min, limits.max, (), dtype=torch.int64)
            with ir.InsertionPoint(operation):
                made = _constant(ir.DenseElementsAttr.get(drawn.numpy()))
            operation.results[0].replace_all_uses_with(made)
            operation.erase()


def _split(module: Any, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Replace complex arguments, which the bindings cannot pass, by trailing real and imaginary parts:
    changes the module, and returns its new argument values."""
    places = [n for n, value in enumerate(values) if value.is_complex()]
    if not places:
        return list(values)
    function = function_of(module)
    block = function.regions[0].blocks[0]
    given = [value for value in values if not value.is_complex()]
    for place in places:
        old = block.arguments[place]
        kind = ir.RankedTensorType(old.type)
        part = ir.RankedTensorType.get(kind.shape, ir.ComplexType(kind.element_type).element_type)
        pair = [block.add_argument(part, ir.Location.unknown()) for _ in range(2)]
        with ir.InsertionPoint.at_block_begin(block):
            made = ir.Operation.create("stablehlo.complex", results=[old.type], operands=pair)
        old.replace_all_uses_with(made.results[0])
        given += [part.contiguous() for part in torch.view_as_real(values[place]).unbind(-1)]
    for place in reversed(places):
        block.erase_argument(place)
    retype(function)
    return given


def _plain_results(module: Any) -> None:
    """Return values that the bindings can read: real and imaginary parts, float32 for bfloat16."""
    function = function_of(module)
    end = list(function.regions[0].blocks[0])[-1].operation
    results = []
    with ir.InsertionPoint(end):
        for value in end.operands:
            kind = ir.RankedTensorType(value.type)
            names, element = ["convert"], ir.F32Type.get()
            if "complex" in str(kind):
                names, element = ["real", "imag"], ir.ComplexType(kind.element_type).element_type
            elif not str(kind).endswith("bf16>"):
                results.append(value)
                continue
            part = ir.RankedTensorType.get(kind.shape, element)
            for name in names:
                made = ir.Operation.create(f"stablehlo.{name}", results=[part], operands=[value])
                results.append(made.results[0])
        func.ReturnOp(results)
    end.erase()
    retype(function)


def _check(module: Any) -> None:
    """Check that the interpreter supports all operations; an unsupported one would end the process."""
    for operation in operations(module):
        if operation.name in _UNKNOWN_TO_INTERPRETER:
            raise SmeltError("SM0731", f"StableHLO's interpreter does not know {operation.name}")
        for result in operation.results:
            kind = str(result.type)
            if "?" in kind:
                raise SmeltError(
                    "SM0731",
                    "StableHLO's interpreter takes no size that depends on data here",
                    why=f"{operation.name} gives {kind}",
                    remedy="hand the module to a compiler that does",
                )


# -- numbers -------------------------------------------------------------------------------------------


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _attribute(tensor: torch.Tensor) -> Any:
    """The elements as an attribute of the type that `StableHlo` uses for arrays."""
    return StableHlo().attribute(tensor)


def _result(kind: str, results: Iterator[Any]) -> torch.Tensor:
    """The tensor of a result of the module's type ``kind``."""
    if "complex" in kind:
        return torch.complex(_tensor(next(results)), _tensor(next(results)))
    result = _tensor(next(results))
    return result.bfloat16() if kind.endswith("bf16>") else result


def _tensor(attribute: Any) -> torch.Tensor:
    import numpy

    kind = ir.RankedTensorType(attribute.type)
    name = str(kind.element_type)
    if name not in DTYPES:
        raise SmeltError("SM0731", f"a result of {name} elements", why="the bindings give no such numbers")
    if 0 in kind.shape:
        return torch.empty(list(kind.shape), dtype=DTYPES[name])
    array = numpy.array(attribute)
    return torch.from_numpy(array.copy()).to(DTYPES[name]).reshape(list(kind.shape))
