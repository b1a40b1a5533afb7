"""The shape of Linalg's IR: what is an operand, a view, a named operation, and what is asserted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.mlir.support import filecheck

pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")

import smelt

F = torch.nn.functional
DYNAMIC = torch.export.Dim.DYNAMIC
BOTH = ({0: DYNAMIC},)
X, Y = torch.ones(4, 6), torch.ones(7, 6)


def test_affine_loads_are_operands() -> None:
    exported = smelt.export(lambda x, y: x.t() + y[0], [torch.ones(3, 4), torch.ones(2, 3)])
    filecheck(
        exported,
        """
        // CHECK-DAG: #[[T:.*]] = affine_map<(d0, d1) -> (d1, d0)>
        // CHECK: func.func @main(%[[X:.*]]: tensor<3x4xf32>, %[[Y:.*]]: tensor<2x3xf32>)
        // CHECK: linalg.generic {{.*}}indexing_maps = [#[[T]],{{.*}} ins(%[[X]]
        // CHECK-NOT: tensor.extract %
        // CHECK: return
        """,
    )


def test_views_are_views() -> None:
    exported = smelt.export(
        lambda x: (x.reshape(-1, 2, 3), x[1:, 2:4], x.reshape(-1)), [X], dynamic_shapes=BOTH
    )
    filecheck(
        exported,
        """
        // CHECK-DAG: tensor.expand_shape %{{.*}} {{\\[\\[}}0], [1, 2]]
        // CHECK-DAG: tensor.extract_slice %{{.*}}[1, 2]
        // CHECK-DAG: tensor.collapse_shape %{{.*}} {{\\[\\[}}0, 1]]
        // CHECK: return
        """,
    )
    assert "linalg.generic" not in str(exported)


def test_products_and_convolutions_are_named() -> None:
    def program(x: Any, y: Any, image: Any, taps: Any) -> Any:
        return (
            F.linear(x, y),
            torch.bmm(x.reshape(2, 2, 6), x.reshape(2, 6, 2)),
            F.conv2d(image, taps, stride=2, padding=1),
        )

    exported = smelt.export(program, [X, Y, torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3)])
    filecheck(
        exported,
        """
        // CHECK: #[[T:.*]] = affine_map<(d0, d1, d2) -> (d1, d2)>
        // CHECK: linalg.matmul indexing_maps = [#{{.*}}, #[[T]], #{{.*}}]
        // CHECK: linalg.batch_matmul
        // CHECK: tensor.pad
        // CHECK: linalg.conv_2d_nchw_fchw {{.*}}strides = dense<2>
        """,
    )


def test_locations_are_the_users_lines() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.tanh()

    exported = smelt.export(Model(), [X])
    assert "test_linalg_ir.py" in exported.module.operation.get_asm(enable_debug_info=True)


def test_convolutions_of_groups_are_named() -> None:
    exported = smelt.export(
        lambda x, each, groups: (F.conv2d(x, each, groups=4), F.conv2d(x, groups, groups=2)),
        [torch.ones(1, 4, 8, 8), torch.ones(4, 1, 3, 3), torch.ones(6, 2, 3, 3)],
    )
    filecheck(
        exported,
        """
        // CHECK-DAG: linalg.depthwise_conv_2d_nchw_chw {{.*}} ins(%arg0, %{{.*}}, tensor<4x3x3xf32>)
        // CHECK-DAG: tensor.expand_shape %arg0 {{\\[\\[}}0], [1, 2], [3], [4]] output_shape [1, 2, 2, 8, 8]
        // CHECK-DAG: linalg.conv_2d_ngchw_gfchw
        // CHECK: return
        """,
    )


def test_a_gather_is_an_extract_within_its_range() -> None:
    exported = smelt.export(
        lambda x, at: x[:, at] * 2, [X, torch.tensor([1, 2])], dynamic_shapes=({0: DYNAMIC}, {0: DYNAMIC})
    )
    filecheck(
        exported,
        """
        // CHECK: func.func @main(%[[X:.*]]: tensor<?x6xf32>, %[[AT:.*]]: tensor<?xi64>) -> tensor<?x?xf32>
        // CHECK: linalg.generic {{.*}} ins(%[[AT]] : tensor<?xi64>)
        // CHECK: %[[ROW:.*]] = linalg.index 0 : index
        // CHECK: cf.assert %{{.*}}, "IndexError: index out of range
        // CHECK: %[[PLACE:.*]] = arith.index_cast %{{.*}} : i64 to index
        // CHECK: tensor.extract %[[X]][%[[ROW]], %[[PLACE]]]
        // CHECK: arith.mulf
        // CHECK: linalg.yield
        // CHECK-NOT: linalg.generic
        // CHECK: return
        """,
    )


def test_what_holds_of_sizes_is_asserted_before_anything_is_computed() -> None:
    exported = smelt.export(lambda x, y: x + y, [X, X], dynamic_shapes=({0: DYNAMIC}, {0: DYNAMIC}))
    filecheck(
        exported,
        """
        // CHECK: func.func @main(%[[X:.*]]: tensor<?x6xf32>, %[[Y:.*]]: tensor<?x6xf32>) -> tensor<?x6xf32>
        // CHECK-DAG: %[[N:.*]] = tensor.dim %[[X]], %c0
        // CHECK-DAG: %[[M:.*]] = tensor.dim %[[Y]], %c0
        // CHECK: %[[SAME:.*]] = arith.cmpi eq, %[[M]], %[[N]] : index
        // CHECK: cf.assert %[[SAME]], "RuntimeError: dimension 0 of y
        // CHECK: linalg.generic {{.*}} ins(%[[X]], %[[Y]] : tensor<?x6xf32>, tensor<?x6xf32>)
        """,
    )


def test_reductions_keep_the_loops_of_their_operands() -> None:
    exported = smelt.export(lambda x: x.sum(0), [X], dynamic_shapes=BOTH)
    filecheck(
        exported,
        """
        // CHECK: linalg.fill ins(%{{.*}} : f64)
        // CHECK: linalg.generic {{.*}}iterator_types = ["parallel", "reduction"]} ins(%arg0
        // CHECK: arith.extf {{.*}} f32 to f64
        // CHECK: arith.addf
        // CHECK: return
        """,
    )


def test_scans_and_scatters_are_loops_over_tensors() -> None:
    def program(x: Any, at: Any) -> Any:
        return x.cumsum(0), torch.zeros(3, 6).index_add(0, at, x)

    exported = smelt.export(program, [X, torch.zeros(4, dtype=torch.long)])
    filecheck(
        exported,
        """
        // CHECK: scf.for %[[K:.*]] = {{.*}} iter_args({{.*}}) -> (tensor<6xf64>, tensor<4x6xf32>)
        // CHECK: %[[ROW:.*]] = tensor.extract_slice %arg0[%[[K]], 0] [1, 6] [1, 1]
        // CHECK: linalg.generic {{.*}} ins(%[[ROW]] : tensor<6xf32>)
        // CHECK: tensor.insert_slice
        // CHECK: scf.for
        // CHECK: cf.assert {{.*}} "{{.*}}out of
        // CHECK: tensor.insert %
        // CHECK: return
        """,
    )
