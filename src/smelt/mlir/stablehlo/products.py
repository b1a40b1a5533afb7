"""Matrix products and convolutions in StableHLO."""

from __future__ import annotations

import torch

from smelt.lowering.products.contractions import Geometry
from smelt.mlir.arrays.convolutions import plain_padding, regrouped
from smelt.mlir.arrays.dialect import Array, Dot, Shape
from smelt.mlir.attributes import i64, i64s
from smelt.mlir.bindings import ir, stablehlo
from smelt.mlir.stablehlo.operations import Operations


def dot(hlo: Operations, lhs: Array, rhs: Array, dims: Dot) -> Array:
    """``stablehlo.dot_general``."""
    numbers = stablehlo.DotDimensionNumbers.get(
        list(dims.lhs_batch), list(dims.rhs_batch), list(dims.lhs_contracting), list(dims.rhs_contracting)
    )
    left = [d for d in range(lhs.rank) if d not in (*dims.lhs_batch, *dims.lhs_contracting)]
    right = [d for d in range(rhs.rank) if d not in (*dims.rhs_batch, *dims.rhs_contracting)]
    shape = (
        *(lhs.shape[d] for d in (*dims.lhs_batch, *left)),
        *(rhs.shape[d] for d in right),
    )
    return hlo.write("dot_general", [lhs, rhs], lhs.dtype, shape, dot_dimension_numbers=numbers)


def convolution(hlo: Operations, x: Array, weight: Array, geometry: Geometry, shape: Shape) -> Array | None:
    """``stablehlo.convolution``; a transposed one has its input dilated and its weight reversed."""
    rank, groups = x.rank - 2, geometry.groups
    spatial = list(range(2, 2 + rank))
    out_dim, in_dim = 0, 1
    pads = [(p, p) for p in geometry.padding]
    strides, dilated = list(geometry.stride), [1] * rank
    if geometry.transposed:
        weight = hlo.reverse(weight, spatial)
        if groups > 1:
            weight = regrouped(hlo, weight, groups)
        else:
            out_dim, in_dim = 1, 0
        strides, dilated = [1] * rank, list(geometry.stride)
        if not all(size.is_Integer for size in weight.shape[2:]):
            return None
        pads = plain_padding(geometry, weight.shape[2:])
    numbers = stablehlo.ConvDimensionNumbers.get(
        input_batch_dimension=0,
        input_feature_dimension=1,
        input_spatial_dimensions=spatial,
        kernel_input_feature_dimension=in_dim,
        kernel_output_feature_dimension=out_dim,
        kernel_spatial_dimensions=spatial,
        output_batch_dimension=0,
        output_feature_dimension=1,
        output_spatial_dimensions=spatial,
    )
    padding = ir.DenseElementsAttr.get(torch.tensor(pads, dtype=torch.int64).reshape(-1, 2).numpy())
    return hlo.write(
        "convolution",
        [x, weight],
        x.dtype,
        shape,
        window_strides=i64s(strides),
        padding=padding,
        lhs_dilation=i64s(dilated),
        rhs_dilation=i64s(geometry.dilation),
        dimension_numbers=numbers,
        feature_group_count=i64(groups),
        batch_group_count=i64(1),
    )
