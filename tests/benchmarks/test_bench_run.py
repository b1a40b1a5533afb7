"""The command line, who takes part, turns, and what a program's results hold."""

from __future__ import annotations

import math
import os
import time

import pytest

import kernels
import run
import team
import worker
import zoo
from contenders import BEFORE, CONTENDERS, OURS, PEERS, USUAL, Contender
from smelt.cli.measure import Timing
from smelt.tracing import peaks


def test_usual_run_is_all_models_and_all_peers():
    options = run.parse([])
    assert options.models == zoo.MODELS
    assert len(options.models) == 8
    assert options.contenders == USUAL
    assert set(PEERS) - set(USUAL) == {"tvm", BEFORE}
    assert options.mode == "both"


def test_names_are_separated_by_commas_and_eager_is_always_there():
    arguments = ["--models", "tiny,gpt2", "--contenders", "smelt", "--kernels", "none", "--threads", "1"]
    options = run.parse([*arguments, "--train"])
    assert options.models == ("tiny", "gpt2")
    assert options.contenders == ("eager", "smelt")
    assert options.kernels == ()
    assert options.threads == (1,)
    assert options.mode == "train"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--models", "nothing"], "unknown: nothing (known: minilm"),
        (["--contenders", "xla"], "unknown: xla"),
        (["--threads", "two"], "takes numbers"),
        (["--threads", "0"], "below 1"),
        (["--seconds", "0"], "more than 0"),
    ],
)
def test_bad_arguments_are_refused_with_one_line(arguments, says, capsys):
    with pytest.raises(SystemExit) as exit_:
        run.parse(arguments)
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err


def test_a_contender_that_is_not_installed_says_what_to_install():
    absent = Contender("absent", lambda program, setup: program.call, ("no_such_module",))
    assert "no_such_module (pip install 'torch-smelt[bench]')" in str(absent.reason_to_sit_out(train=False))


def test_who_cannot_train_says_so():
    assert CONTENDERS["openvino"].reason_to_sit_out(train=True) == "inference only"
    assert CONTENDERS["smelt"].reason_to_sit_out(train=True) is None


def test_smelt_takes_part_in_its_modes_and_for_all_sizes():
    setups = {name: CONTENDERS[name].setup(train=False, dynamic=None) for name in OURS}
    assert {name: dict(setup.options).get("mode") for name, setup in setups.items()} == {
        **dict.fromkeys(("smelt", "smelt-dynamic")),
        **dict.fromkeys(("smelt-max", "smelt-max-dynamic"), "max"),
    }
    assert [name for name, setup in setups.items() if setup.dynamic] == ["smelt-dynamic", "smelt-max-dynamic"]
    assert CONTENDERS["smelt"].setup(train=True, dynamic=True).dynamic is True
    assert not set(OURS) & set(PEERS)


def test_results_hold_every_contender_that_was_asked_for():
    setting = run.Setting("inference", 1, False, ("eager", "smelt", "openvino"))
    times = {"eager": Timing((0.2, 0.4), 1), "smelt": Timing((0.1, 0.1), 1)}
    found = run.document("tiny", setting, {"smelt": {"own_seconds": 0.5}}, times, {"openvino": "why not"})
    assert list(found["contenders"]) == ["eager", "smelt", "openvino"]
    assert found["contenders"]["smelt"]["speedup"] == pytest.approx(3.0)
    assert found["contenders"]["smelt"]["own_seconds"] == 0.5
    assert found["contenders"]["openvino"]["failed"] == "why not"
    assert "flops" not in found
    assert run.document("matmul_512", setting, {}, {}, {})["flops"] == 2 * 512**3


class Runner:
    """Takes turns without doing anything; fails at the turn it is told to."""

    def __init__(self, name, log, fails_at=math.inf):
        self.name, self.log, self.fails_at, self.turns = name, log, fails_at, 0

    def turn(self, program, calls):
        self.turns += 1
        self.log.append((self.name, calls))
        if self.turns >= self.fails_at:
            raise team.FailedError("enough")
        return 1.0


