"""Linalg through IREE, another compiler: nothing but the text of the module goes there (extra ``[iree]``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import smelt
from tests.mlir.test_linalg import compare, wide
from tests.mlir.test_models import First, bert

compiler = pytest.importorskip("iree.compiler", reason="needs the extra [iree]")
runtime = pytest.importorskip("iree.runtime", reason="needs the extra [iree]")

pytestmark = pytest.mark.slow
F = torch.nn.functional
DYNAMIC = torch.export.Dim.DYNAMIC
ROWS = {0: DYNAMIC}
X, Y = torch.randn(4, 6), torch.randn(7, 6)
TAPS = torch.randn(4, 3, 3, 3)


def load(text: str) -> Callable[[Sequence[Any]], list[torch.Tensor]]:
    """The function ``main`` of a module, compiled by IREE for this processor."""
    options = ["--iree-llvmcpu-target-cpu=host"]
    code = compiler.compile_str(text, target_backends=["llvm-cpu"], input_type="auto", extra_args=options)
    context = runtime.SystemContext(config=runtime.Config("local-sync"))
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, code))

    def main(values: Sequence[Any]) -> list[torch.Tensor]:
        returned = context.modules.module["main"](*(value.numpy() for value in values))
        several = returned if isinstance(returned, (tuple, list)) else (returned,)
        return [torch.from_numpy(each.to_host().copy()) for each in several]

    return main


PROGRAMS: dict[str, tuple[Any, Any, Any, Any]] = {
    "rows": (lambda x: (x.softmax(1), x.t() @ x, x.sum(0), x.cumsum(0)), (X,), (Y,), (ROWS,)),
    "gather": (
        lambda x, at: (x[at] * 2, torch.cat([x, x + 1])),
        (X, torch.tensor([1, -2])),
        (Y, torch.tensor([6, 0, 3])),
        (ROWS, ROWS),
    ),
    "images": (
        lambda x, taps: (F.max_pool2d(F.conv2d(x, taps, stride=2, padding=1).relu(), 2),),
        (torch.randn(2, 3, 16, 16), TAPS),
        (torch.randn(3, 3, 16, 16), TAPS),
        (ROWS, None),
    ),
    "bert": (
        First(bert()).eval(),
        (torch.randint(0, 100, (3, 12)),),
        (torch.randint(0, 100, (5, 9)),),
        ({0: DYNAMIC, 1: DYNAMIC},),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@torch.no_grad()
def test_programs_at_two_sizes(name: str) -> None:
    function, inputs, others, dims = PROGRAMS[name]
    main = load(str(smelt.export(function, inputs, dynamic_shapes=dims)))
    for given in (inputs, others):
        expected = function(*given)
        if isinstance(function, torch.nn.Module):
            exact = function.double()(*map(wide, given))
            function.float()
        else:
            exact = function(*map(wide, given))
        compare(main(given), _listed(expected), _listed(exact))


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.Tensor) else list(value)
