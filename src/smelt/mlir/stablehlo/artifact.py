"""StableHLO modules as portable artifacts: bytecode that other versions of StableHLO's compilers read."""

from __future__ import annotations

from typing import Any

from smelt.errors import SmeltError
from smelt.mlir.bindings import ir, stablehlo
from smelt.mlir.diagnostics import diagnostics_of
from smelt.mlir.modules import clone


def portable_artifact(module: Any, version: str | None = None) -> bytes:
    """A module as the bytes of a portable artifact; the module is not modified.

    Args:
        module: a StableHLO module.
        version: the oldest StableHLO version that must read it ("1.9.3"); None: the version twelve weeks
            before the bindings', which StableHLO's compatibility guarantee covers.

    Raises:
        SmeltError: SM0732, the module has an operation that this version lacks.

    >>> import torch, smelt
    >>> portable_artifact(smelt.export(torch.nn.Tanh(), [torch.ones(3)], to="stablehlo").module)[:4]
    b'ML\xefR'
    """
    if version is None:
        required = stablehlo.StablehloCompatibilityRequirement.WEEK_12
        version = stablehlo.get_version_from_compatibility_requirement(required)
    with module.context, ir.Location.unknown(), diagnostics_of(module.context) as found:
        try:
            return bytes(
                stablehlo.serialize_portable_artifact(clone(module), version)
            )  # serialization changes the module
        except Exception as error:  # the bindings' errors have no public base
            said = "; ".join(map(str, found)) or str(error)
            raise SmeltError(
                "SM0732",
                f"the module cannot be a portable artifact of StableHLO {version}",
                why=said,
                remedy="ask for a newer version",
            ) from error
