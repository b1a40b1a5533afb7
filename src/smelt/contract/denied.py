"""Operators that the user gives to PyTorch: the options ``deny`` and ``allow``.

An option is a text of names separated by ``;``: ``aten.gelu``, ``aten::add.Tensor``, ``flex_attention``,
``aten.*norm*``. A name without an overload means all overloads, a name without a namespace is ATen's. A name
refers to a call in the user's program, which PyTorch may decompose: ``aten.softmax`` is ``torch.softmax``,
``x.softmax(-1)`` and ``nn.Softmax`` with all of their operators, forward and backward; but not the
decompositions of other operators.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.traceback import get_current_meta

from smelt.config import Config
from smelt.contract.facts import is_view
from smelt.errors import SmeltError

_SPELT = {"cross_entropy": "cross_entropy_loss"}
"""Functions whose operator has another name."""

_MARK = "smelt_denied"
"""The key in ``node.meta["custom"]`` of the name that denies a call; derived calls inherit it."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The operators that PyTorch is to run: patterns, and exceptions from them.

    >>> denied = Denied.of(Config(deny="aten::gelu; aten.*softmax*", allow="aten._softmax"))
    >>> denied.name("aten.gelu.default"), denied.name("aten._log_softmax.default")
    ('aten.gelu', 'aten.*softmax*')
    >>> denied.name("aten._softmax.default") is None
    True
    """

    deny: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()

    @staticmethod
    def of(config: Config) -> Denied:
        """The patterns of the options.

        Raises:
            SmeltError: SM0105 there is no operator of a name.
        """
        return Denied(names_in(config.deny, "deny"), names_in(config.allow, "allow"))

    def __bool__(self) -> bool:
        return bool(self.deny)

    def name(self, operator: str) -> str | None:
        """The pattern that denies an operator, or None."""
        found = _matching(self.deny, operator)
        return None if found is None or _matching(self.allow, operator) is not None else found

    def mark(self, graph_module: GraphModule) -> None:
        """Mark the denied calls of Dynamo's graph and of its bodies."""
        graphs = [each.graph for each in graph_module.modules() if isinstance(each, GraphModule)]
        for node in (node for graph in graphs for node in graph.nodes if self):
            found = self.name(_written(node)) if node.op.startswith("call_") else None
            if found is not None:
                node.meta["custom"] = {**(node.meta.get("custom") or {}), _MARK: found}

    def table(self, table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
        """A table of decompositions that keeps denied operators whole."""
        if not self:
            return dict(table)
        return {
            target: _unless_marked(function)
            for target, function in table.items()
            if not self.name(str(target))
        }

    def reason(self, node: Node) -> str | None:
        """The reason if a call of AOTAutograd's graph is denied, else None."""
        if not self or is_view(node.target):
            return None
        written = node.meta.get("original_aten") or node.target
        found = mark_of(node) or self.name(str(written))
        return None if found is None else f"denied: {found} (option deny)"


def mark_of(node: Node) -> str | None:
    """The name that denied a call (`Denied.mark`), or None."""
    return (node.meta.get("custom") or {}).get(_MARK)


def names_in(text: str, option: str) -> tuple[str, ...]:
    """The names of an option's text.

    Raises:
        SmeltError: SM0105 there is no operator of that name.

    >>> names_in(" aten::add.Tensor;gelu ; ", "deny")
    ('aten.add.Tensor', 'aten.gelu')
    """
    found = []
    for each in text.replace(",", ";").split(";"):
        name = each.strip().replace("::", ".")
        if name:
            found.append(_checked(name, option))
    return tuple(found)


def _checked(name: str, option: str) -> str:
    if hasattr(torch.ops.higher_order, name.removeprefix("higher_order.")):
        return name.removeprefix("higher_order.")
    if name != "*" and name.partition(".")[0] not in _namespaces():
        name = f"aten.{name}"
    if "*" in name or "?" in name or _exists(name):
        return name
    known = sorted({each.rpartition(".")[0] for each in _operators()})
    near = difflib.get_close_matches(name, known, 3, 0.6)
    remedy = (
        f"did you mean {', '.join(near)}?" if near else "names as aten.add, aten::add.Tensor, aten.*norm*"
    )
    raise SmeltError("SM0105", f"option {option!r} names {name}, and no operator is called so", remedy=remedy)


def _exists(name: str) -> bool:
    return any(each == name or each.rpartition(".")[0] == name for each in _operators())


def _matching(patterns: Iterable[str], operator: str) -> str | None:
    packet = operator.rpartition(".")[0] if operator.count(".") > 1 else operator
    return next((each for each in patterns if fnmatchcase(operator, each) or fnmatchcase(packet, each)), None)


def _written(node: Node) -> str:
    """The operator of a call in Dynamo's graph, which is a function or a method: ``aten.softmax``."""
    if isinstance(node.target, (HigherOrderOperator, OpOverload, OpOverloadPacket)):
        return str(node.target)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return f"aten.{_SPELT.get(name, name)}"


def _unless_marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that returns ``NotImplemented`` for marked calls: tracing then keeps them."""

    def decompose(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if _is_marked_now() else function(*args, **kwargs)

    return decompose


def _is_marked_now() -> bool:
    """Whether the node that AOTAutograd traces now comes from a marked call, or is its derivative."""
    meta = get_current_meta()
    if (meta.get("custom") or {}).get(_MARK):
        return True
    forward, mode = meta.get("grad_fn_seq_nr"), get_proxy_mode()
    if not forward or mode is None:
        return False
    number = forward[-1] if isinstance(forward, list) else forward
    return any(node.meta.get("seq_nr") == number and mark_of(node) for node in mode.tracer.graph.nodes)


@lru_cache(maxsize=1)
def _operators() -> frozenset[str]:
    """The names of all operators, ``aten.add.Tensor``, at the time of the first call."""
    names = (name.replace("::", ".") for name in torch._C._dispatch_get_all_op_names())
    return frozenset(name if name.count(".") > 1 else f"{name}.default" for name in names)


@lru_cache(maxsize=1)
def _namespaces() -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in _operators())
