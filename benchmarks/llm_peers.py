"""Peers of `llm.py` whose models have formats of their own: OpenVINO and ONNX Runtime.

`pip install openvino openvino-genai nncf gguf`; `pip install onnxruntime-genai onnx_ir torch transformers`.
A process of its own converts a model, `python benchmarks/llm_peers.py KIND FORMAT FROM FOLDER`, so that the
memory of the contender is that of a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Next = Callable[[Sequence[int], int], int]


def openvino(worker: Any) -> tuple[Next, int]:
    """OpenVINO's runtime with the model that OpenVINO GenAI reads from the GGUF file. It stays as it is, or
    NNCF quantizes it from float16: int8 a channel, int4 in groups of 32. All else is OpenVINO's choice:
    products and cache are bfloat16 or 8 bits where the processor has them.
    """
    import numpy
    import openvino

    folder = _converted("openvino", os.environ["SMELT_LLM_FILE"], worker)
    config: dict[str, Any] = {"INFERENCE_NUM_THREADS": worker.threads, "PERFORMANCE_HINT": "LATENCY"}
    if worker.format in ("f32", "bf16"):
        config["INFERENCE_PRECISION_HINT"] = worker.format
    request = openvino.Core().compile_model(folder / "model.xml", "CPU", config).create_infer_request()

    def following(tokens: Sequence[int], at: int) -> int:
        if at == 0:
            request.reset_state()
        end = at + len(tokens)
        given = {"input_ids": numpy.array([tokens]), "attention_mask": numpy.ones((1, end), numpy.int64)}
        given |= {"position_ids": numpy.arange(at, end)[None], "beam_idx": numpy.zeros(1, numpy.int32)}
        request.infer(given)
        return int(request.get_output_tensor(0).data[0, -1].argmax())

    return following, (folder / "model.bin").stat().st_size


def _to_openvino(format: str, file: str, folder: Path) -> None:
    import numpy
    import openvino
    import openvino_genai

    given = folder / "given.gguf"
    if format == "file" or _is_half(file):
        given.symlink_to(file)
    else:
        _in_half(file, str(given))
    openvino_genai.LLMPipeline(given, "CPU", enable_save_ov_model=True)  # writes what it has read beside it
    model = openvino.Core().read_model(folder / "openvino_model.xml")
    head = model.output("logits").get_node().input_value(0).get_node()
    while head.get_type_name() != "MatMul":
        head = head.input_value(0).get_node()
    ends = [numpy.array([each]) for each in (-1, 2**31 - 1, 1, 1)]  # the last token's logits, as GenAI has it
    head.input(0).replace_source_output(openvino.opset13.slice(head.input_value(0), *ends).output(0))
    model.validate_nodes_and_infer_types()
    if format in ("int8", "int4"):
        import nncf

        modes = nncf.CompressWeightsMode
        groups = {"mode": modes.INT4_SYM, "group_size": 32, "ratio": 1.0, "all_layers": True}
        model = nncf.compress_weights(model, **({"mode": modes.INT8_SYM} if format == "int8" else groups))
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=format == "bf16")


def _in_half(file: str, target: str) -> None:
    """A GGUF file with the values of another one's weights in float16."""
    import gguf

    reader = gguf.GGUFReader(file)
    writer = _with_fields(reader, target, {"general.file_type": HALF})
    for each in reader.tensors:
        _add(writer, each.name, gguf.quants.dequantize(each.data, each.tensor_type))
    _end(writer)


