"""Files that show errors again: one folder, so many of them, and never an error of its own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from smelt.runtime import repros


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def test_the_newest_are_kept(tmp_path: Path) -> None:
    made = []
    for number in range(repros.KEPT + 5):
        path = repros.keep(f"graph {number}", f"text {number}", ".py")
        assert path is not None and path.read_text() == f"text {number}"
        os.utime(path, ns=(number, number))
        made.append(path)
    assert repros.kept() == made[: -repros.KEPT - 1 : -1]
    assert {path.parent for path in made} == {tmp_path / "cache" / "repros"}


def test_equal_texts_share_a_file_and_names_are_file_names() -> None:
    first, second = (repros.keep("../graph 1/aten::add\n", "same", ".mlir") for _ in range(2))
    assert first == second and first is not None and first.parent == repros.folder()
    assert first.name.startswith("graph-1-aten-add-") and first.suffix == ".mlir"
    assert len(repros.kept()) == 1


def test_where_the_cache_cannot_be_written_the_temporary_folder_is(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    path = repros.keep("graph", "text", ".py")
    assert path is not None and path.read_text() == "text"
    assert path.parent.parent == tmp_path / "temporary"


def test_a_full_disk_leaves_nothing_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert repros.keep("graph", "text", ".py") is None
    assert not any(repros.folder().iterdir())


def test_a_folder_that_others_write_to_is_not_used(tmp_path: Path) -> None:
    repros.folder().mkdir(parents=True)
    repros.folder().chmod(0o777)
    path = repros.keep("graph", "text", ".py")
    assert path is not None and path.parent != repros.folder()
