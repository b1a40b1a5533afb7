"""MLIR's diagnostics as errors that name the operation and the user's line."""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph

from smelt.errors import Problem, SmeltError
from smelt.mlir.bindings import ir, passmanager
from smelt.mlir.locations import where_of
from smelt.mlir.modules import operations
from smelt.runtime import repros

_OPERATION = re.compile(r"'([a-z_]+\.[\w.$]+)'")
_OPERATOR = re.compile(r'"torch\.operator".*?name = "([^"]+)"')
_CURRENT = re.compile(r'see current operation:[^"]*"([\w.]+)"\(')
_BACKEND = re.compile(r"\btorch-backend-to-[a-z-]+-pipeline\b")
_CONSTRAINTS = ("torch.bind_symbolic_shape", "torch.symbolic_int")
_LARGEST_REPRODUCER = 16 << 20
_SHOWN = 400


class UnsupportedOperatorsError(SmeltError):
    """SM0711: a program has operators that a dialect cannot express. Lists all of them with their lines.

    ``unsupported`` is True, for callers that distinguish this case from a failure.
    """

    unsupported = True

    def __init__(self, dialect: str, problems: Sequence[Problem]) -> None:
        self.dialect, self.problems = dialect, tuple(problems)
        listed = "\n".join(f"    - {problem}" for problem in problems)
        super().__init__(
            "SM0711",
            f"{len(problems)} call(s) cannot be expressed in {dialect}\n{listed}",
            remedy="write them with operators of PyTorch that `smelt schema` knows, or leave them out",
        )

    def in_modules(self, graph: Graph) -> UnsupportedOperatorsError:
        """The same error, with the module of each call (``module layers.17``) if the graph has it."""
        makers: dict[tuple[str, str | None], list[str]] = {}
        for node in graph.nodes:
            stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
            makers.setdefault((str(node.target), node.meta.get("where")), []).append((stack or [""])[-1])
        named: list[Problem] = []
        for problem in self.problems:
            op, _, reason = problem.what.partition(":")
            paths = makers.get((op, problem.where)) or [""]
            path = paths.pop(0)  # problems are in the graph's order
            named.append(Problem(f"{op} in module {path}:{reason}", problem.where) if path else problem)
        return UnsupportedOperatorsError(self.dialect, named)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A diagnostic message of MLIR. ``severity``: error, warning, note or remark. ``operation``: the name of
    its operation, ``where``: the user's line; None if MLIR does not say."""

    severity: str
    message: str
    operation: str | None = None
    where: str | None = None

    def __str__(self) -> str:
        message = self.message if len(self.message) <= _SHOWN else self.message[:_SHOWN] + " …"
        return f"{self.severity}: {message}" + (f"  (at {self.where})" if self.where else "")


class PipelineError(SmeltError):
    """SM0712: a pass pipeline failed.

    ``diagnostics``: all of MLIR's diagnostics. ``operation``, ``where``: the operation that failed, and the
    user's line. ``reproducer``: the path of a file with the module before the pipeline, and the pipeline;
    ``torch-mlir-opt --run-reproducer FILE`` fails in the same way.
    """

    def __init__(
        self, what: str, diagnostics: Sequence[Diagnostic], reproducer: str, why: str | None = None
    ) -> None:
        self.diagnostics, self.reproducer = tuple(diagnostics), reproducer
        self.pipeline, self.reason = what, why
        first = next((each for each in diagnostics if each.severity == "error"), None)
        self.operation = None if first is None else first.operation
        listed = "\n".join(f"    - {each}" for each in diagnostics) or why or "MLIR gives no reason"
        super().__init__(
            "SM0712",
            f"{what} failed" + ("" if self.operation is None else f" on {self.operation}"),
            where=None if first is None else first.where,
            why=listed.strip() if "\n" not in listed else "\n" + listed,
            remedy=f"torch-mlir-opt --run-reproducer {reproducer}" if reproducer else None,
        )


