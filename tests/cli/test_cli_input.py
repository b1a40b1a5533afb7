"""Help, versions, and bad input: one clear line on stderr, no traceback, exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = (["bench"], ["explain"], ["doctor"], ["cache"], ["cache", "info"], ["cache", "clear"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_says_what_it_does_and_has_an_example(command, smelt_command):
    code, out, _ = smelt_command(*command, "--help")
    assert code == 0
    assert f"Usage: smelt {' '.join(command)}" in out
    assert f"Example: smelt {command[0]}" in out


def test_help_lists_all_commands(smelt_command):
    code, out, _ = smelt_command("--help")
    assert code == 0
    for command in ("bench", "explain", "doctor", "cache"):
        assert command in out


def test_no_arguments_is_help(smelt_command):
    code, out, _ = smelt_command()
    assert "Usage: smelt" in out
    assert code == 2


def test_version_names_smelt_and_torch(smelt_command):
    import torch

    from smelt import __version__

    code, out, _ = smelt_command("--version")
    assert code == 0
    release = torch.__version__.partition("+")[0]  # PyPI's builds have no "+cu130" in their metadata
    assert f"smelt {__version__} (torch {release}" in out


def test_help_and_cache_do_not_import_torch():
    check = (
        "import sys; from smelt.cli import main; code = main(sys.argv[1:]); assert 'torch' not in sys.modules"
    )
    for words in (["--help"], ["bench", "--help"], ["cache"], ["bench", "nonsense"]):
        done = subprocess.run(
            [sys.executable, "-c", check, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_python_dash_m_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "smelt", "bench", "nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("smelt: SM0901: 'nonsense' is no SPEC")


def _is_one_clear_line(err: str) -> bool:
    lines = [line for line in err.splitlines() if not line.endswith("…")]  # progress
    return len(lines) == 1 and lines[0].startswith("smelt: ") and "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench"], "Missing argument 'SPEC'"),
        (["bench", "x:y", "--fast"], "No such option"),
        (["bench", "x:y", "--threads", "0"], "'--threads'"),
        (["bench", "x:y", "--threads", "two"], "'--threads'"),
        (["explain", "x:y", "--stage", "asm"], "'asm' is not one of"),
        (["melt"], "No such command 'melt'"),
        (["bench", "benchmarks"], "SM0901: 'benchmarks' is no SPEC"),
        (["explain", "file.py:"], "SM0901"),
        (["explain", ":factory"], "SM0901"),
        (["explain", "file.py:not a name"], "SM0901"),
        (["bench", "missing.py:factory"], "SM0902: no such file: missing.py"),
        (["explain", "missing/model:factory"], "SM0902: no such file: missing/model"),
        (["explain", "no_such_module_of_ours:factory"], "SM0902: no such module: no_such_module_of_ours"),
        (["explain", "json.no_such_part:factory"], "SM0902: no such module: json.no_such_part"),
        (["explain", "json:lods"], "SM0903: json has no 'lods'; did you mean loads?"),
        (["explain", "json:__name__"], "SM0903: json:__name__ is no function but str"),
        (["bench", "json:loads", "-o", "fusion"], "SM0908: --option 'fusion' is not NAME=VALUE"),
        (["cache", "empty"], "No such command 'empty'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, said, smelt_command):
    code, out, err = smelt_command(*words)
    assert code == 2, err
    assert said in err
    assert _is_one_clear_line(err), err
    assert out == ""


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("raises", "SM0904: {spec} raised RuntimeError: no weights today (at programs_for_tests.py:"),
        ("nothing_like_it", "SM0903"),
        ("number", "SM0903: {spec} is no function but int"),
        ("returns_none", "SM0905: {spec} returned NoneType; return (model, args, kwargs)"),
        ("returns_pair", "SM0905: {spec} returned a tuple of 2; return (model, args, kwargs)"),
        ("returns_number", "SM0905: {spec} returned a model that is not callable: int"),
        ("returns_tensor_args", "SM0905: {spec} returned args that are Tensor, not a tuple"),
        ("returns_bad_kwargs", "SM0905: {spec} returned kwargs that are list, not a dict by name"),
        ("raises_in_eager", "SM0906: {spec} raises in eager: RuntimeError: mat1 and mat2 shapes"),
    ],
)
def test_bad_factory_is_one_line_and_exit_code_2(factory, said, smelt_command, programs):
    spec = f"{programs}:{factory}"
    code, out, err = smelt_command("explain", spec)
    assert code == 2, err
    assert said.format(spec=spec) in err
    assert _is_one_clear_line(err), err
    assert out == ""


def test_file_that_does_not_parse_is_one_line(smelt_command, tmp_path):
    path = tmp_path / "unfinished.py"
    path.write_text("def factory(:\n")
    code, _, err = smelt_command("explain", f"{path}:factory")
    assert code == 2
    assert f"SM0904: importing {path} raised SyntaxError" in err
    assert _is_one_clear_line(err), err


def test_module_that_imports_something_missing_names_that(smelt_command, tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, err = smelt_command("explain", "needs_more:factory")
    assert code == 2
    assert (
        "SM0904: importing needs_more raised ModuleNotFoundError: No module named 'not_installed_anywhere'"
        in err
    )


def test_unknown_compile_option_is_one_line(smelt_command, programs):
    code, _, err = smelt_command("explain", f"{programs}:good", "-o", "speed=11")
    assert code == 2
    assert "SM0101: unknown option 'speed'" in err
    assert _is_one_clear_line(err), err


def test_compile_option_of_the_wrong_type_is_one_line(smelt_command, programs):
    code, _, err = smelt_command("explain", f"{programs}:good", "-o", "fusion=11")
    assert code == 2
    assert "SM0102: option 'fusion' takes bool, not 11" in err
    assert _is_one_clear_line(err), err


@pytest.mark.parametrize("command", ["explain", "bench"])
def test_missing_compiler_is_one_line(command, smelt_command, programs, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, out, err = smelt_command(command, f"{programs}:good")
    assert code == 2
    assert "SM0202: CXX is set to 'no-such-compiler'" in err
    assert _is_one_clear_line(err), err
    assert out == ""


def test_json_into_a_missing_folder_is_said_before_measuring(smelt_command, programs, tmp_path):
    code, _, err = smelt_command("bench", f"{programs}:good", "--json", str(tmp_path / "none" / "x.json"))
    assert code == 2
    assert f"SM0907: no such folder for --json: {tmp_path / 'none'}" in err


def test_debug_shows_the_traceback_of_bad_input(smelt_command):
    code, _, err = smelt_command("--debug", "bench", "nonsense")
    assert code == 2
    assert "Traceback" in err
    assert "SM0901" in err


def test_a_bug_keeps_its_traceback_and_exit_code_1(smelt_command, monkeypatch):
    import smelt.cli.cache

    def info(console: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(smelt.cli.cache, "info", info)
    code, _, err = smelt_command("cache")
    assert code == 1
    assert "KeyError: 'a bug'" in err
    assert "Traceback" in err
    assert "that is a bug" in err


def test_relative_file_and_sibling_imports_work(tmp_path: Path, monkeypatch):
    from smelt.cli.spec import load

    (tmp_path / "sibling_of_tests.py").write_text("SIZE = 3\n")
    (tmp_path / "with_sibling.py").write_text(
        "from sibling_of_tests import SIZE\ndef f(): return (lambda *a: a), [SIZE], {'b': 1}\n"
    )
    monkeypatch.chdir(tmp_path)
    program = load("with_sibling.py:f")
    assert program.args == (3,)
    assert program.kwargs == {"b": 1}
