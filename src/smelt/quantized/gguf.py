"""`load_gguf`: a GGUF file → a model of transformers, whose weights stay quantized."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smelt.errors import SmeltError
from smelt.logs import logger
from smelt.quantized.blocks import KINDS, planes_of
from smelt.quantized.convert import check_activations, is_plain, with_weight
from smelt.quantized.modules import QuantizedWeight
from smelt.records import dataclass
from smelt.runtime.garbage import give_back

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""GGUF's names of the architectures whose tensors need no more than `_Loader` does."""

_FREQUENCIES = "rope_freqs.weight"
"""The tensor with divisors of the frequencies of rotary embeddings (Llama 3)."""


def load_gguf(
    path: str | Path,
    dtype: torch.dtype = torch.float32,
    *,
    activations: str | None = None,
    tokenizer: bool = False,
) -> Any:
    """A causal language model of transformers from a GGUF file, for inference.

    Linear layers and embeddings keep the file's quantized weights, repacked without changing a value
    (Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K); tensors of other types become floats, which a warning tells.
    ``dtype``: of activations and of all other parameters. No parameter requires a gradient. ``activations``:
    ``int8`` rounds the inputs of products too, as llama.cpp does (`smelt.quantize`). ``tokenizer``:
    return ``(model, tokenizer)``, which reads the file once for both. Needs ``torch-smelt[chat]``.

    Raises:
        SmeltError: SM0115 there are no such activations; SM0117 transformers or gguf is missing; SM0118 this
            is no GGUF file, or it has an architecture that smelt does not load; SM0119 its tensors are not
            those of the model.
    """
    check_activations(activations)
    transformers, gguf = _needed("transformers"), _needed("gguf")
    path = Path(path)
    try:
        reader = _reader(gguf, path)
    except (OSError, ValueError, IndexError) as error:
        raise SmeltError("SM0118", f"{path} is no GGUF file", why=str(error)) from error
    architecture = reader.fields["general.architecture"].contents()
    if architecture not in ARCHITECTURES:
        remedy = "AutoModelForCausalLM.from_pretrained(folder, gguf_file=name), then smelt.quantize(model)"
        what = f"{path.name} has architecture {architecture!r}; smelt loads {', '.join(ARCHITECTURES)}"
        raise SmeltError("SM0118", what, remedy=remedy)
    place: dict[str, Any] = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    with _known(gguf, path, reader):
        config = transformers.AutoConfig.from_pretrained(**place)
        words = transformers.AutoTokenizer.from_pretrained(**place) if tokenizer else None
    for name in [name for name in reader.fields if name.startswith("tokenizer.")]:
        del reader.fields[name]  # objects for each of some 100,000 words
    give_back()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    _Loader(gguf, reader, architecture, dtype, activations).fill(model.eval(), path.name)
    return (model, words) if tokenizer else model


def _reader(gguf: Any, path: Path) -> Any:
    """The file as the package ``gguf`` reads it, in a third of the time.

    Each of some 100,000 words of a vocabulary is a slice of the file's memory, and slices of ``np.memmap``
    are slow. Pages are copied when they are written to, because PyTorch warns of memory that is not writable.
    """

    class Reader(gguf.GGUFReader):  # type: ignore[name-defined, misc]
        @property
        def data(self) -> np.ndarray:
            return self._data

        @data.setter
        def data(self, memory: np.memmap) -> None:
            self._data, self.mapped = memory.view(np.ndarray), memory

    return Reader(path, "c")


@contextmanager
def _known(gguf: Any, path: Path, reader: Any) -> Iterator[None]:
    """A context in which transformers gets ``reader`` for the file, instead of reading it again."""
    original = gguf.GGUFReader

    def opened(file: Any, *args: Any) -> Any:
        return reader if Path(file) == path else original(file, *args)

    gguf.GGUFReader = opened
    try:
        yield
    finally:
        gguf.GGUFReader = original