def test_turns_alternate_and_are_long_enough_for_the_clock():
    log = []
    usual = {"a": 1.0, "b": team.TURN_SECONDS / 4}
    times, failures = team.race({name: Runner(name, log) for name in "ab"}, "tiny", usual, seconds=0)
    assert [name for name, _ in log[:6]] == ["a", "b", "b", "a", "a", "b"]
    assert dict(log) == {"a": 1, "b": 4}
    assert {len(timing.seconds) for timing in times.values()} == {len(log) // 2}
    assert failures == {}


def test_who_fails_leaves_the_race_with_the_reason_and_the_others_go_on():
    log = []
    runners = {"a": Runner("a", log), "b": Runner("b", log, fails_at=2)}
    times, failures = team.race(runners, "tiny", {"a": 1.0, "b": 1.0}, seconds=0)
    assert failures == {"b": "while timed: enough"}
    assert list(times) == ["a"]
    assert runners["a"].turns > runners["b"].turns


def test_a_race_of_nobody_ends():
    assert team.race({}, "tiny", {}, seconds=5) == ({}, {})


@pytest.mark.parametrize("name", ["bert_up", "resnet_3x3_14", "mobilenet_depthwise_56", "matmul_512"])
def test_a_kernels_bytes_are_those_of_its_tensors(name):
    kernel = kernels.KERNELS[name]
    model, args, kwargs = kernel.program()
    tensors = [*args, *model.parameters(), model(*args, **kwargs)]
    assert kernel.moved == sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_a_kernel_is_held_against_the_multiply_adds_of_its_round():
    found = {"flops": 600, "contenders": {"smelt": {}, "eager": {}}}
    loop = Timing((1.0, 2.0, 1.0), 1)  # 1000 operations a second, in the second round half as many
    run.Pace(None, operations=1000, usual=1.0).tell(found, loop, {"smelt": Timing((0.75, 1.5, 3.0), 1)})
    assert found["contenders"]["smelt"]["of_peak_flops"] == pytest.approx(0.8)
    assert found["contenders"]["smelt"]["of_peak_flops_fastest"] == pytest.approx(0.8)  # 0.75 and 1.0
    assert "of_peak_flops" not in found["contenders"]["eager"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot choose processors here")
@pytest.mark.parametrize("threads", [1, 2])
def test_one_thread_takes_turns_where_everybody_does(threads):
    allowed = os.sched_getaffinity(0)
    seen = []
    worker_of_one = worker.Worker.__new__(worker.Worker)
    worker_of_one.threads = threads
    worker_of_one.runs = {"program": lambda: seen.append(os.sched_getaffinity(0))}
    worker_of_one.turn("program", 2)
    assert seen == [{max(allowed)} if threads == 1 else allowed] * 3
    assert os.sched_getaffinity(0) == allowed


def test_multiply_adds_do_what_they_say():
    multiply_adds, operations = peaks.multiply_adds(1)
    assert operations >= 2 * peaks.CHAINS * peaks.STEPS * 4
    start = time.perf_counter()
    multiply_adds()
    assert time.perf_counter() - start > operations / 1e13, "the compiler has left the loop out"


def test_another_checkout_takes_turns(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run.parse(["--against", str(tmp_path)])
    assert "--against takes a checkout of smelt" in capsys.readouterr().err
    (tmp_path / "src" / "smelt").mkdir(parents=True)
    options = run.parse(["--against", str(tmp_path), "--contenders", "smelt"])
    assert options.contenders == ("eager", "smelt", BEFORE) and options.against == tmp_path


def test_another_checkout_is_run_by_its_own_worker(tmp_path):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "worker.py").write_text(
        "import json, os, sys\n"
        "sys.stdin.readline()\n"
        "print(json.dumps({'path': os.environ['PYTHONPATH'], 'given': sys.argv[1:]}), flush=True)\n"
    )
    with team.Member(BEFORE, 1, str(tmp_path), 60, tmp_path) as member:
        said = member.ask("ready")
    assert said == {"path": str(tmp_path / "src"), "given": ["smelt", "1"]}
