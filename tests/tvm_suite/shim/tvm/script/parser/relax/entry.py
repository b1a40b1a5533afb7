"""``tvm.script.parser.relax.entry``: the words of types."""

from tvm.script.relax import __getattr__ as _word

AnyProxy, TensorProxy, CallableProxy, TupleProxy, ShapeProxy = map(
    _word, ("Any", "Tensor", "Callable", "Tuple", "Shape")
)

__all__ = ["AnyProxy", "CallableProxy", "ShapeProxy", "TensorProxy", "TupleProxy"]
