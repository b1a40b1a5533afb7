"""What becomes of every higher-order operator, and that the table in the documentation says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops.associative_scan import associative_scan, associative_scan_op
from torch._higher_order_ops.effects import _register_effectful_op
from torch._higher_order_ops.foreach_map import foreach_map
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.triton_kernel_wrap import (
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)
from torch._higher_order_ops.while_loop import while_loop
from torch._higher_order_ops.wrap import wrap, wrap_activation_checkpoint
from torch._library.effects import EffectType
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.nn.attention.flex_attention import flex_attention
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.capture import Program, capture_function
from smelt.capture.aot import program_from_aot
from smelt.contract import clustered, contracted, graph, unsupported
from smelt.contract.higher_order import BODIES, DEFINED, higher_order_name

pytestmark = pytest.mark.usefixtures("own_cache", "fresh")

hops = torch.ops.higher_order
PAGE = Path(__file__).parent.parent / "docs" / "higher-order.md"
ROW = re.compile(r"^\| `(\w+)` \| ([\w ]+) \| (yes|no) \|$", re.MULTILINE)


@torch.library.custom_op("smelt_hops::double", mutates_args=("x",))
def double(x: Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("smelt_hops::noted", mutates_args=())
def noted(x: Tensor) -> Tensor:
    return x * 2


@noted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_register_effectful_op(torch.ops.smelt_hops.noted.default, EffectType.ORDERED)


@torch.compiler.nested_compile_region
def region(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sin()


@torch._dynamo.nonstrict_trace
def traced_whole(x: Tensor) -> Tensor:
    return x.sin() * 2


class TwiceAsSteep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        return upstream * ctx.saved_tensors[0].cos() * 2


def steep(x: Tensor) -> Tensor:
    return x.sin() * 2


def doubled_in_place(x: Tensor) -> Tensor:
    y = x + 1
    double(y)
    return y.sin()


def printed(x: Tensor) -> Tensor:
    torch._higher_order_ops.print("{}", 3)
    return x.sin() + 1


def quantized(x: Tensor) -> Tensor:
    from torch._higher_order_ops._invoke_quant import InvokeQuant

    return InvokeQuant()(steep, x) + 1


def turns(x: Tensor) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin() * 2), (torch.tensor(0), x))


SMALL = torch.linspace(-3.0, 4.0, 24).reshape(4, 6)
BYTES = (SMALL * 10).to(torch.int8)
HEADS = torch.linspace(-1.0, 1.0, 2 * 16 * 8).sin().reshape(1, 2, 16, 8)
BF16 = torch.bfloat16

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "associative_scan": (lambda x: associative_scan_op(lambda a, b: [a * b], [x], ())[0] + 1, (SMALL,)),
    "auto_functionalized_v2": (doubled_in_place, (SMALL,)),
    "autograd_function_apply": (lambda x: TwiceAsSteep.apply(x) + 1, (SMALL,)),
    "cond": (lambda x: torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,)), (SMALL,)),
    "flat_apply": (lambda x: traced_whole(x) + 1, (SMALL,)),
    "flex_attention": (lambda q: flex_attention(q, q, q, score_mod=lambda s, *_: s.tanh()), (HEADS,)),
    "foreach_map": (lambda x, y: foreach_map(torch.ops.aten.add.Tensor, [x, y], [y, x]), (SMALL, SMALL + 1)),
    "hints_wrapper": (lambda x: hops.hints_wrapper(steep, (x,), {}, hints={"a": 1}) + 1, (SMALL,)),
    "invoke_quant_packed": (quantized, (SMALL,)),
    "invoke_subgraph": (lambda x, y: region(region(x, y), y), (SMALL, SMALL + 1)),
    "map_impl": (lambda x: map_over(steep, x), (SMALL,)),
    "out_dtype": (
        lambda x, y: hops.out_dtype(torch.ops.aten.mm.default, torch.int32, x, y) + 1,
        (BYTES, BYTES.t()),
    ),
    "print": (printed, (SMALL,)),
    "scan": (lambda x: scan(lambda c, a: (c + a, c * a), x[0], x, dim=0), (SMALL,)),
    "strict_mode": (lambda x: hops.strict_mode(steep, (x,)) + 1, (SMALL,)),
    "tag_activation_checkpoint": (lambda x: checkpoint(steep, x, use_reentrant=False) + x, (SMALL,)),
    "while_loop": (turns, (SMALL,)),
    "with_effects": (lambda x: noted(x.sin()) + 1, (SMALL,)),
    "wrap": (lambda x: wrap(steep, x) + x, (SMALL,)),
    "wrap_activation_checkpoint": (lambda x: wrap_activation_checkpoint(steep, x) + x, (SMALL,)),
    "wrap_with_autocast": (
        lambda x: hops.wrap_with_autocast("cpu", BF16, True, True, lambda a: a @ a.t(), x).float() * 2,
        (SMALL,),
    ),
    "wrap_with_set_grad_enabled": (lambda x: hops.wrap_with_set_grad_enabled(False, steep, x) + x, (SMALL,)),
}
"""Operator → a program that has it, and its arguments."""

WITHOUT_EAGER = {"associative_scan", "wrap_activation_checkpoint"}
"""Eager PyTorch runs these on graphs only."""

LEFT = {
    "call_torchbind": hops.call_torchbind,
    "run_and_save_rng_state": run_and_save_rng_state,
    "run_with_rng_state": run_with_rng_state,
    "triton_kernel_wrapper_functional": triton_kernel_wrapper_functional,
    "triton_kernel_wrapper_mutation": triton_kernel_wrapper_mutation,
}
"""Operators that need a GPU, a class of C++, or a generator's state: their graphs are not run here."""


