"""smelt doctor and smelt cache."""

from __future__ import annotations

import pytest

from smelt.cli import doctor


def test_cache_info_and_clear(smelt_command, cache_of_its_own):
    from smelt.runtime.cache import open_cache

    code, out, _ = smelt_command("cache")
    assert code == 0
    assert f"where    {cache_of_its_own}" in out
    assert "entries  0" in out
    open_cache().put("somekey", {"file": b"x" * 5000})
    _, out, _ = smelt_command("cache", "info")
    assert "entries  1" in out
    assert "KiB" in out
    code, out, _ = smelt_command("cache", "clear", "--yes")
    assert code == 0
    assert "removed 1 entries" in out
    assert list(open_cache().entries()) == []
    _, out, _ = smelt_command("cache", "clear")
    assert "the cache is empty" in out


def test_cache_clear_asks_first(smelt_command, monkeypatch):
    import typer

    from smelt.runtime.cache import open_cache

    open_cache().put("somekey", {"file": b"x"})

    def no(text: str, abort: bool) -> None:
        assert "Remove 1 entries" in text
        assert abort
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", no)
    code, _, err = smelt_command("cache", "clear")
    assert code == 130
    assert "interrupted" in err
    assert list(open_cache().entries()) == ["somekey"]


def test_cache_that_others_may_write_to_is_one_line(smelt_command, cache_of_its_own):
    cache_of_its_own.mkdir()
    cache_of_its_own.chmod(0o777)
    code, _, err = smelt_command("cache")
    assert code == 2
    assert err.startswith("smelt: SM0302: ")
    assert "Traceback" not in err


def test_doctor_finds_this_machine_ready(smelt_command):
    code, out, err = smelt_command("doctor")
    assert code == 0, out
    for name in ("python", "torch", "smelt", "compiler", "vectors", "openmp", "threads", "cache", "trial"):
        assert f" {name} " in out
    assert out.rstrip().endswith("ready")
    assert "looking at the machine" in err


def test_doctor_without_a_compiler_says_how_to_get_one(smelt_command, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    code, out, _ = smelt_command("doctor")
    assert code == 1
    assert "SM0201: no C++ compiler found" in out
    assert "install g++" in out
    assert "not ready: compiler" in out


def test_doctor_notices_the_other_projects_distribution(monkeypatch):
    monkeypatch.setattr(doctor, "version", {"smelt": "0.7.5"}.__getitem__)
    (finding,) = doctor._namesake()
    assert finding.state == "warn" and "0.7.5" in finding.text
    assert finding.remedy.endswith("torch-smelt")


def test_doctor_survives_a_check_that_breaks(smelt_command, monkeypatch):
    def _weather() -> list[doctor.Finding]:
        raise OSError("rain")

    monkeypatch.setattr(doctor, "CHECKS", (_weather,))
    code, out, _ = smelt_command("doctor")
    assert code == 1
    assert "weather" in out
    assert "OSError: rain" in out


def test_doctor_notices_wrong_numbers(monkeypatch):
    import smelt.api

    monkeypatch.setattr(smelt.api, "compile", lambda call: lambda x: call(x) + 1)
    monkeypatch.setattr(smelt, "compile", smelt.api.compile, raising=False)
    (finding,) = doctor._trial()
    assert finding.state == "bad"
    assert "wrong numbers" in finding.text


def test_doctor_notices_that_nothing_was_compiled(monkeypatch):
    import smelt

    monkeypatch.setattr(smelt, "compile", lambda call: call, raising=False)
    (finding,) = doctor._trial()
    assert finding.state == "bad"
    assert "eager PyTorch ran" in finding.text


@pytest.mark.parametrize(("used", "state"), [(1, "ok"), (4096, "warn")])
def test_doctor_notices_too_many_threads(used, state, monkeypatch):
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: used)
    (finding,) = doctor._threads()
    assert finding.state == state
