"""What the handler of a dialect can do, said by the handler itself."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.lowering.needs import BODIES, METHODS, Needs
from smelt.ops.table import TABLE


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Each dialect's package has one, as ``CAPABILITIES``, made from the tables that its emitter works with.

    ``bodies``: names of the classes of `smelt.loops.ir` that it emits. ``elementwise``: rows of
    `smelt.ops.table`. ``methods``: the other methods of `smelt.ops.Handler`. ``calls``: ATen operators
    (``aten.clone.default``) that it emits as such.
    """

    bodies: frozenset[str]
    elementwise: frozenset[str] = frozenset(TABLE)
    methods: frozenset[str] = METHODS
    calls: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        unknown = (
            *(self.bodies - set(BODIES)),
            *(self.elementwise - TABLE.keys()),
            *(self.methods - METHODS),
        )
        assert not unknown, f"no such thing: {', '.join(sorted(unknown))}"

    def lacks(self, needs: Needs) -> list[str]:
        """What is asked for and not there, by name.

        >>> some = Capabilities(frozenset({"Pointwise"}), frozenset({"add"}))
        >>> some.lacks(Needs(frozenset({"Pointwise", "Sort"}), frozenset({"add", "erfinv"})))
        ['Sort', 'erfinv']
        """
        bodies = needs.bodies if needs.calls - self.calls else needs.bodies - {"Extern"}
        wanting = bodies - self.bodies, needs.elementwise - self.elementwise, needs.methods - self.methods
        named = sorted(call.removeprefix("aten.") for call in needs.calls - self.calls)
        return [*sorted(set().union(*wanting) - {"Extern"}), *(f"aten.{each}" for each in named)]
