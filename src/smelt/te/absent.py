"""TVM's forms of tensor expressions that smelt refuses, with the reason."""

from __future__ import annotations

from typing import Any, NoReturn

from smelt.te.errors import refuse


def scan(*args: Any, **options: Any) -> NoReturn:
    """Refused: a stage goes through its axes in any order.

    Raises:
        SmeltError: SM1111, always.
    """
    why = "the steps of a scan go one after the other; a stage's axes go in any order"
    refuse("SM1111", "te.scan", why=why, remedy="topi.cumsum and its like, or torch.compile")


def extern(*args: Any, **options: Any) -> NoReturn:
    """Refused: there are no packed functions to call.

    Raises:
        SmeltError: SM1111, always.
    """
    why = "there are no packed functions, and no builder of statements in te"
    refuse("SM1111", "te.extern", why=why, remedy="te.compute, or a function in smelt.script")


extern_primfunc = extern

__all__ = ["extern", "extern_primfunc", "scan"]
