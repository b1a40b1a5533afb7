"""Tensor intrinsics: small functions with equivalent implementations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from smelt.errors import SmeltError
from smelt.nest.interpreter import run_kernel
from smelt.nest.intrinsics import intrinsic_named
from smelt.nest.ir import Block, Kernel, Stage, Text
from smelt.nest.primitives.blocks import Intrinsic, text_of
from smelt.nest.tree import stages, with_body
from smelt.records import dataclass, field
from smelt.runtime import toolchain
from smelt.script.module import PrimFunc
from smelt.symbolic import numel
from smelt.te.building import build


@dataclass(frozen=True, slots=True)
class CppText:
    """C++ statements that compute an intrinsic's description.

    Each parameter ``A`` is a pointer to its first element, with the strides ``A_0``, ``A_1`` … of its
    dimensions. ``strides``: required strides, None for any: ``{"A": (None, 1)}``. ``requires``: macros of the
    compiler; if one is missing, the description is compiled instead.
    """

    source: str
    strides: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorIntrin:
    """A named intrinsic: ``desc`` defines its result, ``impl`` computes it: another function, or a target's
    own text. Register tiles (``smelt.tile_8x48``) are known without being registered
    (`smelt.nest.intrinsics`).
    """

    name: str
    desc: PrimFunc
    impl: PrimFunc | CppText | Text

    registry: ClassVar[dict[str, TensorIntrin]] = {}

    @property
    def intrinsic(self) -> Intrinsic:
        if isinstance(self.impl, Text):
            return Intrinsic(self.name, self.desc.kernel, self.impl)
        if isinstance(self.impl, PrimFunc):
            return Intrinsic(self.name, self.desc.kernel, self.impl.kernel)
        source, strides, requires = self.impl.source, self.impl.strides, self.impl.requires
        text = text_of(self.name, self.desc.kernel, source, strides, requires)
        if isinstance(text, str):
            raise SmeltError("SM1039", f"the intrinsic {self.name}: {text}")
        return Intrinsic(self.name, self.desc.kernel, text)

    @staticmethod
    def register(name: str, desc: PrimFunc, impl: PrimFunc | CppText, override: bool = False) -> TensorIntrin:
        """Registers an intrinsic. Both functions are first run on the same random arguments; a text is
        compiled for that.

        Raises:
            SmeltError: SM1039, the name is taken, or the parameters or results of the two differ.
        """
        if name in TensorIntrin.registry and not override:
            raise SmeltError("SM1039", f"the intrinsic {name} is registered already", remedy="override=True")
        made = TensorIntrin(name, desc, impl)
        other = made.intrinsic.impl
        if isinstance(other, Text):
            block = Block((Stage(name, (), desc.kernel.body, text=other),))
            other = with_body(desc.kernel, block)
        why = differs(desc.kernel, other)
        if why is not None:
            raise SmeltError("SM1039", f"the intrinsic {name} does not compute its description: {why}")
        TensorIntrin.registry[name] = made
        return made

    @staticmethod
    def get(name: str, allow_missing: bool = False) -> TensorIntrin | None:
        """The intrinsic of a name; None if there is none and ``allow_missing``.

        Raises:
            SmeltError: SM1039, there is no such intrinsic.
        """
        found = TensorIntrin.registry.get(name)
        if found is None and (own := intrinsic_named(name, toolchain.find().vector_bytes // 4)) is not None:
            assert isinstance(own.impl, Text)
            return TensorIntrin(name, PrimFunc(own.desc), own.impl)
        if found is None and not allow_missing:
            known = ", ".join(sorted(TensorIntrin.registry)) or "none"
            raise SmeltError("SM1039", f"there is no intrinsic {name!r}", why=f"registered are: {known}")
        return found


def differs(one: Kernel, other: Kernel) -> str | None:
    """A difference between the results of two kernels on random arguments; None if they are equal."""
    kinds = [[(param.name, param.dtype, param.shape) for param in kernel.params] for kernel in (one, other)]
    if kinds[0] != kinds[1]:
        return "their parameters are not the same"
    if any(not size.is_Integer for param in one.params for size in param.shape):
        return "the shapes of an intrinsic are numbers"
    generator = torch.Generator().manual_seed(0)
    given = {}
    for param in one.params:
        count = int(numel(param.shape))
        if param.dtype.is_floating_point:
            given[param.name] = torch.randn(count, generator=generator).to(param.dtype)
        else:
            given[param.name] = torch.randint(0, 100, (count,), generator=generator).to(param.dtype)
    made = []
    for kernel in (one, other):
        memory = {name: value.clone() for name, value in given.items()}
        if any(stage.text for stage in stages(kernel.body)):
            shapes = {param.name: [int(size) for size in param.shape] for param in kernel.params}
            build(PrimFunc(kernel))(*(memory[name].view(shape) for name, shape in shapes.items()))
        else:
            run_kernel(kernel, memory)
        made.append(memory)
    for name, value in made[0].items():
        if not torch.allclose(value.double(), made[1][name].double(), rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"{name} differs"
    return None
