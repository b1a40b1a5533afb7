"""Programs for the Triton target; as a script: interpret them, or make machine code of their kernels.

``python -m tests.codegen.triton.programs interpret|compile|everywhere`` prints a line of JSON for each;
``everywhere`` compiles for all architectures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

ARCHITECTURES = (80, 90, 100)
EVERYWHERE = ("pointwise", "transposed", "layer_norm", "sum_of_columns", "scatter", "bfloat16")
"""Programs that are compiled for all architectures; the others for 90 alone."""


def architectures_of(name: str) -> tuple[int, ...]:
    """The architectures that a program is compiled for."""
    if name in EVERYWHERE:
        return ARCHITECTURES
    return (90, 100) if "descriptors" in name else (90,)


def _rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _training(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(F.layer_norm(torch.tanh(x) * w, (24,)).pow(3).sum(), x)
    return gradient


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "pointwise": (lambda x, y: F.gelu(x * 2 + y), lambda: [_rows(7, 300), _rows(300)]),
    "views": (lambda x: x.permute(2, 0, 1)[:, ::2] + 1, lambda: [_rows(4, 6, 33)]),
    "transposed": (lambda x: x.T.contiguous(), lambda: [_rows(70, 90)]),
    "padded": (lambda x: F.pad(x, (1, 2), value=3.0), lambda: [_rows(8, 30)]),
    "softmax": (lambda x: F.softmax(x, -1), lambda: [_rows(8, 300)]),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(F.gelu(x), (300,), w, b),
        lambda: [_rows(8, 300), _rows(300), _rows(300)],
    ),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        lambda: [_rows(4, 3, 9, 9), _rows(3), _rows(3)],
    ),
    "sum_of_columns": (lambda x: (x * 2).sum(0), lambda: [_rows(80, 30)]),
    "sum_of_all": (lambda x: x.sum(), lambda: [_rows(80, 30)]),
    "sum_of_long_rows": (lambda x: (x * 2).sum(-1), lambda: [_rows(3, 5000)]),
    "sum_over_two": (lambda x: x.square().mean((0, 2)), lambda: [_rows(5, 6, 7)]),
    "products": (lambda x: x.prod(-1), lambda: [_rows(5, 40)]),
    "extremes": (lambda x: (x.amax(-1), x.amin(0)), lambda: [_rows(9, 65)]),
    "extremes_of_nan": (
        lambda x: (x.amax(-1), x.argmax(-1), x.argmin(-1)),
        lambda: [torch.tensor([[1.0, float("nan"), 3.0, float("nan")], [2.0, 5.0, 5.0, 1.0]])],
    ),
    "positions": (lambda x: (x.argmax(-1), x.argmin(0), x.argmax()), lambda: [_rows(8, 300)]),
    "position_in_a_long_row": (lambda x: (x.argmax(-1), x.argmin()), lambda: [_rows(2, 40001)]),
    "variance_of_long_rows": (lambda x: torch.var_mean(x, (0, 2)), lambda: [_rows(8, 3, 6000) + 9]),
    "variance": (lambda x: x.var(-1), lambda: [_rows(6, 70)]),
    "any_all": (lambda x: ((x > 0).any(-1), (x > -1).all(-1)), lambda: [_rows(8, 5)]),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), lambda: [_rows(8, 50)]),
    "scan": (lambda x: x.cumsum(-1), lambda: [_rows(8, 30)]),
    "scan_of_long_rows": (lambda x: x.cumsum(-1), lambda: [_rows(2, 5000)]),
    "scan_of_columns": (lambda x: x.cumprod(0), lambda: [_rows(70, 40)]),
    "scan_of_pairs": (lambda x: (x.cummax(-1), x.logcumsumexp(0)), lambda: [_rows(5, 40)]),
    "scan_in_order": (lambda x: x.mode(-1)[0], lambda: [torch.randint(0, 4, (5, 40))]),
    "lookup": (lambda t, i: F.embedding(i, t), lambda: [_rows(8, 300), torch.tensor([1, 2, 7])]),
    "put": (
        lambda x, i, y: torch.index_put(x, [i], y),
        lambda: [_rows(9, 6), torch.tensor([0, 3, -2, 1]), _rows(4, 6)],
    ),
    "gather": (lambda x, i: x.gather(1, i), lambda: [_rows(4, 9), torch.randint(0, 9, (4, 5))]),
    "scatter": (
        lambda x, i: torch.zeros(4, 9, dtype=x.dtype).index_add(1, i, x),
        lambda: [_rows(4, 6), torch.tensor([0, 3, 3, 8, 0, 1])],
    ),
    "integers": (
        lambda x: (x // 3, x % 5, x >> 1, x * x, x.sum()),
        lambda: [torch.randint(-50, 50, (8, 30))],
    ),
    "small_integers": (lambda x: x + x, lambda: [torch.randint(-100, 100, (40,), dtype=torch.int8)]),
    "bool": (lambda x: (x > 0) & (x < 1) | torch.isnan(x), lambda: [_rows(8, 30)]),
    "bfloat16": (lambda x: F.silu(x) * x, lambda: [_rows(8, 30).bfloat16()]),
    "float16_sum": (lambda x: (x * 1.5).sum(-1), lambda: [_rows(8, 30).half()]),
    "float64": (lambda x: torch.exp(x).sum(-1) / 3, lambda: [_rows(8, 30).double()]),
    "special": (
        lambda x: torch.lgamma(x) + torch.erfinv(x / 9) + x.log1p() + x.digamma(),
        lambda: [torch.rand(40)],
    ),
    "floors": (
        lambda x, y: (torch.floor_divide(x, y), torch.remainder(x, y)),
        lambda: [_rows(40), _rows(40)],
    ),
    "no_contraction": (lambda x, y: x / 1e-6 + y / 1e-6, lambda: [_rows(50), _rows(50)]),
    "pad_after_split_sum": (lambda x: F.pad(x.sum(0), (2, 3)), lambda: [_rows(3000, 7)]),
    "adaptive_pool_and_sum": (lambda x: F.adaptive_avg_pool2d(x, 2).sum((2, 3)), lambda: [_rows(2, 3, 7, 9)]),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3).mul_(2).add_(x), lambda: [_rows(60), _rows(60)]),
    "arange": (lambda x: x + torch.arange(9) * 2**40, lambda: [torch.zeros(9, dtype=torch.int64)]),
    "empty": (lambda x: x.sum(-1) + 1, lambda: [_rows(4, 0)]),
    "product_of_matrices": (lambda x, y: F.gelu(x @ y) + 1, lambda: [_rows(33, 40), _rows(40, 50)]),
    "sorted": (lambda x: x.sort(-1)[0] * 2, lambda: [_rows(5, 9)]),
    "sorted_stably": (
        lambda x: x.sort(dim=-1, stable=True, descending=True),
        lambda: [torch.tensor([[0.0, -0.0, float("nan"), 2.0, float("-inf"), 0.0, float("nan"), 2.0]])],
    ),
    "sorted_in_64_bits": (
        lambda x, y: (x.sort(dim=-1, stable=True), y.topk(3)),
        lambda: [torch.tensor([[2**40, 5, -(2**63), 2**63 - 1, 2**40 + 1, 5, -7]]), _rows(4, 70).double()],
    ),
    "sorted_long": (lambda x: x.sort(-1)[0] * 2, lambda: [_rows(5000)]),
    "scatter_in_order": (
        lambda x, i, y: (x.index_add(0, i, y), torch.index_put(x, [i], y)),
        lambda: [_rows(9, 6), torch.tensor([0, 3, 3, 8, 3, 1]), _rows(6, 6)],
    ),
    "many_in_order": (
        lambda x, i: torch.softmax(x.index_add(0, i, x) * 2, -1),
        lambda: [_rows(1500), torch.randint(0, 1500, (1500,))],
    ),
    "scatter_of_maxima": (
        lambda x, i: x.scatter_reduce(0, i, x * 3, "amax").scatter_reduce(0, i, x, "prod"),
        lambda: [torch.randn(20), torch.arange(20) // 3],
    ),
    "scatter_of_nan": (
        lambda x, i, y: x.scatter_reduce(0, i, y, "amin", include_self=False),
        lambda: [_rows(4), torch.tensor([0, 0, 1, 2]), torch.tensor([1.0, -float("nan"), 2.0, -0.0])],
    ),
    "training": (_training, lambda: [_rows(5, 24).requires_grad_(), _rows(24)]),
}
"""What is called, and what makes its inputs."""


def _flat(result: Any) -> list[torch.Tensor]:
    return (
        [each for part in result for each in _flat(part)] if isinstance(result, (tuple, list)) else [result]
    )


ZEROS_DIFFER = ("epilogue",)
"""The signs of its zeros are the machine's: they come from gelu (`tests.lowering.test_pointwise`)."""

