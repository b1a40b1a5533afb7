"""Whether a compiled function's results are eager's: shapes, dtypes, strides, smelt's promise on numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from smelt.cli.accuracy import difference

LOW = (torch.float16, torch.bfloat16, torch.float32)
DOUBLE_SLACK = 2**14 * torch.finfo(torch.float64).eps
"""What is float64 throughout has no wider reference: it may differ from eager's by this, relative to the
largest value."""


class Disagreement(AssertionError):  # noqa: N818  (a finding, no error of the program)
    """A result that is not eager's; the text says where and by how much."""


def clones(values: Any, dtype: torch.dtype | None = None) -> Any:
    """Copies with the same strides and the same wish for gradients; floats in ``dtype`` if given."""

    def clone(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return dtype if dtype is not None and value in LOW else value
        copy = value.detach()
        if dtype is not None and copy.is_floating_point():
            copy = copy.to(dtype)
        return _same_strides(copy, value).requires_grad_(value.requires_grad)

    return tree_map(clone, values)


def _same_strides(source: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if source.layout is not torch.strided or source.numel() == 0:
        return source.clone()
    reach = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride()))
    room = torch.zeros(reach, dtype=source.dtype).as_strided(like.shape, like.stride())
    if 0 in like.stride():
        return torch.empty_like(source).copy_(source) if _overlaps_oddly(like) else _expanded(source, like)
    return room.copy_(source) if not _overlaps_oddly(like) else source.clone()


