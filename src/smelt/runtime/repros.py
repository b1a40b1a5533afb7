"""Reproducers: files that show an error again, for people to run and to report (`smelt repro FILE`).

They are in the folder ``repros`` in the cache folder, the newest `KEPT` of them. A compilation never reads
them.
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
"""Limit on the files of the folder; older ones are removed."""

_FOLDER = "repros"


def folder() -> Path:
    """The folder of the files, as long as it can be written."""
    return cache_dir() / _FOLDER


def keep(name: str, text: str, suffix: str) -> Path | None:
    """Keeps ``text`` as a file; returns its path, or None if neither the cache folder nor the temporary one
    can be written.

    ``name`` is the subject, ``suffix`` (``.py``, ``.mlir``) the type; equal texts share a file.
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
    """The folder, created if necessary; it must be private, because others could put links into it."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError(f"{place} is not a directory of ours alone")
    return place


def _write(path: Path, text: str) -> None:
    """Writes a file by a rename, so that it is never incomplete."""
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
    """(time of the last change, file) of the kept files."""
    for path in place.iterdir():
        with suppress(OSError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and not path.name.startswith("."):
                yield found.st_mtime_ns, path
