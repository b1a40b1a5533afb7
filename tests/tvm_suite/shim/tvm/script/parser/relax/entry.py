"""``tvm.script.parser.relax.entry``: the words of types."""

from tvm.script.relax import __getattr__ as _word

AnyProxy, TensorProxy, CallableProxy, TupleProxy, ShapeProxy = map(
    _word, ("Any", "Tensor", "Callable", "Tuple", "Shape")
)

for _name in ("Any", "Tensor", "Callable", "Tuple", "Shape"):
    globals()[f"{_name}Proxy"].__name__ = f"{_name}Proxy"

__all__ = ["AnyProxy", "CallableProxy", "ShapeProxy", "TensorProxy", "TupleProxy"]