def _overlaps_oddly(tensor: torch.Tensor) -> bool:
    """Whether elements share memory in another way than by strides of zero."""
    dims = sorted((st, sz) for sz, st in zip(tensor.shape, tensor.stride()) if sz > 1 and st > 0)
    reach = 1
    for stride, size in dims:
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def _expanded(source: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    narrow = source
    for dim, stride in enumerate(like.stride()):
        if stride == 0:
            narrow = narrow.narrow(dim, 0, 1)
    return narrow.clone().expand(like.shape)


def assert_agree(
    got: Any, eager: Any, exact: Callable[[], Any], *, numbers: bool = True, what: str = "output"
) -> int:
    """Compare two results of the same structure.

    ``exact`` gives the float64 reference, asked only where results differ in their bits; None from it (or
    where a result has no counterpart) means there is none. ``numbers`` False compares shapes and dtypes alone
    (random results). Returns in how many tensors the strides differ.

    Raises:
        Disagreement
    """
    ours, theirs = tree_leaves(got), tree_leaves(eager)
    if len(ours) != len(theirs):
        raise Disagreement(f"{len(ours)} {what}s, eager has {len(theirs)}")
    strides = 0
    wide: list[Any] | None = None
    for position, (value, wanted) in enumerate(zip(ours, theirs)):
        name = f"{what} {position}"
        if not isinstance(wanted, torch.Tensor):
            if numbers and value != wanted and not (value != value and wanted != wanted):
                raise Disagreement(f"{name}: {value!r}, eager {wanted!r}")
            continue
        if not isinstance(value, torch.Tensor):
            raise Disagreement(f"{name}: {type(value).__name__}, eager a tensor")
        if value.shape != wanted.shape or value.dtype != wanted.dtype or value.layout != wanted.layout:
            raise Disagreement(f"{name}: {_kind(value)}, eager {_kind(wanted)}")
        if wanted.layout is not torch.strided:
            value, wanted = value.to_dense(), wanted.to_dense()
        elif wanted.numel() > 1 and _strides(value) != _strides(wanted):
            strides += 1
        if not numbers or _equal(value, wanted):
            continue
        if wide is None:
            wide = tree_leaves(exact())
        reference = wide[position] if len(wide) == len(theirs) else None
        _compare(name, value, wanted, reference)
    return strides


def _compare(name: str, value: torch.Tensor, wanted: torch.Tensor, reference: Any) -> None:
    if wanted.is_complex():
        value, wanted = torch.view_as_real(value.resolve_conj()), torch.view_as_real(wanted.resolve_conj())
        if isinstance(reference, torch.Tensor) and reference.is_complex():
            reference = torch.view_as_real(reference.resolve_conj())
    if not wanted.is_floating_point():
        places = (value != wanted).nonzero()[:1].tolist()
        at = tuple(places[0])
        raise Disagreement(f"{name}: {value[at].item()} at {list(at)}, eager {wanted[at].item()}")
    if not _is_like(reference, wanted):
        reference = wanted.double()
    if not reference.isfinite().all() and _equal(value, reference.to(value.dtype)):
        return  # eager's rounding took it away from where the exact result is not finite
    found = difference(name, wanted, value, reference.double())
    limit = max(found.limit, DOUBLE_SLACK if wanted.dtype is torch.float64 else 0.0)
    if found.why:
        raise Disagreement(f"{name}: {found.why}")
    if not found.contender <= limit:
        raise Disagreement(
            f"{name}: relative error {found.contender:.3g}, eager's {found.eager:.3g} ({found.dtype})"
        )


def _is_like(reference: Any, wanted: torch.Tensor) -> bool:
    return (
        isinstance(reference, torch.Tensor)
        and reference.shape == wanted.shape
        and reference.is_floating_point()
    )


def _equal(value: torch.Tensor, wanted: torch.Tensor) -> bool:
    if value.is_floating_point() or value.is_complex():
        return bool(torch.isclose(value, wanted, rtol=0, atol=0, equal_nan=True).all())
    return torch.equal(value, wanted)


def _strides(tensor: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1]


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


# -- conditioning --------------------------------------------------------------------------------------------

PERTURBED = 8
"""How many runs of eager with values changed in the last bits say how well a computation is conditioned."""


def ill_conditioned(got: Any, expected: Any, rerun: Callable[[torch.Generator], Any]) -> bool:
    """Whether changes in the last bits of what goes in move eager's results as far as ``got`` is from them.

    Roundings, comparisons and sums that cancel turn an error of an ulp into a large one; that is the
    computation's doing. ``rerun`` gives eager's results again with values `shaken` (None: it refuses them). A
    result whose shape or kind differs is never excused.
    """
    ours, theirs = tree_leaves(got), tree_leaves(expected)
    if len(ours) != len(theirs) or not all(isinstance(t, torch.Tensor) for t in (*ours, *theirs)):
        return False
    if any(a.shape != b.shape or a.dtype != b.dtype or a.is_complex() for a, b in zip(ours, theirs)):
        return False
    spread: list[Any] = [torch.zeros_like(t, dtype=torch.float64) for t in theirs]
    special = [torch.zeros_like(t, dtype=torch.bool) for t in theirs]
    for seed in range(PERTURBED):
        other = rerun(torch.Generator().manual_seed(seed))
        if other is None:
            return False
        for position, (a, b) in enumerate(zip(theirs, tree_leaves(other))):
            if a.shape != b.shape:
                return False
            far = (a.double() - b.double()).abs()
            special[position] |= ~far.isfinite() & ~((a == b) | (a.isnan() & b.isnan()))
            spread[position] = torch.maximum(spread[position], torch.nan_to_num(far, posinf=0.0))
    return all(map(_within_spread, ours, theirs, spread, special))


def _within_spread(a: torch.Tensor, b: torch.Tensor, room: torch.Tensor, odd: torch.Tensor) -> bool:
    if torch.equal(a, b):
        return True
    far = (a.double() - b.double()).abs()
    far = torch.where((a == b) | (a.isnan() & b.isnan()) | odd, torch.zeros_like(far), far)
    usual = b.double()[b.double().isfinite()].abs()
    ulp = torch.finfo(b.dtype).eps if b.is_floating_point() else 0.0
    slack = 16 * ulp * float(usual.max()) if usual.numel() else 0.0
    room = torch.maximum(room, room.max() * 0.25) if room.numel() else room
    return bool((far <= 8 * room + slack).all())


def perturbed(tensor: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """An input with its layout and its wish for gradients, changed in the last bits."""
    if not tensor.is_floating_point():
        return tensor
    moved = _same_strides(shaken(tensor.detach(), draw), tensor)
    return moved.requires_grad_(tensor.requires_grad)


def shaken(tensor: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """The values, each moved by up to two units in the last place."""
    if not tensor.is_floating_point():
        return tensor
    step = torch.randint(-2, 3, tensor.shape, generator=draw) * torch.finfo(tensor.dtype).eps
    return (tensor.double() * (1 + step.double())).to(tensor.dtype)
