"""StableHLO's reference interpreter."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from smelt.errors import SmeltError
from smelt.mlir.diagnostics import diagnostics_of

Number = int | float | bool

_STATIC = (
    "func.func(cse),stablehlo-refine-shapes,"
    "func.func(stablehlo-canonicalize-dynamism),stablehlo-refine-shapes"
)
_UNKNOWN_TO_INTERPRETER = frozenset(
    f"stablehlo.{name}"
    for name in ("cholesky", "triangular_solve", "fft", "rng", "rng_bit_generator", "custom_call")
)


def evaluate_module(module: Any, inputs: Sequence[torch.Tensor | Number]) -> list[torch.Tensor]:
    """Run ``main`` on tensors and numbers; the module stays as it is. A number is a tensor of rank 0.

    Sizes become known from the inputs first. Random numbers come from torch's default generator.

    Raises:
        SmeltError: SM0731, the interpreter cannot run the module: a size depends on data, or it does not know
            an operation.
    """
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _stablehlo as hlo
    from torch_mlir.passmanager import PassManager

    values = [_elements(each) for each in map(torch.as_tensor, inputs)]
    with module.context, ir.Location.unknown():
        copied = _copy(module)
        given = [_attribute(value) for value in values]
        _draw(copied)
        types = ",".join(str(each.type) for each in given)
        refine = f"stablehlo-refine-arguments{{types={types}}}," if given else ""
        with diagnostics_of(module.context) as found:
            passes = PassManager.parse(f"builtin.module({refine}{_STATIC})")
            _attempt("sizes do not fit", found, lambda: passes.run(copied.operation))
            _check(copied)
            results = _attempt("it failed", found, lambda: hlo.eval_module(copied, given))
        return [_tensor(each) for each in results]


def _attempt(what: str, found: Sequence[Any], function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:  # the bindings' errors have no public base
        said = "; ".join(map(str, found)) or str(error)
        raise SmeltError("SM0731", f"StableHLO's interpreter: {what}", why=said) from error


def _copy(module: Any) -> Any:
    from torch_mlir import ir

    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return ir.Module.parse(buffer.getvalue(), module.context)


def _operations(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region:
            for each in list(block):
                yield each.operation
                yield from _operations(each.operation)


def _draw(module: Any) -> None:
    """Put numbers that torch draws in the place of ``stablehlo.rng``, which the interpreter does not know."""
    from torch_mlir import ir

    limits = torch.iinfo(torch.int64)
    for operation in list(_operations(module.operation)):
        if operation.name == "stablehlo.rng":
            drawn = torch.randint(limits.min, limits.max, (), dtype=torch.int64)
            with ir.InsertionPoint(operation):
                made = ir.Operation.create(
                    "stablehlo.constant",
                    results=[operation.results[0].type],
                    attributes={"value": ir.DenseElementsAttr.get(drawn.numpy())},
                )
            operation.results[0].replace_all_uses_with(made.results[0])
            operation.erase()


def _check(module: Any) -> None:
    """What the interpreter meets must be known to it: it would end the process."""
    for operation in _operations(module.operation):
        if operation.name in _UNKNOWN_TO_INTERPRETER:
            raise SmeltError("SM0731", f"StableHLO's interpreter does not know {operation.name}")
        for result in operation.results:
            kind = str(result.type)
            if "?" in kind:
                raise SmeltError(
                    "SM0731",
                    "StableHLO's interpreter takes no size that depends on data",
                    why=f"{operation.name} gives {kind}",
                    remedy="hand the module to a compiler that does",
                )


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _attribute(tensor: torch.Tensor) -> Any:
    """The elements as an attribute of the type that `StableHlo` gives arrays."""
    from smelt.mlir.stablehlo.dialect import StableHlo

    return StableHlo().attribute(tensor)


_DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i1": torch.bool,
    "i8": torch.int8,
    "ui8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
}


def _tensor(attribute: Any) -> torch.Tensor:
    """The tensor of a result."""
    import numpy
    from torch_mlir import ir

    kind = ir.RankedTensorType(attribute.type)
    name = str(kind.element_type)
    if name not in _DTYPES:
        raise SmeltError("SM0731", f"a result of {name} elements", why="the bindings give no such numbers")
    if 0 in kind.shape:
        return torch.empty(list(kind.shape), dtype=_DTYPES[name])
    if name == "bf16":
        numbers = [attribute[n] for n in range(len(attribute))]
        return torch.tensor(numbers, dtype=torch.bfloat16).reshape(list(kind.shape))
    array = numpy.array(attribute)
    return torch.from_numpy(array.copy()).to(_DTYPES[name]).reshape(list(kind.shape))
