"""The parts of loop graphs that targets support, from each handler's tables, and the parts common to all."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.lowering import needs
from smelt.lowering.needs import METHODS, Needs
from smelt.mlir.control import CONTROL
from smelt.ops.table import TABLE


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The operations that a target supports.

    ``bodies``: names of the classes of `smelt.loops.ir` that it emits. ``elementwise``: rows of
    `smelt.ops.table`. ``methods``: the other methods of `smelt.ops.Handler`. ``calls``: ATen operators
    (``aten.clone.default``) that it emits as calls.
    """

    bodies: frozenset[str]
    elementwise: frozenset[str] = frozenset(TABLE)
    methods: frozenset[str] = METHODS
    calls: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        unknown = (
            *(self.bodies - set(needs.BODIES)),
            *(self.elementwise - TABLE.keys()),
            *(self.methods - METHODS),
        )
        assert not unknown, f"no such thing: {', '.join(sorted(unknown))}"

    def lacks(self, asked: Needs) -> list[str]:
        """The names of required but unsupported features.

        >>> some = Capabilities(frozenset({"Pointwise"}), frozenset({"add"}))
        >>> some.lacks(Needs(frozenset({"Pointwise", "Sort"}), frozenset({"add", "erfinv"})))
        ['Sort', 'erfinv']
        """
        bodies = asked.bodies if asked.calls - self.calls else asked.bodies - {"Extern"}
        wanting = bodies - self.bodies, asked.elementwise - self.elementwise, asked.methods - self.methods
        named = sorted(call.removeprefix("aten.") for call in asked.calls - self.calls)
        return [*sorted(set().union(*wanting) - {"Extern"}), *(f"aten.{each}" for each in named)]


CALLS = frozenset({"aten.clone.default", "aten._local_scalar_dense.default", *CONTROL})
"""The called operators that every target supports."""

ASSERTIONS = ("aten._assert_async.default", "aten._assert_async.msg")
"""The called operators that targets support if they can raise (`ArrayDialect.raises`)."""

SEED = "aten.randint.low"
"""The call that draws a loop graph's seed of random numbers (`ArrayDialect.seed`)."""

BODIES = frozenset(
    {"Pointwise", "Reduction", "Contraction", "Scan", "Fold", "Scatter", "Sort", "Bind", "Check"}
)
"""The bodies that every target evaluates."""
