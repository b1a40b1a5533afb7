"""smelt explain on small programs."""

from __future__ import annotations

import pytest

from smelt.reporting import STAGES


def test_explain_tells_kernels_calls_and_no_fallbacks(smelt_command, programs):
    code, out, err = smelt_command("explain", f"{programs}:good", "-o", "contractions=false")
    assert code == 0, err
    assert "(inference): 1 graph(s), 0 graph break(s)" in out
    assert "aten.addmm.default" in out
    assert "operators fused in it" in out
    assert "no fallbacks" in out
    assert "compiling" in err


def test_explain_train_has_forward_and_backward(smelt_command, programs):
    code, out, err = smelt_command("explain", f"{programs}:good", "--train")
    assert code == 0, err
    assert "(forward and backward): 2 graph(s)" in out
    assert "1 forward, 1 backward" in out


def test_explain_names_the_break_and_its_line(smelt_command, programs):
    code, out, err = smelt_command("explain", f"{programs}:two_graphs")
    assert code == 0, err
    assert "2 graph(s), 1 graph break(s)" in out
    (line,) = [line for line in out.splitlines() if "break: " in line]
    assert "graph_break" in line
    text = programs.read_text().splitlines()
    number = next(n for n, source in enumerate(text, 1) if "torch._dynamo.graph_break()" in source)
    assert f"{programs}:{number} in forward" in out.replace("\n", "")


@pytest.mark.parametrize("stage", STAGES)
def test_explain_prints_each_stage_alone(stage, smelt_command, programs):
    code, out, err = smelt_command("explain", f"{programs}:good", "--stage", stage)
    assert code == 0, err
    assert out.strip()
    assert "operators fused" not in out
    expected = {"cpp": 'extern "C"', "fx": "aten", "contract": "addmm", "plan": "_arena"}
    assert expected.get(stage, "") in out


def test_explain_prints_the_ir_around_a_pass(smelt_command, programs):
    asked = ("explain", f"{programs}:good", "--before", "fuse_items", "--after", "fuse_items")
    code, out, err = smelt_command(*asked)
    assert code == 0, err
    before, after = out.split("group 0", 1)
    assert "loops (" in before and "group 1" in after
    code, more, err = smelt_command(*asked, "--stage", "plan")
    assert code == 0, err
    assert "_arena" in more and "_arena" not in out and "group 1" in more


def test_explain_lists_the_passes_without_a_program(smelt_command):
    code, out, err = smelt_command("explain", "--passes")
    assert code == 0, err
    assert (
        out.index("inline_calls")
        < out.index("lower_calls")
        < out.index("fuse_items")
        < out.index("write_plan")
    )


def test_explain_asks_for_a_program(smelt_command):
    code, _, err = smelt_command("explain")
    assert code == 2 and "which program?" in err


def test_explain_dynamic_names_the_symbols(smelt_command, programs):
    code, out, err = smelt_command("explain", f"{programs}:good", "--dynamic")
    assert code == 0, err
    assert "seen: 4" in out


def test_explain_leaves_the_environment_alone(smelt_command, programs, cache_of_its_own):
    import os

    before = dict(os.environ)
    smelt_command("explain", f"{programs}:good", "--stage", "fx")
    assert dict(os.environ) == before


def test_capture_shows_every_way(smelt_command, programs):
    code, out, err = smelt_command("capture", f"{programs}:two_graphs", "--graphs")
    assert code == 0, err
    assert all(way in out for way in ("fx.symbolic_trace", "torch.jit.trace", "make_fx", "torch.export"))
    assert "2 graphs, 1 break" in out and "called again: right" in out and "graph():" in out
    code, out, err = smelt_command("capture", f"{programs}:good", "--json")
    assert code == 0 and '"way": "Dynamo"' in out


def test_explain_compiles_for_a_gpu_that_is_not_there(smelt_command, programs):
    code, out, err = smelt_command("explain", f"{programs}:good", "--gpu", "sm90", "--stage", "triton")
    assert code == 0, err
    assert "@triton.jit" in out and "tl.program_id(0)" in out
    code, out, err = smelt_command("explain", f"{programs}:good", "--gpu", "sm90x")
    assert code == 2 and "SM0102: no GPU architecture 'sm90x'" in err
