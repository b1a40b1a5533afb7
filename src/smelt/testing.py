"""Test helpers for users with operators of their own, one end-to-end test each."""

from __future__ import annotations

import random
import unittest
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from smelt.api import compile, reports, reset

Annotation = tuple[Sequence[int], torch.dtype]
"""Sizes of an argument, -1 for dynamic ones, and its dtype."""


class CompileTestCase(unittest.TestCase):
    """A test case whose `check_compiled` compares a compiled program with the original.

    >>> class TestSoftplus(CompileTestCase):
    ...     def runTest(self):
    ...         self.check_compiled(torch.nn.Softplus(), annotations=[((-1, 5), torch.float32)])
    >>> TestSoftplus().run().wasSuccessful()
    True
    """

    def check_compiled(
        self,
        module: Any,
        inputs: Sequence[Any] | None = None,
        annotations: Sequence[Annotation] | None = None,
        *,
        rtol: float | None = None,
        atol: float | None = None,
        graphs: int = 1,
        fallbacks: Sequence[str] = (),
        **options: Any,
    ) -> tuple[Any, Any]:
        """Checks that ``module`` (a module, a function, or TorchScript) gives the same results when compiled.

        Args:
            inputs: its arguments; ``annotations``: sizes and dtypes of arguments that are drawn, twice:
                dynamic sizes differ the second time, and must not cause a recompilation.
            rtol: as for `torch.testing.assert_close`; ``atol``: the same.
            graphs: the least number of compiled graphs.
            fallbacks: the operators that PyTorch may run, by their names in reports.
            options: of `smelt.compile`.

        Ranks, sizes and dtypes have to be equal, NaN in the same places. Returns the last results of the
        compiled program and of the original.

        Raises:
            AssertionError: a check fails.
        """
        if (inputs is None) == (annotations is None):
            raise ValueError("give either inputs or annotations")
        dynamic = any(-1 in sizes for sizes, _ in annotations or ())
        calls = (
            [tuple(inputs)] if inputs is not None else [self.draw(annotations or (), seed) for seed in (0, 1)]
        )
        if isinstance(module, torch.nn.Module):
            module = module.eval()
        reset()
        given: dict[str, Any] = {**({"dynamic": True} if dynamic else {}), **options}
        compiled = compile(module, **given)
        found = wanted = None
        compiled_first = 0
        for number, arguments in enumerate(calls):
            with torch.no_grad():
                wanted = module(*pytree.tree_map(_own, arguments))
                found = compiled(*pytree.tree_map(_own, arguments))
            torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, equal_nan=True)
            if number == 0:
                compiled_first = len(reports())
        left = [each for report in reports() for each in report.fallbacks if each.op not in fallbacks]
        self.assertFalse(left, "; ".join(map(str, left)))
        compiled_graphs = [each for each in reports() if each.kind != "eager"]
        self.assertGreaterEqual(len(compiled_graphs), graphs, "graphs were compiled")
        self.assertEqual(len(reports()), compiled_first, "the second sizes were compiled anew")
        return found, wanted

    def draw(self, annotations: Sequence[Annotation], seed: int = 0) -> tuple[torch.Tensor, ...]:
        """Arguments of these sizes and dtypes; dynamic sizes depend on ``seed``, and are equal at equal
        places.
        """
        generator = torch.Generator().manual_seed(seed)
        sizes = random.Random(seed)
        free: dict[int, int] = {}
        drawn = []
        for dims, dtype in annotations:
            for place, size in enumerate(dims):
                if size == -1 and place not in free:
                    free[place] = sizes.randint(3, 9) + 8 * seed
            shape = [free[place] if size == -1 else size for place, size in enumerate(dims)]
            if dtype.is_floating_point or dtype.is_complex:
                drawn.append(torch.randn(shape, generator=generator).to(dtype))
            elif dtype is torch.bool:
                drawn.append(torch.rand(shape, generator=generator) < 0.5)
            else:
                drawn.append(torch.randint(1, 10, shape, generator=generator, dtype=dtype))
        return tuple(drawn)


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
