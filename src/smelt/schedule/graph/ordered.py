"""Numerics ``strict``: sums have one order, whatever the number of rows and threads.

A product is a reduction with one recipe for any number of rows (`smelt.schedule.few_rows`), an attention is
made of such products around a softmax (`smelt.schedule.attention.few_queries`). `refuse` finds what has no
such form.
"""

from __future__ import annotations

from smelt.errors import SmeltError
from smelt.loops.ir import AttentionGradients, Attentions, Extern, Graph, Node
from smelt.schedule.attention.kernels import why_no_nest

UNSUMMED = (
    *("_assert_scalar", "_local_scalar_dense", "_unique2", "unique_consecutive", "unique_dim", "nonzero"),
    *("alias", "as_strided", "cat", "clone", "constant_pad_nd", "copy", "fill", "roll", "slice", "view"),
    *("empty", "empty_strided", "new_empty", "new_empty_strided", "repeat_interleave", "split_with_sizes"),
    *("gather", "index", "index_put", "index_select", "masked_scatter", "masked_select", "put", "scatter"),
    *("bernoulli", "exponential", "multinomial", "normal", "poisson", "rand", "randn", "randperm", "uniform"),
    *("kthvalue", "sort", "take", "topk"),
)
"""ATen's operators that move, compare, count or draw elements: no sum has an order there."""


def refuse(node: Node, graph: Graph) -> None:
    """Nothing, if the bits of a node's result depend on neither the number of rows nor that of threads.

    Raises:
        SmeltError: SM0126, ATen would run it, whose kernels add terms in another order for each size.
    """
    body, why = node.body, None
    if isinstance(body, Attentions) and not is_of_products(body):
        why = why_no_nest(body, graph)
    elif isinstance(body, Extern) and not body.bodies and not _is_unsummed(node, body, graph):
        reason = f" ({body.reason})" if body.reason else ""
        why = f"ATen runs {body.target}{reason}, which may add in another order for each size"
    if why is not None:
        raise not_strict(node.origin.op, why, node.origin.where)


def not_strict(what: str, why: str, where: str | None = None) -> SmeltError:
    """The error of what cannot have the same bits for any number of rows and threads."""
    remedy = "leave numerics='strict' out, or this operator out of the compiled function"
    return SmeltError("SM0126", f"{what} has no strict numerics", where=where, why=why, remedy=remedy)


def is_of_products(body: Attentions) -> bool:
    """Whether an attention becomes products around a softmax; the nests of others have one order as well."""
    if isinstance(body, AttentionGradients):
        return False
    return body.kept is None and not body.call.target.startswith("higher_order.")


def _is_unsummed(node: Node, body: Extern, graph: Graph) -> bool:
    name = body.target.removeprefix("aten.").partition(".")[0].rstrip("_")
    results = (graph.buffers[each].dtype for each in node.outputs if each is not None)
    exact = all(not (dtype.is_floating_point or dtype.is_complex) for dtype in results)
    return exact or name in UNSUMMED or name.removesuffix("_copy") in UNSUMMED