def random_file(shape: dict[str, int], file: str, target: str) -> None:
    """A GGUF file of random weights in float16: a Llama of a shape (a configuration's names) with the first
    words of another file's tokenizer.
    """
    import gguf
    import numpy

    hidden, inner, words = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    heads, few = shape["num_attention_heads"], shape["num_key_value_heads"]
    reader = gguf.GGUFReader(file)
    own = {f"tokenizer.ggml.{each}": reader.fields[f"tokenizer.ggml.{each}"].contents() for each in PIECES}
    tokens = own["tokenizer.ggml.tokens"][:words]
    own["tokenizer.ggml.tokens"] = tokens
    own["tokenizer.ggml.token_type"] = own["tokenizer.ggml.token_type"][:words]
    known = set(tokens)
    merges = [each for each in own["tokenizer.ggml.merges"] if each.replace(" ", "") in known]
    own["tokenizer.ggml.merges"] = merges
    own |= {
        "general.file_type": HALF,
        "llama.vocab_size": words,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": inner,
        "llama.block_count": shape["num_hidden_layers"],
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": few,
        "llama.rope.dimension_count": hidden // heads,
    }
    writer = _with_fields(reader, target, own)
    block = numpy.random.default_rng(0).normal(0.0, 0.02, 2**22).astype(numpy.float16)

    def add(name: str, *sizes: int) -> None:
        _add(writer, f"{name}.weight", numpy.resize(block, sizes) if sizes[1:] else numpy.ones(sizes))

    narrow = hidden // heads * few
    add("token_embd", words, hidden)
    for layer in range(shape["num_hidden_layers"]):
        for name, *sizes in (
            *(("attn_norm", hidden), ("attn_q", hidden, hidden), ("attn_k", narrow, hidden)),
            *(("attn_v", narrow, hidden), ("attn_output", hidden, hidden), ("ffn_norm", hidden)),
            *(("ffn_gate", inner, hidden), ("ffn_up", inner, hidden), ("ffn_down", hidden, inner)),
        ):
            add(f"blk.{layer}.{name}", *sizes)
    add("output_norm", hidden)
    add("output", words, hidden)
    _end(writer)


HALF = 1
"""The number of float16 among the types of files."""
PIECES = ("tokens", "token_type", "merges")
"""The parts of a tokenizer that have an element for each of its words."""


def _is_half(file: str) -> bool:
    import gguf

    return bool(gguf.GGUFReader(file).fields["general.file_type"].contents() == HALF)


def _with_fields(reader: Any, target: str, own: dict[str, Any]) -> Any:
    """A writer with the fields of a reader, but for some of its own."""
    import gguf

    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = own[field.name] if field.name in own else field.contents()
        writer.add_key_value(field.name, value, kind, sub_type=inner)
    return writer


def _add(writer: Any, name: str, values: Any) -> None:
    import numpy

    writer.add_tensor(name, values.astype(numpy.float16 if values.ndim > 1 else numpy.float32))


def _end(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def onnxruntime(worker: Any) -> tuple[Next, int]:
    """ONNX Runtime GenAI with the model that its builder makes of a checkpoint: MatMulNBits for int8 and int4
    in groups of 32, with activations in 8 bits (accuracy level 4, its choice on CPUs).
    """
    import numpy
    import onnxruntime_genai

    folder = _converted("onnxruntime", os.environ["SMELT_LLM_CHECKPOINT"], worker)
    config = onnxruntime_genai.Config(str(folder))
    threads = {"intra_op_num_threads": worker.threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
    model = onnxruntime_genai.Model(config)
    search = onnxruntime_genai.GeneratorParams(model)
    search.set_search_options(max_length=worker.length + 1, min_length=worker.length + 1, do_sample=False)
    generator = onnxruntime_genai.Generator(model, search)

    def following(tokens: Sequence[int], at: int) -> int:
        if at == 0:
            generator.rewind_to(0)
            generator.append_tokens(numpy.array(tokens, numpy.int32))
        generator.generate_next_token()  # after its own last one
        return int(generator.get_next_tokens()[0])

    return following, sum(each.stat().st_size for each in folder.glob("model.onnx*"))


def _to_onnxruntime(format: str, checkpoint: str, folder: Path) -> None:
    precision = {"f32": "fp32"}.get(format, format)
    words = ["-m", "model", "-i", checkpoint, "-o", str(folder), "-p", precision, "-e", "cpu"]
    words += ["-c", str(folder / "cache"), "--extra_options", "block_size=32", "accuracy_level=4"]
    subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", *words], check=True)


CONVERT = {"openvino": _to_openvino, "onnxruntime": _to_onnxruntime}


def _converted(kind: str, given: str, worker: Any) -> Path:
    """The folder of a converted model."""
    folder = Path(worker.folder) / "converted"
    if not folder.exists():
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, __file__, kind, worker.format, given, str(folder)],
            capture_output=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise RuntimeError(f"not converted: {lines[-1] if lines else done.returncode}")
    return folder


if __name__ == "__main__":
    CONVERT[sys.argv[1]](sys.argv[2], sys.argv[3], Path(sys.argv[4]))
