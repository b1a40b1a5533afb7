"""``smelt schema``: an operator's schema, its lowering, and its dialects."""

from __future__ import annotations

import difflib
import sys

import torch
from rich.console import Console

from smelt.errors import SmeltError
from smelt.mlir import bindings, coverage

_DIALECTS = {"linalg": "Linalg", "stablehlo": "StableHLO", "tosa": "TOSA", "torch": "Torch"}
_CPP = {"kernel": "a kernel of smelt's own", "ATen": "ATen's kernel, by choice", "no": "not lowered"}
_CPP["ATen or own"] = f"{_CPP['ATen']}; a kernel of smelt's own with the option own"
_TORCH = {
    "yes": "yes",
    "apart": "written as simpler operations",
    "operator": "as a torch.operator, which no pipeline knows",
}


def schema(console: Console, name: str) -> None:
    """Prints the facts on every overload that ``name`` matches.

    ``name``: ``aten::add.Tensor``, ``aten.add.Tensor``, ``add.Tensor``, or without the overload for all.

    Raises:
        SmeltError: SM0911, there is no such operator.
    """
    for number, overload in enumerate(find(name)):
        if number:
            console.print()
        _tell(console, overload)


def print_table() -> None:
    """Prints the table of all operators, in Markdown, on standard output."""
    sys.stdout.write(coverage.table())


def find(name: str) -> list[torch._ops.OpOverload]:
    """The overloads that a name matches; those that write to an argument only if there are no others.

    >>> [coverage.name_of(each) for each in find("aten.add.Tensor")]
    ['aten::add.Tensor']

    Raises:
        SmeltError: SM0911, there is no such operator.
    """
    known = torch._C._dispatch_get_all_op_names()
    wanted = _normal(name)
    found = [each for each in known if each == wanted or each.split(".")[0] == wanted]
    if not found:
        near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.75)
        hint = "did you mean " + " or ".join(near) + "?" if near else None
        raise SmeltError("SM0911", f"no operator {name!r}", remedy=hint)
    overloads = [_overload(each) for each in sorted(found)]
    writing = [each for each in overloads if each._schema.is_mutable]
    return [each for each in overloads if each not in writing] or writing


def _normal(name: str) -> str:
    """``aten.add.Tensor`` and ``add.Tensor`` → ``aten::add.Tensor``.

    >>> _normal("add.Tensor"), _normal("torch.ops.prims.sin"), _normal("mine::op")
    ('aten::add.Tensor', 'prims::sin', 'mine::op')
    """
    if "::" in name:
        return name
    namespace, dot, rest = name.removeprefix("torch.ops.").partition(".")
    known = {each.split("::")[0] for each in torch._C._dispatch_get_all_op_names()}
    return f"{namespace}::{rest}" if dot and namespace in known else f"aten::{namespace}{dot}{rest}"


def _overload(name: str) -> torch._ops.OpOverload:
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), operator)
    found: torch._ops.OpOverload = getattr(packet, overload or "default")
    return found


def _tell(console: Console, overload: torch._ops.OpOverload) -> None:
    console.print(str(overload._schema), markup=False, soft_wrap=True)
    if not bindings.available():
        console.print("  (the dialects need the MLIR bindings: pip install 'torch-smelt\\[mlir]')")
        return
    found = coverage.coverage_of(overload)
    needs = found.needs
    lines = {"C++": _CPP[found.cpp]}
    if needs is not None:
        lines["as"] = ", ".join(sorted(needs.bodies)) or "a view: an index transform, no loop"
        if needs.elementwise:
            lines["with"] = ", ".join(sorted(needs.elementwise))
    for key, title in _DIALECTS.items():
        said = found.dialects[key]
        lines[title] = _TORCH[said] if key == "torch" else said.replace("not ", "yes, but not ", 1)
    for title, text in lines.items():
        console.print(f"  {title:<10} {text}", markup=False, soft_wrap=True)
