"""smelt bench: what it measures, writes and says. No assertion is about a time's size."""

from __future__ import annotations

import json

import pytest

from smelt.cli import bench as module
from smelt.cli import jobs
from smelt.cli.bench import Request

RUN_KEYS = {"median", "min", "max", "rounds", "calls_per_turn"}
COMPILE_KEYS = {"seconds", "own_seconds", "phases", "peak_bytes", "report"}
ACCURACY_KEYS = {"compared", "reason", "within_promise", "worst", "differences"}


def test_bench_writes_all_of_its_schema(smelt_command, programs, tmp_path):
    target = tmp_path / "out.json"
    spec = f"{programs}:good"
    words = ["--vs", "aot_eager", "--seconds", "0", "--threads", "1", "--json", str(target)]
    code, out, err = smelt_command("bench", spec, *words)
    assert code == 0, err
    document = json.loads(target.read_text())
    assert set(document) == {"schema", "spec", "mode", "dynamic", "options", "machine", "contenders"}
    assert document["spec"] == spec
    assert document["mode"] == "inference"
    assert document["machine"]["threads"] == 1
    assert set(document["contenders"]) == {"eager", "smelt", "aot_eager"}
    for name, contender in document["contenders"].items():
        assert set(contender) == {"run", "speedup", "compile", "accuracy", "failed"}
        assert set(contender["run"]) == RUN_KEYS
        assert contender["run"]["min"] <= contender["run"]["median"] <= contender["run"]["max"]
        assert contender["failed"] is None
        if name != "eager":
            assert set(contender["accuracy"]) == ACCURACY_KEYS
            assert contender["accuracy"]["compared"]
            assert contender["accuracy"]["within_promise"]
            assert set(contender["compile"]) == {"cold", "warm"}
            for half in contender["compile"].values():
                assert set(half) == COMPILE_KEYS
    cold, warm = (document["contenders"]["smelt"]["compile"][name] for name in ("cold", "warm"))
    assert cold["own_seconds"] == pytest.approx(sum(cold["phases"].values()))
    assert cold["report"]["kernels"] >= 1
    assert cold["report"]["fallbacks"] == []
    assert cold["report"]["cache_hits"] == 0
    assert warm["report"]["cache_hits"] == warm["report"]["graphs"] == 1
    for part in ("run time", "compile time", "within the promise", "kernels in", "fallbacks: 0"):
        assert part in out
    assert "smelt: first call, empty cache" in err
    assert f"written: {target}" in err


def test_bench_train_compares_gradients_and_json_alone_goes_to_stdout(smelt_command, programs):
    words = ["--train", "--no-compile-times", "--seconds", "0", "--json", "-"]
    code, out, err = smelt_command("bench", f"{programs}:good", *words)
    assert code == 0, err
    document = json.loads(out)
    assert document["mode"] == "train"
    assert document["contenders"]["smelt"]["compile"] is None
    names = [each["name"] for each in document["contenders"]["smelt"]["accuracy"]["differences"]]
    expected = ["linear.weight", "linear.bias", "norm.weight", "norm.bias"]
    assert names == ["output 0", *(f"gradient of {name}" for name in expected)]


def test_bench_takes_functions_keywords_and_integer_outputs(smelt_command, programs):
    words = ["--no-compile-times", "--seconds", "0", "--json", "-"]
    code, out, err = smelt_command("bench", f"{programs}:keywords", *words)
    assert code == 0, err
    differences = json.loads(out)["contenders"]["smelt"]["accuracy"]["differences"]
    assert [each["dtype"] for each in differences] == ["float32", "int64"]


def test_model_that_raises_in_eager_is_one_line(smelt_command, programs):
    code, out, err = smelt_command("bench", f"{programs}:raises_in_eager", "--no-compile-times")
    assert code == 2
    assert "SM0906" in err
    assert "mat1 and mat2 shapes cannot be multiplied" in err
    assert "Traceback" not in err
    assert out == ""


