"""The operators of relax, in one table."""

from smelt.relax.operators import elementwise, gradients, nn, reductions, shapes
from smelt.relax.operators.table import (
    COMPOSED,
    OPERATORS,
    OVERLOADS,
    AtenOperator,
    Namespace,
    NoOperatorError,
    Operator,
    composed,
    operator,
    overload_of,
)

op = Namespace()
"""Every operator by its name: ``relax.op.add``, ``relax.op.nn.relu``."""

__all__ = [
    "COMPOSED",
    "OPERATORS",
    "OVERLOADS",
    "AtenOperator",
    "Namespace",
    "NoOperatorError",
    "Operator",
    "composed",
    "elementwise",
    "gradients",
    "nn",
    "op",
    "operator",
    "overload_of",
    "reductions",
    "shapes",
]
