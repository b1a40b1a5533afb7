"""One contender of `llm.py`: a process that takes orders as lines of JSON, and answers each with one.

`python benchmarks/llm_worker.py KIND FORMAT MODEL THREADS PROMPT DECODE FOLDER`. At its top are only imports
of Python's own: llama.cpp may live in an environment without torch.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llm_peers

SHAPES = {
    "1b": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 32000,
    },
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 256,
    },
}
READ_BYTES = 256 * 2**20
_READS = """
#include <stddef.h>
typedef unsigned long vector __attribute__((vector_size(64)));
extern "C" unsigned long reads(const vector* memory, size_t count) {
  vector sums[8] = {};
  for (size_t at = 0; at < count; at += 8)
#pragma GCC unroll 8
    for (int chain = 0; chain < 8; ++chain) sums[chain] ^= memory[at + chain];
  unsigned long total = 0;
  for (int chain = 0; chain < 8; ++chain) total ^= sums[chain][chain];
  return total;
}
"""
Answer = dict[str, Any]
Next = Callable[[Sequence[int], int], int]
"""The likeliest token after these, the first of which is at this position."""


class Worker:
    """A contender in a format on a model."""

    def __init__(self, words: Sequence[str]) -> None:
        self.kind, self.format, self.model, *numbers, self.folder = words
        self.threads, prompt, self.decode = map(int, numbers)
        self.tokens = [(17 * at + 3) % 250 for at in range(prompt)]
        self.length = prompt + self.decode

    def prepare(self) -> Answer:
        """Load the model, and take the first two tokens: seconds of these, compiling among them."""
        self.next, weight_bytes = PREPARE[self.kind](self)
        start = time.perf_counter()
        self.token = self.next(self.tokens, 0)
        first, found = time.perf_counter() - start, [self.token]
        for at in range(min(4, self.decode)):  # automatic dynamic sizes show at the second
            self.token = self.next([self.token], len(self.tokens) + at)
            found.append(self.token)
        seconds = {"first_seconds": first, "compiled_seconds": time.perf_counter() - start}
        return {**seconds, "weight_bytes": weight_bytes, "tokens": found}

    def turn(self, start: bool, count: int) -> Answer:
        """``count`` tokens, after the prompt and an empty cache when ``start``; seconds of both."""
        prompt = None
        if start:
            begin = time.perf_counter()
            self.token = self.next(self.tokens, 0)
            prompt = time.perf_counter() - begin
            self.at = len(self.tokens)
        begin = time.perf_counter()
        for _ in range(count):
            self.token = self.next([self.token], self.at)
            self.at += 1
        return {"prompt_seconds": prompt, "decode_seconds": time.perf_counter() - begin}

    def write(self) -> Answer:
        """Save the model as a checkpoint of ``transformers``, and a tokenizer."""
        import torch

        import smelt

        _model(self).save_pretrained(self.folder)
        if os.environ["SMELT_LLM_FILE"]:
            _, tokenizer = smelt.load_gguf(os.environ["SMELT_LLM_FILE"], torch.float32, tokenizer=True)
            tokenizer.save_pretrained(self.folder)
        return {}

    def write_file(self) -> Answer:
        """Save random weights in the model's shape as a GGUF file."""
        target = os.path.join(self.folder, "model.gguf")
        llm_peers.random_file(SHAPES[self.model], os.environ["SMELT_LLM_FILE"], target)
        return {"file": target}

    def memory(self) -> Answer:
        """The most memory that the process has had."""
        return {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


class Reader:
    """Reads of memory, on as many threads."""

    def __init__(self, words: Sequence[str]) -> None:
        self.threads, self.folder = int(words[3]), words[-1]

    def prepare(self) -> Answer:
        """Compile the loop, and fill the memory."""
        from smelt.runtime import toolchain

        source, library = Path(self.folder) / "reads.cpp", Path(self.folder) / "reads.so"
        source.write_text(_READS)
        compiler = toolchain.find()
        command = [*compiler.command, *compiler.tuning, "-O3", "-shared", "-fPIC"]
        subprocess.run([*command, str(source), "-o", str(library)], check=True, capture_output=True)
        self.loop = ctypes.CDLL(str(library)).reads
        self.loop.argtypes, self.loop.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_ulong
        self.memory = ctypes.create_string_buffer(b"\1" * (READ_BYTES + 64), READ_BYTES + 64)
        self.pool = ThreadPoolExecutor(self.threads)
        return {}

    def turn(self, start: bool, count: int) -> Answer:
        """Bytes a second: the best of some reads of all of the memory."""
        begin = -(-ctypes.addressof(self.memory) // 64) * 64
        vectors = READ_BYTES // 64 // self.threads // 8 * 8
        best = float("inf")
        for _ in range(5):
            since = time.perf_counter()
            places = [begin + at * vectors * 64 for at in range(self.threads)]
            for done in [self.pool.submit(self.loop, place, vectors) for place in places]:
                done.result()
            best = min(best, time.perf_counter() - since)
        return {"bytes_a_second": vectors * 64 * self.threads / best}


def _model(worker: Worker) -> Any:
    """The model in its format. Random weights are made in bfloat16, the final dtype but for float32."""
    import torch
    import transformers

    import smelt
    from smelt.quantized.convert import dequantize

    torch.set_num_threads(worker.threads)
    dtype = torch.bfloat16 if worker.format == "bf16" else torch.float32
    format = worker.format.rstrip("a")
    activations = "int8" if format != worker.format else None
    if worker.model == "smollm2":
        model = smelt.load_gguf(os.environ["SMELT_LLM_FILE"], dtype, activations=activations)
        if format != "file":
            dequantize(model)
    else:
        config = transformers.LlamaConfig(**SHAPES[worker.model], tie_word_embeddings=False)
        small = worker.format != "f32"
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM._from_config(
                config, dtype=torch.bfloat16 if small else dtype
            )
        model = model.to_empty(device="cpu").eval().requires_grad_(False)
        block = torch.empty(2**22).normal_(0.0, 0.02, generator=torch.Generator().manual_seed(0))
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
                continue
            for part in parameter.view(-1).split(len(block)):  # numbers that repeat: drawing takes long
                part.copy_(block[: len(part)])
        for module in model.modules():
            if getattr(module, "inv_freq", None) is not None:
                model._init_weights(module)
    if format in ("int8", "int4"):
        smelt.quantize(model, format, activations=activations)
        model.to(torch.float32)
    return model


def _weight_bytes(model: Any) -> int:
    """The bytes of weights that a token reads: all but an embedding of its own, of which it is one row."""
    head = {id(each) for module in (model.lm_head,) for each in (*module.parameters(), *module.buffers())}
    table = {
        id(each)
        for each in (*model.get_input_embeddings().parameters(), *model.get_input_embeddings().buffers())
    } - head
    tensors = {id(each): each for each in (*model.parameters(), *model.buffers()) if id(each) not in table}
    return sum(each.nbytes for each in tensors.values())


def _eager(worker: Worker) -> tuple[Next, int]:
    return _with_cache(worker, _model(worker), compiled=False)


def _inductor(worker: Worker) -> tuple[Next, int]:
    return _with_cache(worker, _model(worker), compiled=True)


def _with_cache(worker: Worker, model: Any, compiled: bool) -> tuple[Next, int]:
    """transformers' own way: a cache that grows in eager, a static one for a compiler."""
    import torch
    import transformers

    forward = torch.compile(model.forward) if compiled else model.forward
    cache: Any = None

    @torch.no_grad()
    def following(tokens: Sequence[int], at: int) -> int:
        nonlocal cache
        if at == 0:
            cache = transformers.DynamicCache(config=model.config)
            if compiled:
                cache = transformers.StaticCache(config=model.config, max_cache_len=worker.length)
        places = torch.arange(at, at + len(tokens))[None]
        given = {"position_ids": places, "past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
        return int(forward(input_ids=torch.tensor([tokens]), **given).logits[0, -1].argmax())

    return following, _weight_bytes(model)


def _smelt(worker: Worker) -> tuple[Next, int]:
    import smelt

    model = _model(worker)
    generator = smelt.Generator(model, max_length=worker.length)

    def following(tokens: Sequence[int], at: int) -> int:
        generator.length = at
        return int(generator.logits(tokens).argmax())

    return following, _weight_bytes(model)


_FILE_TYPES = {"q8_0": 7, "q4_0": 2}  # numbers of llama.h


def _llama(worker: Worker) -> tuple[Next, int]:
    """llama.cpp with the file, or with the file quantized once more by llama.cpp itself."""
    import llama_cpp

    file = os.environ["SMELT_LLM_FILE"]
    if worker.format != "file":
        target = os.path.join(worker.folder, f"{worker.format}.gguf")
        how = llama_cpp.llama_model_quantize_default_params()
        how.allow_requantize, how.ftype, how.nthread = True, _FILE_TYPES[worker.format], worker.threads
        if llama_cpp.llama_model_quantize(file.encode(), target.encode(), how):
            raise RuntimeError(f"llama.cpp has not quantized to {worker.format}")
        file = target
    threads = {"n_threads": worker.threads, "n_threads_batch": worker.threads}
    model = llama_cpp.Llama(file, n_ctx=worker.length, n_batch=512, verbose=False, **threads)

    def following(tokens: Sequence[int], at: int) -> int:
        if at == 0:
            model.reset()
        model.eval(tokens)
        logits = llama_cpp.llama_get_logits(model.ctx)
        return _likeliest(logits, model.n_vocab())

    return following, os.path.getsize(file)


def _likeliest(logits: Any, count: int) -> int:
    import numpy

    return int(numpy.ctypeslib.as_array(logits, shape=(count,)).argmax())


PREPARE = {
    "eager": _eager,
    "inductor": _inductor,
    "smelt": _smelt,
    "llama.cpp": _llama,
    "openvino": llm_peers.openvino,
    "onnxruntime": llm_peers.onnxruntime,
}


def main(words: Sequence[str]) -> int:
    """Answer orders until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker: Any = (Reader if words[0] == "reads" else Worker)(words)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(worker, order.pop("do"))(**order)
        except Exception as raised:
            first = str(raised).strip().partition("\n")[0]
            answer = {"error": f"{type(raised).__name__}: {first}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
