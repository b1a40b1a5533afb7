"""Names and sources of kernels."""

from __future__ import annotations

from collections.abc import Iterable

from smelt.loops.ir import Origin

MAX_NAME = 60


def kernel_name(origins: Iterable[Origin]) -> str:
    """``fused_add_native_layer_norm``: the ATen operators in order, without duplicates.

    >>> kernel_name([Origin("aten.add.Tensor"), Origin("aten._softmax.default"), Origin("aten.add.Tensor")])
    'fused_add_softmax'
    """
    seen: dict[str, None] = {}
    for origin in origins:
        parts = origin.op.split(".")
        name = parts[1] if len(parts) > 1 else parts[0]
        seen[name.strip("_")] = None
    text = "_".join(seen)
    if len(text) > MAX_NAME:
        text = text[:MAX_NAME].rsplit("_", 1)[0]
    return "".join(
        c if c.isalnum() or c == "_" else "_" for c in ("fused_" + text if len(seen) > 1 else text)
    )
