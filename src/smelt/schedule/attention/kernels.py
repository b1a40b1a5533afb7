"""The choice of kernel for an attention; equal attentions of a graph share one kernel (see
`attention_nest`).
"""

from __future__ import annotations

from typing import Any

from smelt.loops.dependencies import attention_values, variables
from smelt.loops.ir import Attention, AttentionGradients, Attentions, Graph
from smelt.loops.record import RecordedValue, Recorder
from smelt.loops.straightline import Instruction
from smelt.schedule.attention.block_gradients import BlockGradients
from smelt.schedule.attention.blocks import BlockAttention
from smelt.schedule.attention.few_queries import why_atens_of_few, why_not_few
from smelt.schedule.attention.gradients import GradientsBuilder
from smelt.schedule.attention.lanes import has_blocks
from smelt.schedule.attention.nest import AttentionBuilder
from smelt.schedule.grouping.items import Item, Work
from smelt.schedule.loops import Target
from smelt.schedule.names import kernel_name
from smelt.schedule.nests import BuiltKernel, Deduplicated
from smelt.schedule.products.tiles import F32
from smelt.symbolic import size_hint

FEWEST_QUERIES, FEWEST_TERMS = 8, 8
"""Limits below which register tiles would be half empty: ATen's kernel is called."""
KEYS_A_QUERY = 16
"""Limit on the keys for each query, beyond which packing them takes longer than it saves."""
FEWEST_FOR_GRADIENTS, ENOUGH_FOR_GRADIENTS, KEYS_A_QUERY_FOR_GRADIENTS = 16, 32, 4
"""The same limits for gradients, where more is packed; with ``ENOUGH_FOR_GRADIENTS`` queries, any number of
keys is accepted.
"""


def attention_pays(body: Attentions, graph: Graph) -> bool:
    """Whether the nest computes this attention and is at least as fast as ATen's kernel: `why_atens`."""
    return why_atens(body, graph) is None


def has_attention_nest(body: Attentions, graph: Graph) -> bool:
    """Whether there is one nest for this attention: `why_no_nest`; few queries have several."""
    return why_not_few(body, graph) is not None and why_no_nest(body, graph) is None


def why_atens(body: Attentions, graph: Graph) -> str | None:
    """The reason why the rule prefers ATen's kernel; None where the nest computes the attention.

    Measured on two cores with AVX-512 for 1 to 1024 queries and 8 to 1024 keys, heads of 32 to 128.
    """
    if body.call.target.startswith("higher_order."):
        return None  # ATen has no kernel for it
    if why_not_few(body, graph) is None:
        return why_atens_of_few(body, graph)
    queries, keys, terms = sizes = attention_sizes(body, graph)
    if isinstance(body, Attention):
        fewest = max(FEWEST_QUERIES, keys / KEYS_A_QUERY)
    else:
        fewest = max(FEWEST_FOR_GRADIENTS, min(ENOUGH_FOR_GRADIENTS, keys / KEYS_A_QUERY_FOR_GRADIENTS))
    if queries < fewest or terms < FEWEST_TERMS:
        return f"{described_sizes(sizes)}: too few"
    return why_no_nest(body, graph)


def why_no_nest(body: Attentions, graph: Graph) -> str | None:
    """The reason why there is no nest for an attention; None where there is one."""
    if body.dtype != F32:
        return f"attention in {body.dtype}"
    recorder = Recorder({name: buffer.dtype for name, buffer in graph.buffers.items()}, {})
    _run_all(body, recorder)
    plain = all(isinstance(step, Instruction) for step in recorder.instructions)
    return None if plain else "operands or a mask that are masked"


def attention_sizes(body: Attentions, graph: Graph) -> tuple[int, int, int]:
    """Queries, keys, and terms of a score."""
    queries, keys, terms = (size_hint(s, graph.hints) for s in (body.shape[-2], *body.reduce_shape))
    return queries, keys, terms


def described_sizes(sizes: tuple[int, int, int]) -> str:
    """The sizes as text, for reports.

    >>> described_sizes((128, 64, 32))
    '128 queries of 32 terms, 64 keys'
    """
    queries, keys, terms = sizes
    return f"{queries} queries of {terms} terms, {keys} keys"


def _run_all(body: Attentions, recorder: Recorder) -> None:
    """Runs the loop functions at ``variables``."""
    product = RecordedValue("product", F32)
    recorder.adopt(product)
    index, rindex = variables("i", len(body.shape)), variables("r", 2)
    recorder.run(lambda: attention_values(body, index, rindex, product))


TILES: dict[type, Any] = {Attention: AttentionBuilder, AttentionGradients: GradientsBuilder}
BLOCKS: dict[type, Any] = {Attention: BlockAttention, AttentionGradients: BlockGradients}
"""The builders of nests for CPUs, and for GPUs."""


class AttentionKernels:
    """The kernels of a graph's attentions; equal ones share one kernel, with buffers of their own."""

    def __init__(self, work: Work, target: Target) -> None:
        self.work, self.target = work, target
        self.once = Deduplicated(work)

    def build(self, item: Item, stored: set[str]) -> BuiltKernel:
        """The kernel of ``item``; ``stored``: the buffers that must be in memory after the run."""
        assert isinstance(item.body, Attentions)
        outputs = [name if name in stored else None for name in item.writes]
        origins = [item.node.origin]

        def build() -> BuiltKernel:
            assert isinstance(item.body, Attentions)
            whose = BLOCKS if self.target.blocks and has_blocks(item.body) else TILES
            builder = whose[type(item.body)]
            made: BuiltKernel = builder(self.work, item, outputs, self.target).build()
            return made

        what = (item.code, tuple(name is not None for name in outputs))
        return self.once.kernel(what, item.buffers, f"{kernel_name(origins)}_tiled", tuple(origins), build)