def _race(**changes):
    accuracy = {
        "compared": True,
        "reason": "",
        "within_promise": True,
        "worst": {"name": "output 0", "contender": 1e-7, "eager": 1e-7, "ratio": 1.0, "why": ""},
        "differences": [{}],
    }
    run = {"median": 1e-3, "min": 1e-3, "max": 1e-3, "rounds": 5, "calls_per_turn": 1}
    return {
        "times": {"eager": run, "smelt": run},
        "ratios": {"eager": 1.0, "smelt": 1.0},
        "accuracy": {"smelt": {**accuracy, **changes}},
        "failures": {},
        "machine": {"torch": "0", "python": "0", "isa": "none", "threads": 1},
    }


def test_numbers_outside_the_promise_are_said_and_exit_code_1(smelt_command, programs, monkeypatch):
    worst = {"name": "output 3", "contender": 0.5, "eager": 1e-7, "ratio": 5e6, "why": ""}
    monkeypatch.setattr(jobs, "run", lambda job, variables: _race(within_promise=False, worst=worst))
    code, out, _ = smelt_command("bench", f"{programs}:good", "--no-compile-times")
    assert code == 1
    assert "NOT within the promise" in out
    assert "output 3" in out


def test_numbers_that_cannot_be_compared_say_why(smelt_command, programs, monkeypatch):
    race = _race(compared=False, reason="the model draws random numbers", worst=None, differences=[])
    monkeypatch.setattr(jobs, "run", lambda job, variables: race)
    code, out, _ = smelt_command("bench", f"{programs}:good", "--no-compile-times")
    assert code == 0
    assert "not compared: the model draws random numbers" in out


def test_another_backend_that_fails_is_a_row_and_smelt_that_fails_is_a_bug(programs, monkeypatch):
    def run(job, variables):
        if job["task"] == "compare":
            assert job["contenders"] == ("smelt",)
            return _race()
        if job["contenders"] == (broken,):
            raise jobs.WorkerError("Traceback\nRuntimeError: out of luck")
        return {"seconds": 1.0, "own_seconds": 1.0, "phases": {}, "peak_bytes": 0, "report": None}

    monkeypatch.setattr(jobs, "run", run)
    broken = "inductor"
    document = module.measure(Request(f"{programs}:good", ("smelt", "inductor")))
    assert document["contenders"]["inductor"]["failed"] == "RuntimeError: out of luck"
    broken = "smelt"
    with pytest.raises(jobs.WorkerError):
        module.measure(Request(f"{programs}:good", ("smelt",)))


def test_a_measuring_process_that_dies_is_a_bug_with_its_last_words(smelt_command, tmp_path):
    path = tmp_path / "dies.py"
    path.write_text(
        "import os, sys\ndef f():\n    print('last words', file=sys.stderr, flush=True)\n    os._exit(9)\n"
    )
    code, _, err = smelt_command("bench", f"{path}:f", "--no-compile-times")
    assert code == 1
    assert "ended with exit code 9" in err
    assert "last words" in err


def test_what_the_program_prints_does_not_reach_the_json(smelt_command, tmp_path):
    path = tmp_path / "talks.py"
    path.write_text(
        "import torch\ndef f():\n    print('hello')\n    return torch.relu, (torch.ones(4),), {}\n"
    )
    words = ["--no-compile-times", "--seconds", "0", "--compiler", "aot_eager", "--json", "-"]
    code, out, err = smelt_command("bench", f"{path}:f", *words)
    assert code == 0, err
    assert json.loads(out)["contenders"]["aot_eager"]["accuracy"]["within_promise"]


def test_bench_says_that_a_device_is_not_there(smelt_command, programs):
    words = ["--device", "xpu:3", "--seconds", "0", "--no-compile-times"]
    code, _, err = smelt_command("bench", f"{programs}:good", *words)
    assert code == 2 and "SM0915: no device 'xpu:3' here" in err
    words[1] = "cpu"
    code, _, err = smelt_command("bench", f"{programs}:good", *words)
    assert code == 0, err