@dataclass(slots=True)
class Seen:
    """The higher-order operators of the graphs that smelt got, and of those in the contract form."""

    captured: set[str]
    kept: set[str]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found, expand = Seen(set(), set()), graph.expand

    def watched(program: Program, *args: Any) -> Program:
        expanded = expand(program, *args)
        for names, each in ((found.captured, program), (found.kept, expanded)):
            targets = {node.target for node in each.graph_module.graph.nodes if node.op == "call_function"}
            names.update(str(higher_order_name(target)) for target in targets if higher_order_name(target))
        return expanded

    monkeypatch.setattr(graph, "expand", watched)
    return found


def results(function: Callable[..., Any], args: tuple[Tensor, ...], trained: bool) -> list[Any]:
    """The outputs, and the gradients by the arguments."""
    given = [arg.detach().clone().requires_grad_(trained) for arg in args]
    leaves = [leaf for leaf in pytree.tree_leaves(function(*given)) if isinstance(leaf, Tensor)]
    if trained:
        sum(leaf.sum() for leaf in leaves if leaf.requires_grad).backward()  # type: ignore[union-attr]
    return [leaf.detach() for leaf in leaves] + [each.grad for each in given if trained]


def happened(name: str, seen: Seen) -> str:
    """What became of an operator, in the words of the table."""
    names = {name, f"{name}_stack_output"}
    if names & seen.kept:
        return "compiled bodies" if name in BODIES else "kernel" if name == "flex_attention" else "call"
    if not names & seen.captured:
        return "inlined by PyTorch"
    if name == "with_effects":
        return "call"
    return "taken apart" if name in DEFINED else "inlined"


def rows() -> dict[str, tuple[str, bool]]:
    return {name: (how, trained == "yes") for name, how, trained in ROW.findall(PAGE.read_text())}


def test_the_table_lists_what_is_tested() -> None:
    assert sorted(rows()) == sorted({*PROGRAMS, *LEFT})


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
def test_programs(name: str, seen: Seen) -> None:
    function, args = PROGRAMS[name]
    how, trained = rows()[name]
    got = results(smelt.compile(function, fullgraph=True), args, trained)
    reference = torch.compile(function, backend="eager") if name in WITHOUT_EAGER else function
    for have, want in zip(got, results(reference, args, trained), strict=True):
        torch.testing.assert_close(have, want)
    assert happened(name, seen) == how
    reports = smelt.reports()
    assert {report.kind for report in reports} == ({"forward", "backward"} if trained else {"inference"})
    assert [str(each) for report in reports for each in report.fallbacks] == []
    assert not any(report.regions for report in reports)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_is_a_region_of_its_own(name: str) -> None:
    def function(x: Tensor) -> Tensor:
        return x.sin().exp().neg().cos().exp()

    program = capture_function(function, [SMALL])
    (node,) = program.graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.neg.default)
    node.target = LEFT[name]
    program = contracted(program)
    parts = clustered(program, unsupported(program), 2)
    reasons = [(region.name, region.ops, region.reason) for region in parts.regions]
    assert reasons == [
        ("cluster 1", (), None),
        ("PyTorch", (name,), f"higher-order operator {name}"),
        ("cluster 2", (), None),
    ]
    assert rows()[name] == ("PyTorch", False)


def test_a_body_that_smelt_cannot_have_makes_the_call_a_region() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x.sin() * 2,)).exp() + 1

    program = contracted(_captured(function, SMALL))
    (call,) = program.graph_module.graph.find_nodes(op="call_function", target=hops.cond)
    body = getattr(program.graph_module, str(call.args[1].target))
    (inner,) = body.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    inner.target = run_with_rng_state
    parts = clustered(program, unsupported(program), 1)
    (left,) = [region for region in parts.regions if not region.is_native]
    assert left.ops == ("cond",) and "in its body: higher-order operator run_with_rng_state" in str(
        left.reason
    )
    assert len(parts.clusters) == 2


def _captured(function: Callable[..., Any], *args: Tensor) -> Program:
    found: list[Program] = []

    def inference(module: Any, examples: Any) -> Any:
        found.append(program_from_aot(module, examples, "inference", "graph"))
        return module.forward

    torch.compile(function, backend=aot_autograd(fw_compiler=inference, inference_compiler=inference))(*args)
    return found[0]


@pytest.mark.parametrize("reverse", [False, True])
def test_generic_scans_are_trained(reverse: bool) -> None:
    def function(x: Tensor) -> Tensor:
        found = associative_scan(lambda a, b: a * b + 0.5 * a, x.sin(), 0, reverse, combine_mode="generic")
        return found + 1

    got = results(smelt.compile(function, fullgraph=True), (SMALL,), True)
    for have, want in zip(got, results(function, (SMALL,), True), strict=True):
        torch.testing.assert_close(have, want)
    assert [str(each) for report in smelt.reports() for each in report.fallbacks] == []


def test_equal_regions_share_their_kernels() -> None:
    def layers(count: int) -> Callable[[Tensor, Tensor], Tensor]:
        def function(x: Tensor, weight: Tensor) -> Tensor:
            for _ in range(count):
                x = layer(x, weight)
            return x

        return function

    texts = {}
    for count in (2, 8):
        smelt.reset()
        x, weight = torch.randn(64, 64), torch.randn(64, 64) / 8
        made = smelt.compile(layers(count), fullgraph=True)
        torch.testing.assert_close(made(x, weight), layers(count)(x, weight), rtol=1e-4, atol=1e-5)
        texts[count] = len(set(smelt.reports()[0].kernels)), len(smelt.reports()[0].text("cpp"))
    assert texts[8][1] < 2 * texts[2][1]


@torch.compiler.nested_compile_region
def layer(x: Tensor, weight: Tensor) -> Tensor:
    return torch.softmax(x @ weight, -1) + x
