"""Records: dataclasses that are hashed, compared and replaced as Python's frozen ones are."""

from __future__ import annotations

import dataclasses

import pytest

from smelt.nest.ir import Advance, Block
from smelt.records import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class _Named:
    kind: str
    same: int = 1
    record: tuple[int, ...] = field(default=(), compare=False)


@dataclass(slots=True)
class _Changing:
    number: int


def test_equal_ones_are_one_key() -> None:
    assert _Named("a", 2) == _Named("a", 2, (3,)) != _Named("b", 2)
    assert len({_Named("a", 2), _Named("a", 2, (3,)), _Named("b", 2)}) == 2
    with pytest.raises(TypeError):
        hash(_Changing(1))


def test_fields_are_replaced_whatever_they_are_called() -> None:
    one = _Named("a", 2, (3,))
    assert replace(one, kind="b", record=(4,)) == dataclasses.replace(one, kind="b", record=(4,))
    assert replace(one, same=None).same is None  # type: ignore[arg-type]
    assert replace(one) == one and replace(one) is not one
    with pytest.raises(TypeError):
        replace(one, nothing=1)


def test_what_follows_from_other_fields_is_made_anew() -> None:
    outer = Block((Advance("carry", "v0"),))
    inside = replace(outer, stmts=())
    assert inside.stmts == inside.nested == ()
