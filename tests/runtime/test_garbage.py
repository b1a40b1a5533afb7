"""What compiling leaves goes with it, and nothing else is looked through."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from smelt.runtime.garbage import garbage_goes, garbage_waits


class Circle:
    """Garbage as soon as nobody else holds it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _no_other_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_circles_made_meanwhile_go_at_the_end() -> None:
    earlier = weakref.ref(Circle())
    with garbage_waits(), garbage_goes(traced=False):
        made, kept = weakref.ref(Circle()), Circle()
        assert made() is not None
    assert made() is None
    assert earlier() is not None, "the whole heap was looked through"
    assert kept.itself is kept
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert earlier() is None, "what was there before stays garbage for the next full collection"


@pytest.mark.parametrize("traced", [True, False])
def test_what_tracing_left_goes_before_where_asked(traced: bool) -> None:
    earlier = weakref.ref(Circle())
    with garbage_waits():
        left = weakref.ref(Circle())
        with garbage_goes(traced=traced):
            assert (left() is None) == traced
            assert earlier() is not None, "the whole heap was looked through"
    assert gc.get_freeze_count() == 0


def test_they_go_where_compiling_raises() -> None:
    made = None
    with pytest.raises(ValueError, match="why"), garbage_waits(), garbage_goes(traced=False):
        made = weakref.ref(Circle())
        raise ValueError("why")
    assert made is not None and made() is None


def test_a_heap_that_somebody_froze_stays_frozen() -> None:
    """Their count would not say: frozen objects still die when nobody holds them, in any thread."""
    frozen = weakref.ref(Circle())
    gc.freeze()
    try:
        with garbage_waits(), garbage_goes(traced=True):
            made = weakref.ref(Circle())
        assert made() is not None
        gc.collect()
        assert made() is None
        assert frozen() is not None
    finally:
        gc.unfreeze()
    gc.collect()
    assert frozen() is None
