"""Groups that are matrix products, and their kernels: equal products of a graph share one kernel."""

from __future__ import annotations

from collections.abc import Hashable

from smelt.loops.ir import Contraction, Pointwise
from smelt.nest.ir import Kernel
from smelt.nest.origins import moved, numbers_in
from smelt.records import replace
from smelt.schedule.grouping.fusion import Group
from smelt.schedule.grouping.items import Item, Work
from smelt.schedule.loops import Target
from smelt.schedule.names import kernel_name
from smelt.schedule.nests import BuiltKernel, Deduplicated, Nests, row_buffers
from smelt.schedule.products.elements import over_elements
from smelt.schedule.products.integer_nests import IntegerProduct
from smelt.schedule.products.integers import Weight
from smelt.schedule.products.nests import ProductBuilder
from smelt.schedule.products.split_dimensions import product_of


def attach(work: Work, groups: list[Group], products: ProductKernels) -> list[Group]:
    """Fuses each product with the pointwise group that reads its result, if there is only one.

    The fused group runs at the position of its last part: everything between the two is independent of the
    product.
    """
    found, gone = list(groups), set()
    for position, group in enumerate(groups):
        core = group.items[0]
        if not isinstance(core.body, Contraction):
            continue
        source = str(core.writes[0])
        found[position] = replace(found[position], product=core)
        readers = [place for place, other in enumerate(found) if source in other.reads]
        if len(readers) != 1 or source in work.outside or found[readers[0]].product is not None:
            continue
        reader = found[readers[0]]
        if reader.is_extern or not all(isinstance(item.body, Pointwise) for item in reader.items):
            continue
        if row_buffers(work, reader):  # a tile has no whole row
            continue
        if not products.takes(core, reader):
            continue
        reads = reader.reads | {read.buffer for read in core.reads}
        found[readers[0]] = replace(reader, product=core, reads=reads)
        gone.add(position)
    return [group for position, group in enumerate(found) if position not in gone]


class ProductKernels:
    """The kernels of groups that have a product.

    Products with equal operands, sizes, layouts and epilogues share one kernel.
    """

    def __init__(self, work: Work, target: Target) -> None:
        self.work, self.target = work, target
        self.nests = Nests(work)
        self._once = Deduplicated(work)
        self._elements: dict[Hashable, Kernel | None] = {}

    def takes(self, core: Item, reader: Group) -> bool:
        """Whether ``reader`` can be the epilogue of the product ``core``."""
        trial = self.nests.build(reader, set(reader.writes))
        return self._over_elements(core, trial) is not None

    def _over_elements(self, core: Item, epilogue: BuiltKernel) -> Kernel | None:
        """The epilogue, converted by `smelt.schedule.products.elements.over_elements`."""
        key = self._once.key(*_done(core, epilogue))
        if key not in self._elements:
            assert isinstance(core.body, Contraction)
            product = product_of(core.body, self.work.graph)
            found = None if product is None else over_elements(epilogue, str(core.writes[0]), product)
            self._elements[key] = found
        return self._elements[key]

    def build(self, group: Group, stored: set[str]) -> BuiltKernel:
        """The kernel of ``group``; ``stored``: the buffers that must be in memory after the run."""
        core = group.product
        assert core is not None
        alone = group.items[0] is core
        epilogue = None if alone else self.nests.build(group, stored)
        origin = core.node.origin
        origins = (origin, *(() if epilogue is None else epilogue.kernel.origins))

        def build() -> BuiltKernel:
            flat = None
            if epilogue is not None:
                kernel = self._over_elements(core, epilogue)
                assert kernel is not None
                flat = replace(epilogue, kernel=moved(kernel, 1))
            whole = isinstance(core.body, Contraction) and isinstance(core.body.rhs, Weight)
            builder = IntegerProduct if whole else ProductBuilder
            return builder(self.work, core, flat, self.target).build()

        title = f"{kernel_name([origin])}_tiled"
        return self._once.kernel(*_done(core, epilogue), title, origins, build)


def _done(core: Item, epilogue: BuiltKernel | None) -> tuple[Hashable, list[str]]:
    """The structure of a product's kernel, and its buffers, for `Deduplicated`."""
    if epilogue is None:
        return (core.code, core.sizes), core.buffers
    kernel = epilogue.kernel
    about = kernel.params, kernel.body, numbers_in(kernel)
    return (core.code, core.sizes, *about), [*core.buffers, *epilogue.buffers]
