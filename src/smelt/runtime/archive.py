"""The cache as one file, a zip archive without pickle, so that a fleet of machines or CI starts warm.

    smelt-cache.json              format, what the entries were made with, sha256 of every file
    entries/<key>/<name>          the files of the entries

Nothing is ever unpacked by the names or links in an archive: files that the manifest lists are read, checked,
and put into the cache as any other entry is, all of them or none. An archive holds machine code, which runs
when a program is compiled: its digests tell whether it is whole, not who has made it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.errors import CacheError
from smelt.runtime.cache import Cache, is_file_name, is_key

FORMAT = 1
MANIFEST = "smelt-cache.json"
MOST_MANIFEST, MOST_FILE, MOST_BYTES = 1 << 26, 1 << 30, 1 << 34
"""Limits on the uncompressed bytes of the manifest, of a file, and of all files."""

MadeWith = Mapping[str, str]
"""The versions with which an entry is usable: ``smelt``, ``torch``, ``system``, ``cpu`` and ``compiler``."""
_SOFTWARE = ("smelt", "torch")


@dataclass(frozen=True, slots=True)
class Contents:
    """Saved or loaded entries by kind, and their bytes."""

    programs: int
    measurements: int
    others: int
    size: int

    @property
    def entries(self) -> int:
        """The number of all entries."""
        return self.programs + self.measurements + self.others


def save(cache: Cache, path: Path, made_with: MadeWith) -> Contents:
    """Writes the entries of a cache to a file, which appears only when complete; damaged entries are left
    out.

    Raises:
        CacheError: SM0525, the file cannot be written.
    """
    entries: dict[str, dict[str, str]] = {}
    size = 0
    unfinished = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            unfinished = file.name
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for key in dict.fromkeys(cache.entries()):
                    files = _files(cache, key)
                    for name, data in files.items():
                        archive.writestr(f"entries/{key}/{name}", data)
                        size += len(data)
                    if files:
                        entries[key] = {name: _digest(data) for name, data in files.items()}
                manifest = {"smelt_cache": FORMAT, "made_with": dict(made_with), "entries": entries}
                archive.writestr(MANIFEST, json.dumps(manifest, sort_keys=True, indent=1))
        os.replace(unfinished, path)
    except OSError as error:
        raise CacheError("SM0525", f"{path} cannot be written", why=error.strerror or str(error)) from error
    finally:
        if unfinished is not None:
            with suppress(OSError):
                os.unlink(unfinished)
    return _contents(entries, size)


def load(cache: Cache, path: Path, made_with: MadeWith) -> Contents:
    """Puts the entries of a file that `save` wrote into a cache: all of them or, on an error, none.

    Raises:
        CacheError: SM0521 the file is no archive, or damaged; SM0522 another version of smelt or torch,
            SM0523 another machine or compiler has made it; SM0524 it has unexpected contents, or more than
            `MOST_BYTES`; SM0525 it cannot be read.
    """
    with _opened(path) as archive:
        manifest = _manifest(archive, path)
        _check_made_with(manifest["made_with"], made_with, path)
        entries = _entries(archive, manifest, path)
        size = 0
        for key, files in entries.items():  # first look at everything
            size += sum(len(data) for data in _read(archive, key, files, path).values())
        for key, files in entries.items():
            cache.put(key, _read(archive, key, files, path))
    return _contents(entries, size)


def _files(cache: Cache, key: str) -> dict[str, bytes]:
    """An entry's files; none if it is damaged, or disappears meanwhile."""
    entry = cache.get(key)
    if entry is None:
        return {}
    try:
        return {name: entry.read(name) for name in sorted(entry.digests)}
    except CacheError:
        return {}


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except OSError as error:
        raise CacheError("SM0525", f"{path} cannot be read", why=error.strerror or str(error)) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _damaged(path, str(error)) from error


