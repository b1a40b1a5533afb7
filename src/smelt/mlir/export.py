"""`export`: compiles a model to a module of another compiler's dialect, to be printed, saved and run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch.utils import _pytree as pytree

from smelt.capture import Program
from smelt.capture.check import InputCheck
from smelt.contract import portable_decompositions
from smelt.errors import SmeltError
from smelt.mlir.capturing import Captured, Exportable, capture
from smelt.mlir.diagnostics import UnsupportedOperatorsError
from smelt.mlir.external import Operator, linked, names_of
from smelt.mlir.parameters import held_tensors, save_parameters
from smelt.mlir.signature import Signature, Weights, signature_of

Dialect = Literal["linalg", "torch", "stablehlo", "tosa"]

_PACKAGES = {"torch": "torch_dialect"}


def export(
    model: Exportable,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    to: Dialect = "linalg",
    dynamic_shapes: Any = None,
    weights: Weights = "inline",
    strict: bool | None = None,
    decomposition_table: Mapping[Any, Callable[..., Any] | None] | None = None,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    external_calls: Collection[Operator] | Mapping[Operator, Callable[..., Any]] = (),
) -> Exported:
    """Export a model, a function or an ``ExportedProgram`` as MLIR.

    Args:
        model: the program to export; ``args`` and ``kwargs`` are example arguments (none for an
            ExportedProgram).
        to: ``"linalg"`` (on tensors), ``"torch"``, ``"stablehlo"`` or ``"tosa"``.
        dynamic_shapes: the dynamic sizes, as in `torch.export.export`.
        weights: ``"inline"``, literals of the module; ``"external"``, its last arguments.
        strict: as in `torch.export.export`; None tries without Dynamo first.
        decomposition_table: ATen overload → function that computes it from other operators, in addition to
            smelt's table or replacing its entry; None keeps the operator.
        prefer_deferred_runtime_asserts_over_guards: as in `torch.export.export`: the program checks the
            assumptions on sizes that tracing made.
        external_calls: operators (``"library::name"``) that stay calls of external functions, which the user
            of the module links: see `smelt.mlir.external`. If this is a mapping to Python functions, ``run``
            (Linalg and TOSA) calls these with the tensors and numbers of the module's calls.

    A function may run autograd: a complete training step is one module. The module holds the models and
    optimizers of its closure; parameters, buffers and the optimizers' states are mutated and returned. Each
    call begins without gradients (``.grad`` is None), and ``.grad`` afterwards is no result: return the
    gradients that you need. A learning rate is a fixed number.

    Raises:
        SmeltError: SM0601 or SM0602 a program that smelt cannot compile, SM0710 the bindings are not
            installed, SM0711 operators that the dialect cannot express (all of them), SM0720 no such dialect,
            SM0721 a training step that mutates a tensor that cannot be a result, SM0722 arguments that do not
            fit, SM0723 a program that `torch.export` cannot capture.

    >>> import torch
    >>> exported = export(torch.nn.Tanh(), [torch.zeros(2, 3)], to="torch")
    >>> exported.run(torch.zeros(2, 3))
    tensor([[0., 0., 0.],
            [0., 0., 0.]])

    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> def step(x):
    ...     optimizer.zero_grad()
    ...     loss = model(x).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss
    >>> exported = export(step, [torch.ones(2, 3)])
    >>> [bool(exported.run(torch.ones(2, 3)) > 0.0) for _ in range(2)]
    [True, True]
    """
    emitter(to)
    if weights not in get_args(Weights):
        raise SmeltError("SM0722", f"weights={weights!r}", remedy=f"one of {', '.join(get_args(Weights))}")
    external = names_of(external_calls)
    table = {**portable_decompositions(), **(decomposition_table or {})}
    captured = capture(
        model,
        args,
        kwargs,
        dynamic_shapes=dynamic_shapes,
        strict=strict,
        decompositions={overload: function for overload, function in table.items() if function is not None},
        deferred=prefer_deferred_runtime_asserts_over_guards,
    )
    return Exported(captured, to, weights, external)


class Exported:
    """A program as a module of one dialect. ``str()`` is its text.

    ``module``: the ``ir.Module``, with one function ``main``. ``signature``: its arguments and results.
    ``program``: the captured program in contract form. ``dialect``, ``weights``: as given to `export`.
    """

    def __init__(
        self,
        captured: Captured,
        dialect: Dialect,
        weights: Weights = "inline",
        external: Mapping[str, Callable[..., Any] | None] | None = None,
    ) -> None:
        self.dialect, self.weights, self.external = dialect, weights, external or {}
        self._captured = captured
        self.signature: Signature = signature_of(captured.program, weights)
        self.module = emit(captured.program, dialect, weights, self.external)
        self._check = InputCheck(captured.program, captured.exported.range_constraints)
        self._executable: Callable[..., list[Any]] | None = None

    @property
    def program(self) -> Program:
        """The captured program in contract form."""
        return self._captured.program

    def __str__(self) -> str:
        return str(self.module)

    def __repr__(self) -> str:
        return f"<smelt.Exported {self.program.name} as {self.dialect}>"

    def to(self, dialect: Dialect) -> Exported:
        """The same program in another dialect.

        Raises:
            SmeltError: SM0711, operators that it cannot express; SM0720, no such dialect.
        """
        return (
            self
            if dialect == self.dialect
            else Exported(self._captured, dialect, self.weights, self.external)
        )

    def save(self, path: str | Path) -> None:
        """Write the module: as MLIR bytecode if ``path`` ends in ``.mlirbc``, else as text.

        External weights are written to an adjacent file with the suffix ``.safetensors``; `load_parameters`
        returns them in the order of the function's arguments.

        Raises:
            SmeltError: SM0716, a weight's dtype that the file cannot hold.
        """
        path = Path(path)
        if self.weights == "external":
            save_parameters(path.with_suffix(".safetensors"), held_tensors(self.signature))
        if path.suffix == ".mlirbc":
            with path.open("wb") as file:
                self.module.operation.write_bytecode(file)
        else:
            path.write_text(f"{str(self).rstrip()}\n")

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The model's results for these arguments, computed by the module; mutated arguments are updated.

        Tensors that the program holds and mutates (batch-norm statistics) change in the model itself.

        Raises:
            SmeltError: SM0603, arguments of other sizes, dtypes or nesting than were exported.
            PipelineError: SM0712, the module cannot be lowered to Linalg or LLVM.
        """
        call_spec = self._captured.exported.call_spec
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != call_spec.in_spec:
            what = "the arguments are not nested as those that were exported"
            raise SmeltError("SM0603", what, why=str(call_spec.in_spec))
        self._check(leaves)
        passed = [leaves[place] for place in self.signature.places]
        passed += [each.value for each in self.signature.held]
        returned = iter(self.compile()(*passed))
        given = dict(zip((each.node for each in self.signature.arguments), passed))
        outputs: list[Any] = []
        with torch.no_grad():
            for result in self.signature.results:
                value = None if result.value is None else _as(next(returned), result.value)
                if result.target is None:
                    outputs.append(value)
                else:
                    given[result.target.node].copy_(value)
        if len(outputs) != call_spec.out_spec.num_leaves:
            return tuple(outputs)  # an ExportedProgram with a backward: the gradients come last
        return pytree.tree_unflatten(outputs, call_spec.out_spec)

    def compile(self) -> Callable[..., list[Any]]:
        """The function that `run` calls, compiled once (StableHLO's runs in its interpreter).

        Raises:
            SmeltError: SM0750, the module calls external functions.
            PipelineError: SM0712, the module cannot be lowered to Linalg or LLVM.
            SmeltError: SM0740, SM0741 or SM0742, torch-mlir's pipelines crash, hang or are wrong.
        """
        known = self.external if self.dialect in ("linalg", "tosa") else {}
        remedy = "link them with the compiled module; to run it here, as Linalg or TOSA, give external_calls"
        calls = linked(self.module, known, f"{remedy} a function for each operator")
        if self._executable is None:
            self._executable = _package(self.dialect).executable(self.module, calls)
        return self._executable


