"""``tvm.s_tir.schedule.testing``: a trace says all that a schedule did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.script import tir as T
from smelt.tir import Schedule, Trace
from tvm.ir import assert_structural_equal


def assert_structural_equal_ignore_global_symbol(lhs: Any, rhs: Any, *args: Any, **options: Any) -> None:
    """Whether two functions are the same, whatever they are called outside.

    Raises:
        ValueError: they are not.
    """
    one, other = (each.with_attr("global_symbol", "main") for each in (lhs, rhs))
    assert_structural_equal(one, other, *args, **options)


def verify_trace_roundtrip(
    sch: Schedule, mod: Any, *, debug_mask: Any = "all", text_format: str | Sequence[str] = ("python", "json")
) -> Schedule:
    """A schedule that the trace of another makes anew, from its text and from its JSON: it is the same."""
    new = sch
    for form in [text_format] if isinstance(text_format, str) else text_format:
        new = Schedule(mod, debug_mask=debug_mask)
        if form == "json":
            Trace.apply_json_to_schedule(sch.trace.as_json(), new)
        else:
            assert form == "python", form
            exec("\n".join(sch.trace.as_python()), {"T": T}, {"sch": new})
        assert_structural_equal(new.mod, sch.mod)
        assert new.trace.as_python() == sch.trace.as_python()
    return new