def _manifest(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    try:
        info = archive.getinfo(MANIFEST)
    except KeyError:
        raise CacheError(
            "SM0521", f"{path} is no archive of smelt's cache", why=f"it has no {MANIFEST}", remedy=_SAVE
        ) from None
    if info.file_size > MOST_MANIFEST:
        raise _odd(path, f"{MANIFEST} of {info.file_size} bytes")
    try:
        manifest = json.loads(archive.read(info))
        version = manifest["smelt_cache"]
        if version == FORMAT:
            made_with, entries = manifest["made_with"], manifest["entries"]
            texts = [*made_with.values(), *(text for files in entries.values() for text in files.values())]
            if all(type(text) is str for text in texts):
                return dict(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"{MANIFEST}: {error!r}") from error
    if version == FORMAT:
        raise _damaged(path, f"{MANIFEST} has unexpected contents")
    raise CacheError(
        "SM0522",
        f"{path} is an archive of another format ({version!r}; this smelt reads {FORMAT})",
        remedy=_SAVE,
    )


def _check_made_with(theirs: MadeWith, ours: MadeWith, path: Path) -> None:
    different = [name for name in ours if theirs.get(name) != ours[name]]
    if not different:
        return
    software = [name for name in different if name in _SOFTWARE]
    listed = "; ".join(f"{name}: {theirs.get(name)} there, {ours[name]} here" for name in different)
    raise CacheError(
        "SM0522" if software else "SM0523",
        f"{path} was made {'with another version' if software else 'on another kind of machine'}",
        why=listed,
        remedy="save one with the versions, the processor and the compiler that will load it",
    )


def _entries(archive: zipfile.ZipFile, manifest: dict[str, Any], path: Path) -> dict[str, dict[str, str]]:
    """Key → file → digest, of an archive that contains exactly these files."""
    entries: dict[str, dict[str, str]] = manifest["entries"]
    for key, files in entries.items():
        for name in files:
            if not is_key(key) or not is_file_name(name):
                raise _odd(path, f"an entry {key!r} with a file {name!r}")
    listed = {MANIFEST, *(f"entries/{key}/{name}" for key, files in entries.items() for name in files)}
    found = archive.infolist()
    for info in found:
        if stat.S_ISLNK(info.external_attr >> 16):
            raise _odd(path, f"a link {info.filename!r}")
        if info.filename not in listed:
            raise _odd(path, f"{info.filename!r}, which {MANIFEST} does not list")
    if len(found) != len({info.filename for info in found}):
        raise _odd(path, "a file twice")
    size = sum(info.file_size for info in found)
    if size > MOST_BYTES or any(info.file_size > MOST_FILE for info in found):
        raise _odd(path, f"{size} bytes when unpacked")
    return entries


def _read(archive: zipfile.ZipFile, key: str, files: Mapping[str, str], path: Path) -> dict[str, bytes]:
    """The files of an entry, with verified digests."""
    found = {}
    for name, digest in files.items():
        member = f"entries/{key}/{name}"
        try:
            info = archive.getinfo(member)
        except KeyError:
            raise _damaged(path, f"{member} is missing") from None
        with archive.open(info) as file:
            found[name] = file.read(info.file_size + 1)
        if _digest(found[name]) != digest:
            raise _damaged(path, f"{member} is not what was saved")
    return found


def _contents(entries: Mapping[str, Mapping[str, str]], size: int) -> Contents:
    programs = sum("plan.json" in files for files in entries.values())
    measurements = sum("choice.json" in files for files in entries.values())
    return Contents(programs, measurements, len(entries) - programs - measurements, size)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_SAVE = "smelt cache save FILE writes one"


def _damaged(path: Path, why: str) -> CacheError:
    return CacheError("SM0521", f"{path} is no archive of smelt's cache, or damaged", why=why, remedy=_SAVE)


def _odd(path: Path, what: str) -> CacheError:
    return CacheError(
        "SM0524",
        f"{path} holds what no archive of smelt's cache does: {what}",
        why="whoever made it may want to write where you do not expect it, or to fill your disk",
        remedy="load only archives of people that you trust",
    )