Programs = dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]]


def interpret(name: str, programs: Programs = PROGRAMS, products: Any = False) -> dict[str, Any]:
    """Compile with the interpreted target, compare with eager; which calls ATen runs, and why."""
    from triton.runtime import interpreter

    import smelt
    from smelt.backend import backend_for
    from smelt.pipeline.triton import Interpreted
    from tests.lowering.harness import compare, widened

    function, make = programs[name]
    torch.manual_seed(0)
    torch.use_deterministic_algorithms("in_order" in name)
    inputs = make()
    smelt.reset()
    got = torch.compile(function, backend=backend_for(Interpreted(products, 132)))(*inputs)
    expected = _flat(function(*inputs))
    exact = _flat(function(*(widened(x) for x in inputs)))
    for value, eager, wide in zip(_flat(got), expected, exact, strict=True):
        compare(value, eager, wide, slack=8.0, zeros=name not in ZEROS_DIFFER)
    reports = smelt.reports()
    return {
        "kernels": sum(len(report.kernels) for report in reports),
        "fallbacks": [f"{each.op}: {each.reason}" for report in reports for each in report.fallbacks],
        "externs": [op for report in reports for op in report.externs],
        "kinds": [report.kind for report in reports],
        "cast": id(interpreter.InterpreterBuilder.cast_impl),
    }


