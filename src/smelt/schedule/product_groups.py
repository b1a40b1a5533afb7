"""Which groups are matrix products, and their kernels: equal products of a graph are built once."""

from __future__ import annotations

from typing import Any

from smelt.loops.ir import Contraction, Pointwise
from smelt.loops.straightline import canonical, with_buffers
from smelt.records import replace
from smelt.schedule.apart import product_of
from smelt.schedule.elements import over_elements
from smelt.schedule.fusion import Group
from smelt.schedule.items import Work
from smelt.schedule.loops import Target
from smelt.schedule.nests import BuiltKernel, KernelBuilder, row_buffers
from smelt.schedule.operands import operand_code
from smelt.schedule.products import ProductBuilder


def attach(work: Work, groups: list[Group]) -> list[Group]:
    """The groups, each product with the pointwise group that reads its result, where only one does.

    Such a group runs where its last part ran: everything between the two is independent of the product.
    """
    merged = list(groups)
    for group in groups:
        core = group.items[0]
        if not isinstance(core.body, Contraction):
            continue
        source = str(core.writes[0])
        group.product = core
        readers = [other for other in groups if source in other.reads]
        if len(readers) != 1 or source in work.outside or readers[0].product is not None:
            continue
        reader = readers[0]
        if reader.is_extern or not all(isinstance(item.body, Pointwise) for item in reader.items):
            continue
        if row_buffers(work, reader):  # a tile has no whole row
            continue
        trial = KernelBuilder(work, reader, set(reader.writes)).build()
        product = product_of(core.body, work.graph)
        if product is None or over_elements(trial, source, product) is None:
            continue
        reader.product = core
        reader.reads |= {read.buffer for read in core.reads}
        merged.remove(group)
    return merged


class ProductKernels:
    """The kernels of groups that have a product.

    A model's layers repeat: a product whose operands, sizes, layouts and epilogue are those of an earlier one
    gets its kernel, with buffers of its own.
    """

    def __init__(self, work: Work, target: Target) -> None:
        self.work, self.target = work, target
        self.made: dict[tuple[Any, ...], tuple[BuiltKernel, list[str]]] = {}

    def build(self, group: Group, stored: set[str]) -> BuiltKernel:
        """The kernel of ``group``; ``stored``: the buffers that must be in memory when it has run."""
        core = group.product
        assert core is not None
        alone = group.items[0] is core
        epilogue = None if alone else KernelBuilder(self.work, group, stored).build()
        builder = ProductBuilder(self.work, core, epilogue, self.target)
        numbers: dict[str, int] = {}
        key = self._key(builder, numbers)
        names = list(numbers)
        made = self.made.get(key)
        if made is None:
            made = self.made[key] = builder.build(), names
        built, before = made
        renamed = dict(zip(before, names, strict=True))
        name, origins = builder.name_and_origins()
        return replace(
            built,
            kernel=replace(built.kernel, name=name, origins=origins),
            buffers=tuple(renamed[buffer] for buffer in built.buffers),
        )

    def _key(self, builder: ProductBuilder, numbers: dict[str, int]) -> tuple[Any, ...]:
        """What the kernel depends on; ``numbers`` gets the buffers in the order in which they come up."""

        def number(buffer: str) -> int:
            return numbers.setdefault(buffer, len(numbers))

        body = builder.product.body
        operands = []
        for function in (body.lhs, body.rhs):
            code = operand_code(function, body, self.work.graph)
            operands.append(canonical(with_buffers(code, lambda name: f"#{number(name)}"), ""))
        source = number(builder.source)
        after: tuple[Any, ...] = ()
        if builder.epilogue is not None:
            kernel = replace(builder.epilogue.kernel, name="")
            after = (kernel, tuple(number(buffer) for buffer in builder.epilogue.buffers))
        buffers = (self.work.buffers[buffer] for buffer in numbers)
        layouts = tuple((buffer.dtype, buffer.shape, buffer.strides) for buffer in buffers)
        return (body.shape, body.reduce_shape, body.dtype, *operands, source, after, layouts)