def verify(module: Any) -> Any:
    """Check a module with MLIR's verifier, and return it.

    Raises:
        SmeltError: SM0713, the verifier refuses the module: a bug of smelt. The error lists all diagnostics.
    """
    with diagnostics_of(module.context) as found:
        try:
            holds = module.operation.verify()
        except Exception as error:  # the bindings raise their own MLIRError, which has no public base
            holds = False
            if not found:
                found.append(Diagnostic("error", str(error)))
    if not holds:
        listed = "\n".join(f"    - {each}" for each in found)
        raise SmeltError("SM0713", f"MLIR's verifier refuses what smelt wrote\n{listed}")
    return module


@contextmanager
def diagnostics_of(context: Any) -> Iterator[list[Diagnostic]]:
    """Collect MLIR's diagnostics for ``context`` inside the block; nothing is printed.

    >>> from smelt.mlir.bindings import new_context
    >>> context = new_context()
    >>> with diagnostics_of(context) as found, context:
    ...     from torch_mlir import ir
    ...     ir.Location.file("model.py", 3, 0).emit_error("no such size")
    >>> print(found[0])
    error: no such size  (at model.py:3)
    """
    found: list[Diagnostic] = []

    def take(diagnostic: Any) -> bool:
        found.append(_diagnostic(diagnostic))
        return True

    before = context.emit_error_diagnostics
    context.emit_error_diagnostics = True  # a pass may emit an error and succeed: the bindings would abort
    handler = context.attach_diagnostic_handler(take)
    try:
        yield found
    finally:
        handler.detach()
        context.emit_error_diagnostics = before


def run_pipeline_with_repro_report(
    module: Any, pipeline: str, description: str = "", enable_ir_printing: bool = False
) -> None:
    """Run a pass pipeline on a module, in place.

    Args:
        module: an ``ir.Module`` (or anything with such a ``.module``).
        pipeline: in MLIR's textual form, ``builtin.module(…)``.
        description: the purpose of the pipeline, for error messages.
        enable_ir_printing: print the module after every pass, on standard error.

    torch-mlir's backend pipelines have no rule for symbolic-shape constraints (``torch.symbolic_int``,
    ``torch.bind_symbolic_shape``), so they are erased before such a pipeline.

    Raises:
        PipelineError: SM0712, with the diagnostics, the operation, the user's line, and a reproducer.
        SmeltError: SM0714, there is no such pipeline.
    """
    module = getattr(module, "module", module)
    context = module.context
    original = module.operation.clone()
    what = description or f"the pipeline {pipeline}"
    with context, diagnostics_of(context) as found:
        try:
            manager = passmanager.PassManager.parse(pipeline)
        except ValueError as error:
            raise SmeltError("SM0714", f"{pipeline!r} is no pipeline", why=_flat(str(error))) from error
        if _BACKEND.search(pipeline):
            erase_shape_constraints(module)
        if enable_ir_printing:
            context.enable_multithreading(False)
            manager.enable_ir_printing()
        with shown_on_stderr(enable_ir_printing) as printed:
            try:
                manager.run(module.operation)
                return
            except Exception as error:  # as in `verify`
                why = _flat(str(error))
        found[:0] = _left_over(module, found)
        path = write_reproducer(original, pipeline)
        text = printed()
        if text and not found:
            found.append(Diagnostic("error", _flat(text)))
        raise PipelineError(what, found, path, why)


def erase_shape_constraints(module: Any) -> None:
    """Erase ``torch.bind_symbolic_shape`` and ``torch.symbolic_int`` from a module."""
    for name in _CONSTRAINTS:
        for operation in operations(module, name):
            operation.erase()


