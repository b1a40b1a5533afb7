"""``tvm.script.parser.relax.entry``: the words of types, by the names of TVM's classes."""

from typing import Any

from tvm.script.relax import __getattr__ as _word


class _Proxy:
    """A word by another name: equal to the word, which a script that names it means."""

    def __init__(self, word: str) -> None:
        self.__name__, self.word = f"{word}Proxy", _word(word)

    def __eq__(self, other: object) -> bool:
        return self.word is other

    def __hash__(self) -> int:
        return hash(self.word)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.word(*args, **options)


AnyProxy, TensorProxy, CallableProxy, TupleProxy, ShapeProxy = map(
    _Proxy, ("Any", "Tensor", "Callable", "Tuple", "Shape")
)

__all__ = ["AnyProxy", "CallableProxy", "ShapeProxy", "TensorProxy", "TupleProxy"]
