"""libdevice where kernels are interpreted: PyTorch's functions on the interpreter's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.errors import Unsupported

_NAMES = {"rint": "round", "tgamma": "gamma"}


class Libdevice:
    """Has each function of ``libdevice`` under its name."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(torch, _NAMES.get(name, name), None)
        if function is None:
            raise Unsupported(f"the interpreter has no {name}")

        def call(*args: Any) -> Any:
            import triton.language as tl
            from triton.runtime.interpreter import TensorHandle

            (first, *_) = args
            given = torch.broadcast_tensors(*(torch.as_tensor(_array(each)) for each in args))
            result = function(*given).numpy()
            dtype = tl.int1 if result.dtype == bool else first.dtype.scalar
            kind = tl.block_type(dtype, list(result.shape)) if result.shape else dtype
            return tl.tensor(TensorHandle(result, dtype), kind)

        return call


def _array(value: Any) -> Any:
    return value.handle.data if hasattr(value, "handle") else torch.tensor(value, dtype=torch.float64).numpy()