def write_reproducer(operation: Any, pipeline: str) -> str:
    """Write a module and a pipeline to a file for ``torch-mlir-opt --run-reproducer``; its path, or "" if no
    file can be written (see `smelt.runtime.repros`).

    The file has weights up to 16 MiB in total; larger weights are elided, which changes no shape.
    """
    elided = {} if _weights_of(operation) <= _LARGEST_REPRODUCER else {"large_resource_limit": 64}
    text = operation.get_asm(enable_debug_info=True, large_elements_limit=1 << 16, **elided)
    escaped = pipeline.replace("\\", "\\\\").replace('"', '\\"')
    resource = (
        f'external_resources: {{ mlir_reproducer: {{ pipeline: "{escaped}", '
        "disable_threading: true, verify_each: true } }"
    )
    if "{-#" in text:  # the module has a section of resources already
        head, _, tail = text.rpartition("#-}")
        text = f"{head.rstrip()},\n  {resource}\n#-}}{tail}"
    else:
        text = f"{text.rstrip()}\n\n{{-#\n  {resource}\n#-}}\n"
    path = repros.keep("pipeline", f"// torch-mlir-opt --run-reproducer FILE\n{text}", ".mlir")
    return "" if path is None else str(path)


@contextmanager
def shown_on_stderr(show: bool) -> Iterator[Callable[[], str]]:
    """Capture the text that native code writes to file descriptor 2 inside the block; the yielded function
    returns it afterwards.

    ``show``: print it on ``sys.stderr`` too: at once if that is the descriptor itself, else at the end.
    """
    if show and _is_descriptor_2(sys.stderr):
        yield lambda: ""
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile("w+b") as file:
        os.dup2(file.fileno(), 2)
        text = ""
        try:
            yield lambda: text
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            text = file.read().decode(errors="replace")
            if show:
                sys.stderr.write(text)


def _left_over(module: Any, found: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The PyTorch operators left in a module after a failed conversion, which no pass converted.

    MLIR names the first operation that it cannot legalize, usually a constant that such an operator uses.
    ``found``: MLIR's diagnostics.
    """
    unknown: list[Diagnostic] = []
    known: list[Diagnostic] = []

    for operation in operations(module):
        name, where = operation.name, where_of(operation.location)
        if name == "torch.operator":
            name = ir.StringAttr(operation.attributes["name"]).value
            unknown.append(Diagnostic("error", f"no pass converts {name}", name, where))
        elif name.startswith(("torch.aten.", "torch.prims.", "torch.quantized_decomposed.")):
            known.append(Diagnostic("error", f"no pass converts {name}", name, where))
    if unknown:  # other operations may be left because a failed pass changed nothing
        return unknown if _half_converted(module) or "torch.operator" in str(found) else []
    return list(dict.fromkeys(known)) if _half_converted(module) else []


def _half_converted(module: Any) -> bool:
    """Whether functions have builtin types; the Torch dialect's remaining operations then failed."""
    return any(
        "!torch" not in str(each.attributes.get("function_type", "!torch")) for each in _functions(module)
    )


def _functions(module: Any) -> list[Any]:
    return [each.operation for each in module.body.operations if each.operation.name == "func.func"]


def _is_descriptor_2(stream: Any) -> bool:
    try:
        return bool(stream.fileno() == 2)
    except (AttributeError, OSError, ValueError):
        return False


def _weights_of(operation: Any) -> int:
    """The approximate number of bytes of a module's resources and literals."""
    total = 0
    for each in operations(operation):
        for name in ("value", "weights"):
            if name in each.attributes and isinstance(each.attributes[name], ir.DenseResourceElementsAttr):
                total += 8 * math.prod(ir.ShapedType(each.attributes[name].type).shape)
    return total


def _diagnostic(diagnostic: Any) -> Diagnostic:
    notes = [_flat(note.message) for note in diagnostic.notes]
    told = [note for note in notes if not note.startswith("see current operation")]
    message = "; ".join([_flat(diagnostic.message), *told])
    found = _OPERATOR.search(message) or _OPERATION.search(message) or _CURRENT.search(" ".join(notes))
    operation = found[1] if found else None
    return Diagnostic(diagnostic.severity.name.lower(), message, operation, where_of(diagnostic.location))


def _flat(text: str) -> str:
    return " ".join(text.split())