def emit(program: Program, dialect: str, weights: Weights = "inline", external: Collection[str] = ()) -> Any:
    """The ``ir.Module`` of a program in contract form. The Torch dialect keeps unknown operators; the other
    dialects keep the ``external`` ones.

    Raises:
        SmeltError: SM0711, operators that the dialect cannot express; SM0720, there is no such dialect.
    """
    try:
        options = {} if dialect == "torch" or not external else {"external": external}
        return emitter(dialect)(program, weights, **options)
    except UnsupportedOperatorsError as error:
        raise error.in_modules(program.graph_module.graph) from error


def emitter(dialect: str) -> Callable[..., Any]:
    """``emit(program, weights) -> ir.Module`` of a dialect.

    Raises:
        SmeltError: SM0720, there is no such dialect.
    """
    found: Callable[..., Any] = _package(dialect).emit
    return found


def _package(dialect: str) -> Any:
    """The package of a dialect, which emits its modules and runs them."""
    if dialect not in get_args(Dialect):
        known = ", ".join(get_args(Dialect))
        raise SmeltError("SM0720", f"no dialect {dialect!r}", remedy=f"one of {known}")
    return import_module(f"smelt.mlir.{_PACKAGES.get(dialect, dialect)}")


def _as(value: Any, source: Any) -> Any:
    """A result with the dtype and kind of the program's metadata: MLIR's integers are signless, and StableHLO
    has no plain numbers."""
    meta = source.meta.get("val") if isinstance(source, torch.fx.Node) else source
    if not isinstance(value, torch.Tensor):
        return value
    if not isinstance(meta, torch.Tensor):
        return value.item()
    if meta.is_complex() and not value.is_complex():
        return torch.view_as_complex(value)
    return value if value.dtype == meta.dtype else value.view(meta.dtype)
