"""What Triton's interpreter lacks: libdevice, bfloat16 as hardware rounds it, quick folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from smelt.errors import Unsupported

_NAMES = {"rint": "round", "tgamma": "gamma"}


class Libdevice:
    """Has each function of ``libdevice`` under its name: PyTorch's on the interpreter's arrays."""

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


@cache
def amend_interpreter() -> None:
    """Replaces what Triton's interpreter does wrong or slowly, once for this process.

    It truncates float32 to bfloat16, converts bfloat16 from and to other dtypes by its bits, and folds and
    scans by a function of ours one element after the other.
    """
    from triton.runtime import interpreter

    plain = interpreter.InterpreterBuilder.cast_impl

    def cast(builder: Any, source: Any, kind: Any) -> Any:
        import triton.language as tl

        wanted = kind.scalar
        truths = source.data.dtype == bool  # a comparison's handle keeps the dtype that was compared
        given = tl.int1 if truths else source.dtype.scalar
        if wanted == given or tl.bfloat16 not in (wanted, given):
            return plain(builder, source, kind)
        data = torch.from_numpy(source.data.copy())
        if given == tl.bfloat16:
            result = data.view(torch.bfloat16).to(torch.float32).numpy()
            result = result.astype(interpreter._get_np_dtype(wanted))
        else:
            result = data.to(torch.bfloat16).view(torch.uint16).numpy()
        return interpreter.TensorHandle(result, wanted)

    interpreter.InterpreterBuilder.cast_impl = cast
    interpreter.ReduceOps.generic_reduce = _reduced
    interpreter.ScanOps.generic_scan = _scanned


def _reduced(fold: Any, given: Any) -> list[Any]:
    """Combines neighbours until one is left, as threads do."""
    values, axis = fold.unravel(given, fold.axis)
    arrays = [each.handle.data for each in values]
    while arrays[0].shape[axis] > 1:
        halves = [[each.take(range(side, each.shape[axis], 2), axis) for each in arrays] for side in (0, 1)]
        arrays = _combined(fold, values, *halves)
    if fold.axis is None or not fold.keep_dims:
        arrays = [each.squeeze(axis) for each in arrays]
    return [fold.to_tensor(array, each.dtype) for array, each in zip(arrays, values)]


def _scanned(fold: Any, values: Any) -> list[Any]:
    """Combines each element with the one 1, 2, 4 … places before it."""
    import numpy as np

    arrays = [each.handle.data for each in values]
    places = np.arange(arrays[0].shape[fold.axis])
    places = places.reshape([-1 if dim == fold.axis else 1 for dim in range(arrays[0].ndim)])
    step = 1
    while step < places.size:
        after = _combined(fold, values, [np.roll(each, step, fold.axis) for each in arrays], arrays)
        arrays = [np.where(places < step, *each) for each in zip(arrays, after)]
        step *= 2
    return [fold.to_tensor(array, each.dtype) for array, each in zip(arrays, values)]


def _combined(fold: Any, values: Any, lefts: Sequence[Any], rights: Sequence[Any]) -> list[Any]:
    """The function of a fold on arrays, in the dtypes of ``values``."""
    dtypes = [each.dtype for each in values]
    given = [fold.to_tensor(array, dtype) for side in (lefts, rights) for array, dtype in zip(side, dtypes)]
    made = fold.combine_fn.fn(*given)
    made = made if isinstance(made, tuple) else (made,)
    return [each.handle.data.astype(array.dtype) for each, array in zip(made, lefts)]
