"""The models of ``benchmarks/zoo.py`` on the Triton target, without a GPU.

    TRITON_INTERPRET=1 python -m tests.codegen.triton.zoo interpret [NAME…]
    python -m tests.codegen.triton.zoo compile FOLDER [NAME…]

``interpret``: tiny configurations, forward and backward, in Triton's interpreter, against eager and float64.
``compile``: the whole configurations; each distinct kernel, compiled for sm_90, is a line of the table at the
end: registers, spilled bytes and shared memory. Nothing is run but by eager.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import zoo
from smelt.nest.ir import Run
from smelt.pipeline.targets import Code
from tests.conformance import cubins
from tests.conformance.agreement import Disagreement, assert_agree

ARCHITECTURE = 90
Program = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

_BERT = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_IMAGE = {"image_size": 32, "num_channels": 3}


def _text(kind: str, **sizes: Any) -> Program:
    import transformers

    config = getattr(transformers, f"{kind}Config")(vocab_size=64, **sizes)
    tokens = zoo._tokens(64, batch=2, length=9)
    return getattr(transformers, f"{kind}Model")(config).eval(), (), {"input_ids": tokens}


def _picture(kind: str, **sizes: Any) -> Program:
    import transformers

    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes))
    return model.eval(), (torch.randn(2, 3, 32, 32),), {}


TINY: dict[str, Callable[[], Program]] = {
    "minilm": lambda: _text("Bert", **_BERT, **zoo._NO_DROPOUT),
    "gpt2": lambda: _text("GPT2", **_GPT2, use_cache=False, bos_token_id=0, eos_token_id=0),
    "llama_small": lambda: _text("Llama", **_BERT, num_key_value_heads=1, use_cache=False),
    "resnet50": lambda: _picture("ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    "mobilenet_v2": lambda: _picture("MobileNetV2", depth_multiplier=0.15, **_IMAGE),
    "vit_base": lambda: _picture("ViT", **_BERT, **_IMAGE, patch_size=8, **zoo._NO_DROPOUT),
    "convnext_tiny": lambda: _picture("ConvNext", hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1]),
    "layernorm_gelu_residual": lambda: (
        zoo.LayerNormGeluResidual(48),
        (torch.randn(8, 48), torch.randn(8, 48)),
        {},
    ),
    "masked_softmax": lambda: (
        zoo.MaskedSoftmax(),
        (torch.randn(2, 2, 9, 9), torch.ones(9, 9, dtype=torch.bool).triu(1)),
        {},
    ),
    "pointwise_chain_4m": lambda: (zoo.PointwiseChain(), (torch.randn(3000),), {}),
    "tiny": lambda: zoo.tiny(),
    "small_mlp": lambda: zoo.small_mlp(),
    "narrow_product": lambda: (nn.Linear(40, 4), (torch.randn(30, 40),), {}),
    "grouped_convolutions": lambda: (
        nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=4), nn.ReLU()),
        (torch.randn(1, 8, 7, 7),),
        {},
    ),
}


def _tensors(result: Any) -> list[torch.Tensor]:
    from torch.utils._pytree import tree_leaves

    values = list(result.values()) if isinstance(result, Mapping) else result
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _trained(call: Callable[..., Any], model: nn.Module, args: Sequence[Any], kwargs: Any) -> list[Any]:
    """The results, and the gradients by parameters and inputs."""
    args = [x.detach().requires_grad_() if x.is_floating_point() else x for x in args]
    results = [each for each in _tensors(call(*args, **kwargs)) if each.requires_grad]
    wanted = [*model.parameters(), *(x for x in args if x.requires_grad)]
    torch.autograd.backward([each.square().mean() for each in results])
    gradients = [each.grad for each in wanted if each.grad is not None]
    for each in wanted:
        each.grad = None
    return [*(each.detach() for each in results), *gradients]


def _wide(values: Any) -> Any:
    return [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in values]


def interpret(name: str) -> Iterator[dict[str, Any]]:
    """Compiles a tiny model, forward and training; what differs from eager, and what ATen runs."""
    import smelt
    from smelt.backend import backend_for
    from smelt.pipeline.triton import Interpreted

    torch.manual_seed(0)
    model, args, kwargs = TINY[name]()
    wide = copy.deepcopy(model).double()
    for way in ("forward", "training"):
        smelt.reset()
        torch._dynamo.reset()
        start, said = time.perf_counter(), {"name": name, "way": way}
        fast = torch.compile(model, backend=backend_for(Interpreted()))
        try:
            if way == "forward":
                with torch.no_grad():
                    got, eager = _tensors(fast(*args, **kwargs)), _tensors(model(*args, **kwargs))
                    exact = _tensors(wide(*_wide(args), **kwargs))
            else:
                got, eager = (_trained(each, model, args, kwargs) for each in (fast, model))
                exact = _trained(wide, wide, _wide(args), kwargs)
            assert_agree(got, eager, partial(list, exact))
        except Disagreement as error:
            said["mismatch"] = str(error)
        except Exception as error:
            said["error"] = f"{type(error).__name__}: {error}"[:600]
        reports = smelt.reports()
        yield {
            **said,
            "kernels": sum(len(report.kernels) for report in reports),
            "fallbacks": sorted({f"{e.op}: {e.reason}" for report in reports for e in report.fallbacks}),
            "kinds": [report.kind for report in reports],
            "seconds": round(time.perf_counter() - start, 1),
        }


def printed(name: str, folder: Path) -> None:
    """Writes the distinct kernels of a whole model, forward and training. Runs do nothing, so that the
    backward program is compiled too, with whatever is in memory.
    """
    from smelt.backend import backend_for
    from smelt.codegen.triton.unit import print_kernels
    from smelt.pipeline.triton import Interpreted
    from smelt.runtime.library import PythonLibrary

    class Kept(Interpreted):
        def build(self, runs: Sequence[Run]) -> Code:
            for each in print_kernels(runs).values():
                cubins.keep(each, folder)
            return Code("", PythonLibrary({run.name: lambda *args: 0 for run in runs}), {}, "triton")

    model, args, kwargs = getattr(zoo, name)()
    for grad in (False, True):
        torch._dynamo.reset()
        fast = torch.compile(model, backend=backend_for(Kept()))
        with torch.set_grad_enabled(grad):
            if grad:
                _trained(fast, model, args, kwargs)
            else:
                fast(*args, **kwargs)


def main(what: str, *names: str) -> None:
    if what == "interpret":
        for name in names or TINY:
            for said in interpret(name):
                print(json.dumps(said), flush=True)
        return
    folder = Path(names[0])
    for name in names[1:] or (*zoo.MODELS, *zoo.MICRO):
        (folder / name).mkdir(parents=True, exist_ok=True)
        printed(name, folder / name)
        cubins.compile_all(folder / name, ARCHITECTURE)
        found = cubins.results(folder / name, ARCHITECTURE)
        print(f"{name}: {len(found)} kernels")
        for each in found:
            print("   ", json.dumps({key: each[key] for key in each if key != "kernel"})[:300], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
