"""Programs under OpenVINO, ONNX Runtime and TVM: exported once, float32, everybody's number of threads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from smelt.cli.spec import Program


class Flat(nn.Module):
    """A program as tensors to tensors: all other arguments are constants, all other results are dropped."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.call = program.call
        self.leaves, self.tree = tree_flatten((program.args, program.kwargs))
        self.given = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The program's own arguments, as ``forward`` takes them."""
        return tuple(self.leaves[i] for i in self.given)

    def results(self) -> list[bool]:
        """For each leaf of the program's result: whether it is a tensor, and so among the results here."""
        args, kwargs = tree_unflatten(self.leaves, self.tree)
        with torch.no_grad():
            return [isinstance(leaf, torch.Tensor) for leaf in tree_leaves(self.call(*args, **kwargs))]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = list(self.leaves)
        for i, tensor in zip(self.given, tensors):
            leaves[i] = tensor
        args, kwargs = tree_unflatten(leaves, self.tree)
        return tuple(x for x in tree_leaves(self.call(*args, **kwargs)) if isinstance(x, torch.Tensor))


def openvino(program: Program, threads: int) -> Callable[..., Any]:
    """`openvino.convert_model` of the exported program, compiled for latency; bfloat16 is not allowed."""
    import openvino as ov

    flat = Flat(program).eval()
    with torch.no_grad():
        exported = torch.export.export(flat, flat.tensors(), strict=False)
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    model = ov.Core().compile_model(ov.convert_model(exported), "CPU", settings)
    request = model.create_infer_request()

    def infer(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        inputs = {i: tensor.numpy() for i, tensor in enumerate(tensors)}
        found = request.infer(inputs, share_inputs=True, share_outputs=True)
        return [torch.from_numpy(found[i]) for i in range(len(model.outputs))]

    return _caller(flat, infer)


def onnxruntime(program: Program, threads: int) -> Callable[..., Any]:
    """An ONNX Runtime session, all its graph optimizations on, of what `torch.onnx.export` writes."""
    import onnxruntime as ort

    flat = Flat(program).eval()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    names = [f"input_{i}" for i in range(len(flat.given))]
    with tempfile.TemporaryDirectory(prefix="smelt-bench-onnx-") as folder:
        file = Path(folder) / "model.onnx"
        with torch.no_grad():
            written = torch.onnx.export(flat, flat.tensors(), dynamo=True, input_names=names, verbose=False)
        if written is None:
            raise RuntimeError("torch.onnx.export gave no program")
        written.save(file)
        session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    wanted = {each.name for each in session.get_inputs()}

    def infer(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        inputs = {name: tensor.numpy() for name, tensor in zip(names, tensors) if name in wanted}
        return [torch.from_numpy(array) for array in session.run(None, inputs)]

    return _caller(flat, infer)


def tvm(program: Program, threads: int) -> Callable[..., Any]:
    """TVM's Relax, built for this processor with its default pipeline; not tuned, which takes hours."""
    os.environ["TVM_NUM_THREADS"] = str(threads)
    import tvm as tvm_package
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    flat = Flat(program).eval()
    with torch.no_grad():
        exported = torch.export.export(flat, flat.tensors(), strict=False)
    target = tvm_package.target.Target(
        {"kind": "llvm", "mcpu": _processor(tvm_package), "num-cores": threads}
    )
    pipeline = relax.get_default_pipeline(target)
    built = tvm_package.compile(from_exported_program(exported), target, relax_pipeline=pipeline)
    machine = relax.VirtualMachine(built, tvm_package.cpu())

    def infer(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        found = machine["main"](*(tvm_package.runtime.from_dlpack(tensor) for tensor in tensors))
        return [torch.from_dlpack(each) for each in found]

    return _caller(flat, infer)


def _processor(tvm_package: Any) -> str:
    """LLVM's name of this processor, as the LLVM in TVM knows it."""
    name = tvm_package.get_global_func("target.llvm_get_system_cpu", allow_missing=True)
    return str(name()) if name is not None else "native"


def _caller(
    flat: Flat, infer: Callable[[tuple[torch.Tensor, ...]], list[torch.Tensor]]
) -> Callable[..., list[torch.Tensor | None]]:
    """Takes the program's arguments; gives the leaves of its result, None where one is no tensor."""
    are_tensors = flat.results()

    def call(*args: Any, **kwargs: Any) -> list[torch.Tensor | None]:
        tensors = tuple(x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor))
        found = iter(infer(tensors))
        return [next(found) if is_tensor else None for is_tensor in are_tensors]

    return call
