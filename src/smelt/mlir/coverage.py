"""The operators that each target supports, from the lowering table and each handler's capabilities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.contract.portable import PORTABLE
from smelt.lowering.chosen import chosen
from smelt.lowering.needs import Needs, needs_of
from smelt.lowering.products.contractions import CONTRACTIONS
from smelt.lowering.registry import NAMED, OWN, TABLE, row_of
from smelt.mlir import bindings
from smelt.mlir.capabilities import Capabilities

LOOP_DIALECTS = ("linalg", "stablehlo", "tosa")
"""The dialects emitted from loop functions: sub-packages of `smelt.mlir`, each with its ``CAPABILITIES``."""

DIALECTS = (*LOOP_DIALECTS, "torch")
_HEAD = """# Which operators each target takes

Written by `smelt schema --table > docs/coverage.md`; do not edit. What it says is derived: C++ from the
lowering table; Linalg, StableHLO and TOSA from what a row asks for (read off its code, for all cases of the
operator at once) and what the dialect's handler says it can do; Torch from the operations that dialect has.

- **C++**: `kernel`, a loop of smelt's own; `ATen`, the call that smelt chooses; `ATen or own`, the same, but
  a kernel of smelt's own with the option `own`, as in packages.
- **Linalg**, **StableHLO**, **TOSA**: `yes`; `not …`, all but the cases that need what is named;
  `decomposed`, written by `smelt.export` as other operators; `no`.
- **Torch** (of float32): `yes`; `loops`, by its loop functions, in a few operations that torch-mlir's
  pipelines take right; `operator`, as a `torch.operator`; `decomposed`.

Operators that are not listed are decomposed before lowering, or are no part of a captured program.

| operator | C++ | Linalg | StableHLO | TOSA | Torch |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How each target writes an operator, in words.

    ``dialects``: by the names in `DIALECTS`. ``needs``: the needs of the operator's row, if it has one.
    """

    overload: OpOverload
    cpp: str
    dialects: dict[str, str]
    needs: Needs | None

    @property
    def name(self) -> str:
        """``aten::add.Tensor``."""
        return name_of(self.overload)


def name_of(overload: OpOverload) -> str:
    """An operator's name in the notation of PyTorch's schemas.

    >>> name_of(torch.ops.aten.add.Tensor), name_of(torch.ops.aten.tanh.default)
    ('aten::add.Tensor', 'aten::tanh')
    """
    return str(overload.name())


def coverage_of(overload: OpOverload) -> Coverage:
    """The coverage of an operator by each target.

    Raises:
        SmeltError: SM0710, the MLIR bindings are not installed.
    """
    needs = needs_of(overload)
    if overload in PORTABLE and needs is not None and needs.bodies == {"Extern"}:
        dialects = dict.fromkeys(DIALECTS, "decomposed")
    else:
        dialects = {**{name: _loops(name, needs) for name in LOOP_DIALECTS}, "torch": _torch(overload)}
    return Coverage(overload, _cpp(overload), dialects, needs)


def operators() -> Iterator[OpOverload]:
    """Every operator that smelt lowers or deliberately leaves to ATen, by name."""
    dispatched = set(torch._C._dispatch_get_all_op_names())
    known = {*TABLE, *CONTRACTIONS, *_chosen()}
    for name in NAMED:
        namespace, operator = name.split("::")
        if name in dispatched:
            known.add(getattr(getattr(torch.ops, namespace), operator).default)
    return iter(sorted((each for each in known if each.name() in dispatched), key=name_of))


def table() -> str:
    """The table in Markdown, with an explanation of its words."""
    rows = []
    for overload in operators():
        found = coverage_of(overload)
        cells = (f"`{found.name}`", found.cpp, *(found.dialects[name] for name in DIALECTS))
        rows.append("| " + " | ".join(cells) + " |\n")
    return _HEAD + "".join(rows)


def capabilities(dialect: str) -> Capabilities:
    """The capabilities of a dialect in `LOOP_DIALECTS`; empty if it has no handler."""
    spec = find_spec(f"smelt.mlir.{dialect}")
    if spec is None or spec.origin is None:
        return Capabilities(frozenset(), frozenset(), frozenset())
    found: Capabilities = import_module(f"smelt.mlir.{dialect}").CAPABILITIES
    return found


def _cpp(overload: OpOverload) -> str:
    if row_of(overload) is not None:
        return "kernel"
    if chosen(overload) is None:
        return "no"
    return "ATen or own" if overload in OWN else "ATen"


def _loops(dialect: str, needs: Needs | None) -> str:
    if needs is None or (needs.bodies == {"Extern"} and not needs.calls <= capabilities(dialect).calls):
        return "no"
    lacking = capabilities(dialect).lacks(needs)
    if needs.bodies and needs.bodies <= set(lacking):
        return "no"
    return "yes" if not lacking else "not " + ", ".join(lacking)


def _torch(overload: OpOverload) -> str:
    from smelt.mlir.torch_dialect.emit import how

    with _context():
        return how(overload)


@lru_cache(maxsize=1)
def _context() -> Any:
    return bindings.new_context()


def _chosen() -> Iterator[OpOverload]:
    """The overloads of operators that smelt deliberately leaves to ATen and that mutate no argument."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        if namespace != "aten":
            continue
        operator, _, overload = rest.partition(".")
        found = getattr(getattr(torch.ops.aten, operator), overload or "default")
        if chosen(found) is not None and not found._schema.is_mutable:
            yield found
