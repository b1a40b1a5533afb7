"""Models written as modules, in TVM's style: ``nn.Module``, ``nn.Linear``, ``export_tvm``.

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(784, 128), nn.Linear(128, 10)

    def forward(self, x):
        return self.second(nn.relu(self.first(x)))

mod, params = Net().export_tvm({"forward": {"x": nn.spec.Tensor((1, 784), "float32")}})
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from smelt.relax.builder import BlockBuilder
from smelt.relax.operators import op
from smelt.relax.types import RelaxError, TensorStructInfo
from smelt.relax.values import Expr, Var, convert
from smelt.relax.words import tensor
from smelt.script.module import IRModule

spec = SimpleNamespace(Tensor=tensor)
"""``spec.Tensor(shape, dtype)``: an input of an exported method; texts in the shape are variables."""


class Parameter(Var):
    """A parameter of a module: a variable of the exported functions. ``data``: its tensor, None until set."""

    def __init__(self, shape: Sequence[Any], dtype: str = "float32") -> None:
        super().__init__("param", TensorStructInfo(shape, dtype))
        self.data: torch.Tensor | None = None

    def to(self, dtype: str) -> None:
        self.struct_info_ = TensorStructInfo(self.shape, dtype)


class Module:
    """A model, or a part of one: parameters and modules are attributes; a call runs `forward`."""

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """The parameters with their paths: ``first.weight``."""
        for name, value in vars(self).items():
            if isinstance(value, Parameter):
                yield prefix + name, value
            elif isinstance(value, Module):
                yield from value.named_parameters(f"{prefix}{name}.")

    def parameters(self) -> Iterator[Parameter]:
        return (each for _, each in self.named_parameters())

    def state_dict(self) -> dict[str, Parameter]:
        return dict(self.named_parameters())

    def load_state_dict(self, tensors: Mapping[str, Any], strict: bool = True) -> None:
        """Set the tensors of parameters by their paths, e.g. from a torch module's ``state_dict()``.

        Raises:
            RelaxError: SM1305, paths or shapes differ.
        """
        own = self.state_dict()
        if strict and own.keys() != tensors.keys():
            names = ", ".join(sorted(own.keys() ^ tensors.keys()))
            raise RelaxError("SM1305", f"tensors and parameters differ in {names}", remedy="strict=False")
        for name in own.keys() & tensors.keys():
            value = torch.as_tensor(tensors[name]).detach()
            if tuple(value.shape) != tuple(own[name].shape):
                what = f"{name} is {list(value.shape)}"
                raise RelaxError("SM1305", what, why=f"the parameter is {own[name].struct_info}")
            own[name].data = value

    def forward(self, *args: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__}.forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def export_tvm(
        self, spec: Mapping[str, Mapping[str, Any]], debug: bool = False
    ) -> tuple[IRModule, list[tuple[str, Parameter]]]:
        """A module with a function for each method that ``spec`` names, and the parameters in their order.

        ``spec``: method → name of an input → `spec.Tensor`. A function takes the inputs, then the parameters.

        Raises:
            RelaxError: SM1301, the names of a method's inputs differ.
        """
        builder, params = BlockBuilder(), list(self.named_parameters())
        for path, each in params:
            each.name_hint = path
        for name, infos in spec.items():
            method = getattr(self, name)
            wanted = list(inspect.signature(method).parameters)
            if wanted != list(infos):
                what = f"{name} takes {', '.join(wanted)}; the spec says {', '.join(infos)}"
                raise RelaxError("SM1301", what, remedy="name each input as the method does")
            inputs = [Var(each, info) for each, info in infos.items()]
            held = [each for _, each in params]
            with builder.function(name, [*inputs, *held], attrs={"num_input": len(inputs)}):
                with builder.dataflow():
                    result = builder.emit_output(convert(method(*inputs)))
                builder.emit_func_output(result)
        return builder.get(), params


class Linear(Module):
    """``x @ weight.T + bias``, as in torch: ``weight`` is ``(out_features, in_features)``."""

    def __init__(
        self, in_features: Any, out_features: Any, bias: bool = True, dtype: str = "float32"
    ) -> None:
        self.weight = Parameter((out_features, in_features), dtype)
        self.bias = Parameter((out_features,), dtype) if bias else None

    def forward(self, x: Expr) -> Expr:
        made: Expr = op.matmul(x, op.permute_dims(self.weight))
        return made if self.bias is None else made + self.bias


class Embedding(Module):
    """Rows of ``weight`` selected by indices."""

    def __init__(self, num: Any, dim: Any, dtype: str = "float32") -> None:
        self.weight, self.dim = Parameter((num, dim), dtype), dim

    def forward(self, x: Expr) -> Expr:
        rows: Expr = op.take(self.weight, x, axis=0)
        return rows


class LayerNorm(Module):
    """The last dimension normalized to mean 0 and variance 1, times ``weight``, plus ``bias``."""

    def __init__(self, normalized_shape: int, eps: float = 1e-5, dtype: str = "float32") -> None:
        self.weight, self.bias = (Parameter((normalized_shape,), dtype) for _ in range(2))
        self.eps = eps

    def forward(self, x: Expr) -> Expr:
        made: Expr = op.nn.layer_norm(x, self.weight, self.bias, axes=[-1], epsilon=self.eps)
        return made


class ReLU(Module):
    def forward(self, x: Expr) -> Expr:
        made: Expr = op.nn.relu(x)
        return made


class ModuleList(Module):
    """Modules in order, as a list."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self.modules = list(modules)

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        for number, each in enumerate(self.modules):
            yield from each.named_parameters(f"{prefix}{number}.")

    def __iter__(self) -> Iterator[Module]:
        return iter(self.modules)

    def __getitem__(self, index: int) -> Module:
        return self.modules[index]

    def forward(self, x: Any) -> Any:
        for each in self.modules:
            x = each(x)
        return x


def __getattr__(name: str) -> Any:
    """Operators: ``nn.relu``, ``nn.softmax``, ``nn.add``."""
    operators = op.nn if name in dir(op.nn) else op
    return getattr(operators, name)