def _needed(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        remedy = 'pip install "torch-smelt[chat]"'
        raise SmeltError(
            "SM0117", f"smelt.load_gguf needs {package}", why=str(error), remedy=remedy
        ) from error


@dataclass(frozen=True, slots=True)
class _Loader:
    """A file's tensors (``reader`` of the package ``gguf``) for a model on the meta device."""

    gguf: Any
    reader: Any
    architecture: str
    dtype: torch.dtype
    activations: str | None = None

    def fill(self, model: Any, file: str) -> None:
        """Give the model its parameters and buffers."""
        tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        frequencies = tensors.pop(_FREQUENCIES, None)
        names = self._names(model)
        problems = [f"{name} is missing: {stored}" for name, stored in names.items() if stored not in tensors]
        problems += [f"{name} is not the model's" for name in tensors.keys() - set(names.values())]
        if problems:
            what = f"{file}: tensors that do not fit {type(model).__name__}\n    - " + "\n    - ".join(
                problems
            )
            raise SmeltError("SM0119", what)
        owners = _owners(model)
        floats: set[str] = set()
        quantized = []
        for name, stored in names.items():
            tensor, places = tensors[stored], owners[id(model.get_parameter(name))]
            kind = tensor.tensor_type.name
            if kind in KINDS and all(is_plain(module) for _, module, _ in places):
                quantized.append((places, tensor))
                continue
            if kind not in ("F32", "F16", "BF16"):
                floats.add(kind)
            parameter = nn.Parameter(self._floats(tensor), requires_grad=False)
            for _, module, attribute in places:
                module._parameters[attribute] = parameter
        for places, tensor in quantized:  # last: the new modules take the biases
            self._replace(places, self._weight(tensor))
            self._let_go(tensor)
        if floats:
            logger.warning("smelt.load_gguf: tensors of %s become %s", ", ".join(sorted(floats)), self.dtype)
        _fill_buffers(model, None if frequencies is None else self._floats(frequencies, torch.float32))

    def _names(self, model: Any) -> dict[str, str]:
        """The model's name of each parameter → the file's; shared parameters have one."""
        known = {name: arch for arch, name in self.gguf.MODEL_ARCH_NAMES.items()}
        names = self.gguf.get_tensor_name_map(known[self.architecture], model.config.num_hidden_layers)
        return {
            name: names.get_name(name, try_suffixes=(".weight", ".bias")) or "?"
            for name, _ in model.named_parameters()
        }

    def _weight(self, tensor: Any) -> QuantizedWeight:
        columns, rows = (int(size) for size in tensor.shape)
        format, planes = planes_of(torch.from_numpy(tensor.data), tensor.tensor_type.name)
        order = self._order(tensor.name, rows)
        if order is not None:
            planes = [plane[order] for plane in planes]
        return QuantizedWeight(format, planes, columns, self.dtype)

    def _floats(self, tensor: Any, dtype: torch.dtype | None = None) -> Tensor:
        values = torch.from_numpy(self.gguf.dequantize(tensor.data, tensor.tensor_type))
        order = self._order(tensor.name, values.shape[0])
        return (values.clone() if order is None else values[order]).to(dtype or self.dtype)

    def _order(self, name: str, rows: int) -> Tensor | None:
        """The row of the file for each row of the model.

        llama.cpp rotates neighbouring rows of queries and keys, transformers those of a head's two halves.
        """
        if self.architecture != "llama" or not (".attn_q." in name or ".attn_k." in name):
            return None
        field = "head_count" if ".attn_q." in name else "head_count_kv"
        fields = self.reader.fields
        found = fields.get(f"llama.attention.{field}") or fields["llama.attention.head_count"]
        return torch.arange(rows).view(int(found.contents()), -1, 2).transpose(1, 2).flatten()

    def _let_go(self, tensor: Any) -> None:
        """Gives back the memory of the file's pages that a tensor has been read from."""
        mapped: Any = getattr(self.reader.mapped, "_mmap", None)
        if hasattr(mapped, "madvise"):  # on Unix
            first = int(tensor.data_offset) // mmap.PAGESIZE * mmap.PAGESIZE
            last = int(tensor.data_offset + tensor.n_bytes)
            mapped.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _replace(self, places: list[tuple[nn.Module, Any, str]], weight: QuantizedWeight) -> None:
        """Put modules with a quantized weight in the place of modules whose weight it is."""
        for parent, module, _ in places:
            (name,) = (name for name, each in parent.named_children() if each is module)
            setattr(parent, name, with_weight(module, weight, self.activations))


def _owners(model: nn.Module) -> dict[int, list[tuple[nn.Module, nn.Module, str]]]:
    """The id of each parameter → the modules that have it: (parent, module, attribute)."""
    found: dict[int, list[tuple[nn.Module, nn.Module, str]]] = {}
    for parent, module in _with_parents(model):
        for attribute, parameter in module.named_parameters(recurse=False):
            found.setdefault(id(parameter), []).append((parent, module, attribute))
    return found


def _with_parents(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    yield model, model
    for parent in model.modules():
        for module in parent.children():
            yield parent, module


def _fill_buffers(model: Any, divisors: Tensor | None) -> None:
    """Compute the buffers that the model's construction on the meta device has left out."""
    for module in model.modules():
        if not any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            continue
        module.to_empty(device="cpu", recurse=False)
        model._init_weights(module)
        if divisors is not None and hasattr(module, "inv_freq"):
            module.inv_freq /= divisors
    left = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    left += [name for name, parameter in model.named_parameters() if parameter.is_meta]
    assert not left, f"{left} of {type(model).__name__} have no values"
