"""Archives of the cache: what is saved is loaded, and what is odd, damaged or foreign changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smelt.cli import main
from smelt.errors import CacheError
from smelt.runtime import archive
from smelt.runtime.cache import Cache

MADE = {"smelt": "1", "torch": "2", "system": "linux", "cpu": "avx2", "compiler": "gcc 13"}
PROGRAM = {"plan.json": b"{}", "unit.so": bytes(range(256)) * 30}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    cache, path = Cache(tmp_path / "from"), tmp_path / "warm.smelt"
    cache.put("k", PROGRAM)
    cache.put("choice-1", {"choice.json": b"{}"})
    damaged = cache.put("bad", {"plan.json": b"{}"})
    (damaged.folder / "plan.json").write_bytes(b"x")
    contents = archive.save(cache, path, MADE)
    assert (contents.programs, contents.measurements, contents.others) == (1, 1, 0)
    assert contents.size == 4 + 256 * 30
    return path


def test_what_is_saved_is_loaded(saved: Path, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "to")
    assert archive.load(cache, saved, MADE).entries == 2
    assert sorted(cache.entries()) == ["choice-1", "k"]
    entry = cache.get("k")
    assert entry is not None and {name: entry.read(name) for name in PROGRAM} == PROGRAM
    assert sorted(os.listdir(tmp_path)) == ["from", "to", "warm.smelt"]


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> None:
    """The same archive with another manifest and other files."""
    with zipfile.ZipFile(path) as old:
        files = {info.filename: old.read(info) for info in old.infolist()}
    manifest = json.loads(files.pop(archive.MANIFEST))
    change(manifest, files)
    with zipfile.ZipFile(path, "w") as new:
        for name, data in files.items():
            info = zipfile.ZipInfo(name.removesuffix("@"))
            info.external_attr = (0o120777 if name.endswith("@") else 0o600) << 16
            new.writestr(info, data)
        if manifest is not None and "gone" not in manifest:
            new.writestr(archive.MANIFEST, json.dumps(manifest))


def into(name: str, value: Any) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    return lambda manifest, files: manifest.update({name: value})


def made(name: str) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    return lambda manifest, files: manifest["made_with"].update({name: "another"})


def listed(key: str, name: str) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    """A file that is listed, with its digest, under a name that leads elsewhere."""

    def change(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
        files[f"entries/{key}/{name}"] = b"evil"
        manifest["entries"].setdefault(key, {})[name] = archive._digest(b"evil")

    return change


def with_file(name: str) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    return lambda manifest, files: files.update({name: b"evil"})


def as_link(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    files["entries/k/unit.so@"] = files.pop("entries/k/unit.so")


def changed(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    files["entries/k/unit.so"] = b"other code"


def lost(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    del files["entries/k/unit.so"]


CHANGES: dict[str, tuple[str, Callable[[dict[str, Any], dict[str, bytes]], None]]] = {
    "no manifest": ("SM0521", into("gone", True)),
    "an older format": ("SM0522", into("smelt_cache", 0)),
    "another smelt": ("SM0522", made("smelt")),
    "another torch": ("SM0522", made("torch")),
    "another system": ("SM0523", made("system")),
    "another processor": ("SM0523", made("cpu")),
    "another compiler": ("SM0523", made("compiler")),
    "nobody": ("SM0521", into("made_with", None)),
    "no entries": ("SM0521", into("entries", ["k"])),
    "digests that are none": ("SM0521", into("entries", {"k": {"plan.json": 1}})),
    "another file": ("SM0521", changed),
    "a file too few": ("SM0521", lost),
    "a file too many": ("SM0524", with_file("entries/k/other")),
    "a path upwards": ("SM0524", with_file("../../evil")),
    "an absolute path": ("SM0524", with_file("/etc/evil")),
    "a key upwards": ("SM0524", listed("..", "evil")),
    "a name upwards": ("SM0524", listed("k", "../../evil")),
    "a manifest of an entry": ("SM0524", listed("k", "manifest.json")),
    "a link": ("SM0524", as_link),
}


@pytest.mark.parametrize("what", CHANGES)
def test_odd_archives_change_nothing(what: str, saved: Path, tmp_path: Path) -> None:
    code, change = CHANGES[what]
    rewritten(saved, change)
    cache = Cache(tmp_path / "to")
    with pytest.raises(CacheError) as caught:
        archive.load(cache, saved, MADE)
    assert caught.value.code == code and str(saved) in str(caught.value)
    assert list(cache.entries()) == [] and not (tmp_path / "evil").exists()


@pytest.mark.parametrize("at", [0.0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("cut", [True, False])
def test_damaged_archives_change_nothing(at: float, cut: bool, saved: Path, tmp_path: Path) -> None:
    data = bytearray(saved.read_bytes())
    place = int(at * len(data))
    data[place] ^= 0x55
    saved.write_bytes(data[:place] if cut else data)
    cache = Cache(tmp_path / "to")
    with pytest.raises(CacheError) as caught:
        archive.load(cache, saved, MADE)
        raise CacheError("SM0521", "harmless: a byte of what nobody reads")
    assert caught.value.code in ("SM0521", "SM0524")


def test_sizes_are_limited(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MOST_MANIFEST", "MOST_FILE", "MOST_BYTES"):
        with monkeypatch.context() as patch, pytest.raises(CacheError, match="SM0524"):
            patch.setattr(archive, limit, 100)
            archive.load(Cache(tmp_path / "to"), saved, MADE)


def test_places_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    with pytest.raises(CacheError, match="SM0525"):
        archive.load(cache, tmp_path / "nothing", MADE)
    with pytest.raises(CacheError, match="SM0525"):
        archive.save(cache, tmp_path / "no" / "folder.smelt", MADE)
    (tmp_path / "file").write_text("no archive")
    with pytest.raises(CacheError, match=r"SM0521(.|\n)*smelt cache save"):
        archive.load(cache, tmp_path / "file", MADE)


RUN = """if True:
    import subprocess, sys, torch
    import smelt
    from smelt.runtime import library
    real, started = library.start_compiler, []
    def start(command, *more):
        started.append(command)
        return real(command, *more)
    library.start_compiler = start
    x = torch.randn(4, 300)
    run = torch.compile(lambda x: (x.exp() + 1).sum(-1), backend="smelt")
    torch.testing.assert_close(run(x), (x.exp() + 1).sum(-1))
    library.wait_for_all()
    print(len(started), [each.cache_hit for each in smelt.reports()])
"""


def test_the_first_call_after_loading_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(cache: str) -> str:
        environment = {**os.environ, "SMELT_CACHE_DIR": str(tmp_path / cache), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-c", RUN]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def smelt(*words: str, cache: str) -> str:
        monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / cache))
        assert main(["cache", *words, str(tmp_path / "warm.smelt")]) == 0
        return capsys.readouterr().out

    cold = run("from")
    assert cold.split()[0] != "0" and "[False]" in cold
    assert "saved 1 programs" in smelt("save", cache="from")
    assert "loaded 1 programs" in smelt("load", cache="to")
    assert run("to") == "0 [True]\n"


def test_foreign_archives_are_one_line_on_the_command_line(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "to"))
    assert main(["cache", "load", str(saved)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("smelt: SM0522") and "torch: 2 there" in said
    for command in ("save", "load"):
        assert main(["cache", command, "--help"]) == 0
        assert "FILE" in capsys.readouterr().out
