"""Files that show an error again, for people to run and to report: `smelt repro FILE` runs those of programs.

All are in one folder, ``repros`` in the cache folder, the newest `KEPT` of them. They are for people alone:
nothing here is ever read back by a compilation.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from smelt.config import cache_dir

KEPT = 50
"""How many files a folder holds; older ones are removed."""

_FOLDER = "repros"


def folder() -> Path:
    """Where files are kept, as long as it can be written."""
    return cache_dir() / _FOLDER


def keep(name: str, text: str, suffix: str) -> Path | None:
    """Keep ``text`` as a file; where it is, or None where neither the cache folder nor the temporary one can
    be written.

    ``name`` says what it is about, ``suffix`` (``.py``, ``.mlir``) what it is; equal texts share a file.
    """
    plain = re.sub(r"\W+", "-", name).strip("-")[:60] or "repro"
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]
    for make in (folder, _temporary):
        with suppress(OSError, ValueError):  # ValueError: a path that no file system has
            place = _prepared(make())
            path = place / f"{plain}-{digest}{suffix}"
            _write(path, text)
            _remove_old(place, path)
            return path
    return None


def kept() -> list[Path]:
    """The files in the folder, newest first."""
    with suppress(OSError):
        return [path for _, path in sorted(_files(folder()), reverse=True)]
    return []


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"smelt-{_FOLDER}-{os.geteuid()}"


def _prepared(place: Path) -> Path:
    """The folder, made where there is none; it has to be ours alone: others could put links into it."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError(f"{place} is not a directory of ours alone")
    return place


def _write(path: Path, text: str) -> None:
    """Half a file is never seen, nor left behind."""
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with open(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def _remove_old(place: Path, newest: Path) -> None:
    others = sorted((each for each in _files(place) if each[1] != newest), reverse=True)
    for _, path in others[KEPT - 1 :]:
        with suppress(OSError):
            path.unlink()


def _files(place: Path) -> Iterator[tuple[int, Path]]:
    """(time of the last change, file) of the files that are kept here."""
    for path in place.iterdir():
        with suppress(OSError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and not path.name.startswith("."):
                yield found.st_mtime_ns, path
