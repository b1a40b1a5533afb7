"""Handlers: interpretations of loop functions. A new target is one subclass of `Handler`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from smelt.ops.table import TABLE
from smelt.symbolic import Expr

Value = Any
"""An argument or result of a handler's methods: a tensor, a string, a recorded node, a dtype …"""


class Handler:
    """A loop function's world. Eight methods; the elementwise table comes through one of them."""

    def elementwise(self, name: str, *args: Value) -> Value:
        """The implementation of a row of `smelt.ops.table.TABLE`."""
        raise _unknown(self, f"elementwise {name}")

    def load(self, buffer: str, index: Sequence[Expr]) -> Value:
        """The element of ``buffer`` at a multi-dimensional index."""
        raise _unknown(self, "load")

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> Value:
        """A number."""
        raise _unknown(self, "constant")

    def index_expr(self, expr: Expr, dtype: torch.dtype) -> Value:
        """The value of an index or size expression as an element of integer (or floating) ``dtype``."""
        raise _unknown(self, "index_expr")

    def to_dtype(self, x: Value, dtype: torch.dtype) -> Value:
        """Conversion as ``Tensor.to`` does it: rounding to nearest even, float to int by truncation."""
        raise _unknown(self, "to_dtype")

    def bitcast(self, x: Value, dtype: torch.dtype) -> Value:
        """The same bits as another dtype of the same width."""
        raise _unknown(self, "bitcast")

    def masked(self, mask: Value, body: Callable[[], Value], other: float | int | bool) -> Value:
        """``body()`` where ``mask``, else ``other``; nothing in ``body`` is loaded where it is false."""
        raise _unknown(self, "masked")

    def indirect_index(self, x: Value, size: Expr, *, wrap: bool = True, check: bool | str = True) -> Expr:
        """Turn an integer value into an index symbol for a dimension of ``size`` elements.

        ``wrap``: negative values count from the end. ``check``: a value out of range raises IndexError when
        the kernel runs, or RuntimeError where that is the text given.
        """
        raise _unknown(self, "indirect_index")


def _unknown(handler: Handler, what: str) -> NotImplementedError:
    return NotImplementedError(f"{type(handler).__name__} does not know {what}")


_current = threading.local()


class _Ops:
    """Forwards to the handler of the current scope: ``ops.exp(x)``, ``ops.load("x", [i, j])``. The table's
    operators and `Handler`'s methods are methods here; nothing else is forwarded.
    """


def _elementwise(name: str) -> Callable[..., Value]:
    return lambda self, *args: _current.stack[-1].elementwise(name, *args)


def _method(name: str) -> Callable[..., Value]:
    return lambda self, *args, **options: getattr(_current.stack[-1], name)(*args, **options)


for _name in vars(Handler):
    if not _name.startswith("_"):
        setattr(_Ops, _name, _method(_name))
for _name in TABLE:
    setattr(_Ops, _name, _elementwise(_name))


ops: Any = _Ops()
"""The one name that loop functions use."""


def current() -> Handler:
    """The handler that loop functions run under right now."""
    handler: Handler = _current.stack[-1]
    return handler


@contextmanager
def using(handler: Handler) -> Iterator[Handler]:
    """Run loop functions under ``handler`` inside the block; scopes nest and are per thread."""
    stack = getattr(_current, "stack", None)
    if stack is None:
        stack = _current.stack = []
    stack.append(handler)
    try:
        yield handler
    finally:
        stack.pop()
