"""Decomposition of histograms: the bin of each element by its position between edges, then counts.

Source: ``aten/src/ATen/native/Histogram.cpp`` and ``cpu/HistogramKernel.cpp``. The last bin includes its
upper edge, and elements outside (or NaN) do not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def histc(self: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """The number of elements in each of ``bins`` equal parts of min..max (if equal: of the data's range)."""
    if not self.is_floating_point() or min > max:  # eager refuses
        return NotImplemented
    x = self.reshape(-1)
    if min == max and x.numel() != 0:
        low, high = x.amin(), x.amax()
        same = low == high
        low, high = torch.where(same, low - 1, low), torch.where(same, high + 1, high)
        finite = low.isfinite() & high.isfinite()
        aten._assert_async.msg(finite, "histc: the range of the data is not finite")
    else:
        span = (min, max) if min != max else (min - 1, max + 1)
        low, high = (torch.full((), float(end), dtype=x.dtype, device=x.device) for end in span)
    inside = (x >= low) & (x <= high)
    at = ((x - low) / (high - low) * bins).to(torch.int64)
    at = torch.where(inside, at.clamp(0, bins - 1), torch.zeros_like(at))
    return torch.zeros(bins, dtype=x.dtype, device=x.device).index_add(0, at, inside.to(x.dtype))


def _even_edges(values: Tensor, bins: int, span: Sequence[float] | None) -> Tensor:
    """``bins + 1`` equidistant edges over ``span``, or over the range of each dimension's values."""
    if span is not None:
        low, high = span
        if low == high:
            low, high = low - 0.5, high + 0.5
        return torch.linspace(low, high, bins + 1, dtype=values.dtype, device=values.device)
    if values.numel() == 0:
        return torch.linspace(0, 1, bins + 1, dtype=values.dtype, device=values.device)
    least, most = values.amin(), values.amax()
    finite = least.isfinite() & most.isfinite()
    aten._assert_async.msg(finite, "histogram: the range of the data is not finite")
    same = least == most
    least, most = torch.where(same, least - 0.5, least), torch.where(same, most + 0.5, most)
    step = (most - least) / bins
    number = torch.arange(bins + 1, device=values.device).to(values.dtype)
    return torch.where(number < (bins + 1) // 2, least + step * number, most - step * (bins - number))


def _counted(points: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """Counts of points (N, D) in the bins between D lists of edges: (bins of each dimension…)."""
    counts = [each.numel() - 1 for each in edges]
    inside = torch.ones(points.shape[0], dtype=torch.bool, device=points.device)
    flat = torch.zeros(points.shape[0], dtype=torch.int64, device=points.device)
    for dim, (count, own) in enumerate(zip(counts, edges, strict=True)):
        x = points[:, dim].contiguous()
        inside = inside & (x >= own[0]) & (x <= own[-1])
        at = torch.bucketize(x, own.contiguous(), right=True) - 1
        flat = flat * count + at.clamp(0, count - 1)
    flat = torch.where(inside, flat, torch.zeros_like(flat))
    each = torch.ones_like(points[:, 0]) if weight is None else weight.reshape(-1)
    each = torch.where(inside, each, torch.zeros_like(each))
    total = torch.zeros(math.prod(counts), dtype=points.dtype, device=points.device)
    result = total.index_add(0, flat, each).reshape(counts)
    if density:
        result = result / result.sum()
        for dim, own in enumerate(edges):
            widths = own.diff()
            result = result / widths.reshape([-1 if d == dim else 1 for d in range(len(counts))])
    return result


def _spans(span: Sequence[float] | None, rank: int) -> list[Sequence[float] | None]:
    return [None] * rank if span is None else [span[2 * d : 2 * d + 2] for d in range(rank)]


def _points(x: Tensor) -> Tensor:
    """The points with all but the last dimension flattened."""
    return x.reshape(-1, x.shape[-1])


def _histogram(
    x: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    points = x.reshape(-1, 1)
    edges = _even_edges(points[:, 0], bins, range)
    return _counted(points, [edges], weight, density), edges


def _histogram_between(
    x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    return _counted(x.reshape(-1, 1), [bins], weight, density), bins.clone()


def _edges_of(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    points = _points(x)
    spans = _spans(range, len(bins))
    return [_even_edges(points[:, d], count, spans[d]) for d, count in enumerate(bins)]


def _of_counts(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    return _counted(_points(x), _edges_of(x, bins, range=range), weight, density)


def _between(
    x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    return _counted(_points(x), bins, weight, density)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.histc.default: histc,
    aten.histogram.bin_ct: _histogram,
    aten.histogram.bins_tensor: _histogram_between,
    aten._histogramdd_bin_edges.default: _edges_of,
    aten._histogramdd_from_bin_cts.default: _of_counts,
    aten._histogramdd_from_bin_tensors.default: _between,
}