def compiled(name: str, programs: Programs, products: Any, everywhere: bool = False) -> dict[str, Any]:
    """What each kernel of a program takes on each architecture; ``everywhere``: on all of them.
    The kernels do not run.
    """
    from smelt.backend import backend_for
    from smelt.codegen.triton.cubins import Machine, compile_orders, order_of
    from smelt.codegen.triton.unit import print_kernels
    from smelt.pipeline.targets import Code
    from smelt.pipeline.triton import Interpreted
    from smelt.runtime.library import PythonLibrary

    found: list[dict[str, Any]] = []

    class Cubins(Interpreted):
        def build(self, runs: Sequence[Any]) -> Any:
            kernels = print_kernels(runs)
            for architecture in ARCHITECTURES if everywhere else architectures_of(name):
                orders = [order_of(each, aligned=True) for each in kernels.values()]
                for each in compile_orders(orders, Machine("cuda", architecture)):
                    registers, stack = each.usage()
                    facts = {"registers": registers, "stack": stack, "shared": each.shared}
                    contracts = "fma.rn.f32" in each.ptx
                    facts["multiplies"] = "mma" in each.ptx
                    facts["copies"] = "cp.async.bulk.tensor" in each.ptx
                    found.append(
                        {"kernel": each.name, "architecture": architecture, **facts, "fma": contracts}
                    )
            return Code("", PythonLibrary({run.name: lambda *_: 0 for run in runs}), {}, "triton")

    function, make = programs[name]
    torch.manual_seed(0)
    torch.compile(function, backend=backend_for(Cubins(products, 132)))(*make())
    return {"kernels": found, "too_much": [each for each in found if takes_too_much(each, name)]}


def takes_too_much(kernel: dict[str, Any], name: str) -> bool:
    """Whether a kernel needs a stack, or more registers or shared memory than every GPU has for a block.
    8 bytes of stack are those of a call; libdevice's ``lgamma`` has a table there.
    """
    most = 99 if kernel["multiplies"] else 48
    stack = kernel["stack"] > 8 and name != "special"
    return stack or kernel["registers"] > 255 or kernel["shared"] > most * 1024


def main(
    what: str,
    programs: Programs = PROGRAMS,
    products: Callable[[str], Any] = lambda name: False,
) -> None:
    """Prints what became of each program, or of those that the command line names. ``products``: whether a
    program's are kernels, or by which tiles.
    """
    ways = {"interpret": interpret, "compile": compiled, "everywhere": partial(compiled, everywhere=True)}
    run = ways[what]
    for name in sys.argv[2:] or programs:
        torch._dynamo.reset()
        try:
            said = run(name, programs, products(name))
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps({"name": name, **said}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
