"""``tvm.testing``: comparisons, and pytest's parameters by TVM's names."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch


def assert_allclose(
    actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7, **options: Any
) -> None:
    """Whether two arrays are as near as TVM asks."""
    del options
    np.testing.assert_allclose(_array(actual), _array(desired), rtol=rtol, atol=atol, verbose=True)


def _array(value: Any) -> Any:
    return value.detach().numpy() if isinstance(value, torch.Tensor) else np.asanyarray(value)


def parameter(*values: Any, ids: Any = None, by_dict: Any = None) -> Any:
    """A fixture that has each value in turn."""
    if by_dict:
        ids, values = zip(*by_dict.items())

    @pytest.fixture(params=values, ids=ids)
    def found(request: Any) -> Any:
        return request.param

    return found


def parameters(*value_sets: Any, ids: Any = None) -> list[Any]:
    """Fixtures whose values go together."""
    number = itertools.count()
    return [_fixture(next(number), value_sets, ids) for _ in value_sets[0]]


def _fixture(position: int, value_sets: Any, ids: Any) -> Any:
    @pytest.fixture(params=range(len(value_sets)), ids=ids)
    def found(request: Any) -> Any:
        return value_sets[request.param][position]

    return found


def fixture(function: Any = None, *, cache_return_value: bool = False) -> Any:
    """pytest's fixture."""
    del cache_return_value
    return pytest.fixture if function is None else pytest.fixture(function)


def device_enabled(target: Any) -> bool:
    """Whether there is such a device: this machine's CPU alone."""
    return str(target).startswith(("llvm", "c"))


def run_with_gpu_lock(function: Any, *args: Any) -> Any:
    return function(*args)


def main() -> None:
    """What a test file calls where it runs by itself."""
