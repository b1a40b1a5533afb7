"""The protocol: scopes nest, are per thread, and an operator that nobody knows says so."""

from __future__ import annotations

import threading

import pytest

from smelt.ops import TABLE, Handler, ops, using


class Named(Handler):
    def __init__(self, name: str) -> None:
        self.name = name

    def elementwise(self, name: str, *args: object) -> str:
        return f"{self.name}.{name}({', '.join(map(str, args))})"


def test_scopes_nest_and_end_even_after_an_error() -> None:
    with using(Named("outer")):
        assert ops.exp("x") == "outer.exp(x)"
        with pytest.raises(ValueError), using(Named("inner")):
            assert ops.add("x", "y") == "inner.add(x, y)"
            raise ValueError
        assert ops.exp("x") == "outer.exp(x)"


def test_each_thread_has_its_own_handler() -> None:
    seen: list[str] = []

    def other() -> None:
        with using(Named("theirs")):
            seen.append(ops.exp("x"))

    with using(Named("ours")):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert ops.exp("x") == "ours.exp(x)"
    assert seen == ["theirs.exp(x)"]


def test_every_row_is_reached_through_elementwise() -> None:
    with using(Named("h")):
        for name in TABLE:
            assert getattr(ops, name)() == f"h.{name}()"


def test_what_is_no_operator_and_what_is_not_implemented() -> None:
    with using(Handler()):
        with pytest.raises(AttributeError):
            ops.frobnicate()
        with pytest.raises(NotImplementedError, match="Handler does not know elementwise exp"):
            ops.exp("x")
