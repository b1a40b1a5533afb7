"""Does a compiled function do all that eager does: values, strides, aliases, mutations, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from tests.conformance.agreement import assert_agree, clones

Function = Callable[..., Any]


def compiled(function: Function, dynamic: bool | None = False, whole: bool = True) -> Function:
    torch._dynamo.reset()
    return torch.compile(function, backend="smelt", fullgraph=whole, dynamic=dynamic)


def same(
    function: Function, *inputs: Any, dynamic: bool | None = False, calls: int = 2, whole: bool = True
) -> None:
    """Assert that ``calls`` calls, eager and compiled, on equal inputs leave the same behind.

    Results agree in values, dtype, shape and strides; results share memory with the same inputs and with the
    same other results; inputs are changed alike. ``whole``: Dynamo has to take the function in one graph.
    """
    theirs, mine = clones(inputs), clones(inputs)
    fast = compiled(function, dynamic, whole)
    for _ in range(calls):
        expected, got = function(*theirs), fast(*mine)
        _agree(got, expected, "output")
        _agree(mine, theirs, "input")
        assert _strides(got) == _strides(expected)
        assert _aliases(got, mine) == _aliases(expected, theirs)


def _agree(got: Any, expected: Any, what: str) -> None:
    assert_agree(got, expected, lambda: expected, what=what)


def raises_alike(function: Function, *inputs: Any, dynamic: bool | None = False) -> None:
    """Assert that eager raises, and that what is compiled raises the same exception type."""
    try:
        function(*clones(inputs))
    except Exception as error:
        kind = type(error)
    else:
        raise AssertionError("eager does not raise")
    try:
        compiled(function, dynamic)(*clones(inputs))
    except Exception as error:
        chain = [error]
        while chain[-1].__cause__ is not None:
            chain.append(chain[-1].__cause__)  # type: ignore[arg-type]
        assert any(isinstance(each, kind) for each in chain) or kind.__name__ in str(error), chain
    else:
        raise AssertionError(f"eager raises {kind.__name__}, smelt nothing")


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _strides(tree: Any) -> list[tuple[int, ...]]:
    return [
        tuple(stride for size, stride in zip(t.shape, t.stride()) if size > 1) if t.numel() else ()
        for t in _tensors(tree)
    ]


def _aliases(results: Any, inputs: Any) -> list[tuple[int, int]]:
    """Which result shares memory with which input, or with which earlier result (counted from there on)."""
    outs, ins = _tensors(results), _tensors(inputs)
    pairs = []
    for position, out in enumerate(outs):
        others = [*ins, *outs[:position]]
        pairs += [
            (position, other)
            for other, tensor in enumerate(others)
            if out.numel() and tensor.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
        ]
    return pairs
