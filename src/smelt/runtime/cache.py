"""The cache on disk: content-addressed, safe under races, kill -9 and bit rot. No pickle.

    root/v1/entries/<key>/{manifest.json, unit-….so, …}   one directory per entry
    root/v1/tmp/<who>-<random>/                         being written, or being thrown away
    root/v1/locks/<two letters>.lock                    one compile per key at a time
    root/v1/failed/<key>.cpp                            sources that the compiler refused
    root/repros/…                                       files that show an error again, kept for people

An entry is a directory that appears by ONE rename of a finished, fsynced directory, so that no reader sees
half of it and its files always belong together (a plan with the library it was written for). A rename cannot
replace a directory that is not empty; of two writers of one key, the first wins if its entry holds the same
bytes, else the older directory is renamed away first. ``manifest.json`` holds the sha256 digest of each file
and of itself; an entry with a wrong digest counts as missing and is removed. A process that is killed leaves
at most a directory in ``tmp``, which the next process to open the cache removes.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import filelock

from smelt.config import cache_dir
from smelt.errors import CacheError

FORMAT = "v1"
STALE_SECONDS = 24 * 3600.0
_KEY = re.compile(r"[0-9A-Za-z_-]{1,128}")
_NAME = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,127}")
_MANIFEST = "manifest.json"
_REPROS = "repros"
_KEEPERS = ("entries", "tmp", "locks", "failed")
_T = TypeVar("_T")


def key_of(*parts: str | bytes) -> str:
    """A content key: the sha256 of the parts, each with its length so that no two lists collide.

    >>> key_of("a", "bc") == key_of("ab", "c")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored entry with digests that were verified when it was read. ``digests``: file name → sha256."""

    key: str
    folder: Path
    digests: Mapping[str, str]

    def path(self, name: str) -> Path:
        """The path of a file."""
        if name not in self.digests:
            raise KeyError(name)
        return self.folder / name

    def read(self, name: str) -> bytes:
        """The file's bytes, verified again.

        Raises:
            CacheError: SM0304, the file has gone or changed since it was looked up; treat it as a miss.
        """
        try:
            data = self.path(name).read_bytes()
        except OSError as error:
            raise CacheError("SM0304", f"cache entry {self.key[:12]} has gone: {error}") from error
        if hashlib.sha256(data).hexdigest() != self.digests[name]:
            raise CacheError(
                "SM0304", f"cache entry {self.key[:12]}: {name} has changed since it was looked up"
            )
        return data


class Cache:
    """Entries by key under ``root``.

    A root that cannot be written (read-only, disk full) is still read; new entries then go to a private
    temporary directory that lives as long as the process, with one warning. If that cannot be written either,
    the next of `private_places` is tried.

    >>> import tempfile
    >>> cache = Cache(tempfile.mkdtemp())
    >>> cache.get("k") is None
    True
    >>> cache.put("k", {"plan.json": b"{}"}).read("plan.json")
    b'{}'

    Raises:
        CacheError: SM0301 the directory belongs to someone else, SM0302 others may write to it, SM0303 it is
            no directory (found out here, and at every read); SM0508 nothing can be written anywhere.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.abspath(root))  # a compiler takes "-x" for an option
        self._home = self.root / FORMAT
        self._private: list[Path] = []
        self._places = private_places()
        self._moving = threading.Lock()
        try:
            self._prepare()
            self._clean()
        except OSError as error:
            self._degrade(self._home, error)

    @property
    def degraded(self) -> bool:
        """Whether new entries go to a private temporary directory."""
        return bool(self._private)

    def get(self, key: str) -> Entry | None:
        """The entry, if it exists and all digests are right. A damaged one is removed.

        Raises:
            CacheError: SM0301 to SM0303, other users can write to it since the cache was opened.
        """
        _check_key(key)
        for home in self._homes():
            if not self._is_safe(home):
                continue
            folder = home / "entries" / key
            entry = _load(key, folder)
            if entry is None and folder.is_dir():
                entry = _load(
                    key, folder
                )  # another process may just have replaced it: look again before judging
                if entry is None:
                    _discard(folder, home)
            if entry is not None:
                return entry
        return None

    def put(self, key: str, files: Mapping[str, bytes | Path]) -> Entry:
        """Stores an entry and returns it. A Path is hard-linked into the entry if possible, else copied:
        nobody may write to it afterwards.

        If the directory cannot be written, the entry goes to the private directory instead.

        Raises:
            ValueError: a key or a file name with odd characters.
            CacheError: SM0508, nothing can be written anywhere.
        """
        _check_key(key)
        for name in files:
            if not is_file_name(name):
                raise ValueError(f"not a file name for a cache entry: {name!r}")
        return self._where_new(lambda home: _put(home, key, files))

    def remove(self, key: str) -> None:
        """Removes an entry, if it exists."""
        _check_key(key)
        for home in self._homes():
            _discard(home / "entries" / key, home)

    def scratch(self) -> Path:
        """A fresh directory on the cache's file system, for a compiler. The caller removes it."""
        return self._where_new(_temporary)

    def work(self, act: Callable[[Path], _T]) -> _T:
        """Runs ``act`` in a fresh directory, which is removed afterwards; in one elsewhere if it raises
        OSError.

        Raises:
            CacheError: SM0508, nothing can be written anywhere.
        """

        def inside(home: Path) -> _T:
            folder = _temporary(home)
            try:
                return act(folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        return self._where_new(inside)

    def lock(self, key: str) -> filelock.BaseFileLock:
        """A lock between processes and threads that is released when its holder dies; keys share 256
        files.
        """
        name = f"{key_of(key)[:2]}.lock"
        return filelock.FileLock(self._where_new(lambda home: home / "locks" / name), thread_local=False)

    def keep_failed(self, key: str, text: str) -> Path:
        """Keeps a source that the compiler refused, for people to look at."""

        def keep(home: Path) -> Path:
            path = home / "failed" / f"{key}.cpp"
            path.write_text(text)
            return path

        return self._where_new(keep)

    def entries(self) -> Iterator[str]:
        """The stored keys, verified or not."""
        for home in self._homes():
            try:
                names = sorted(os.listdir(home / "entries"))
            except OSError:
                continue
            yield from (name for name in names if is_key(name))

    def size(self) -> int:
        """The bytes of all stored files, including temporary files and reproducers."""
        total = 0
        for home in (*self._homes(), self.root / _REPROS):
            for folder, _, names in os.walk(home):
                for name in names:
                    try:
                        total += os.lstat(os.path.join(folder, name)).st_size
                    except OSError:
                        continue
        return total

    def clear(self) -> None:
        """Removes all entries, refused sources and reproducers. Loaded libraries stay usable."""
        if self._is_safe(self._home):
            _discard(self.root / _REPROS, self._home)
        for home in self._homes():
            for key in list(self.entries()):
                _discard(home / "entries" / key, home)
            for path in (home / "failed").glob("*.cpp"):
                path.unlink(missing_ok=True)

    def _homes(self) -> list[Path]:
        return [self._home, *self._private]

    def _is_safe(self, home: Path) -> bool:
        """Whether the directory exists, and nobody else can write to it."""
        try:
            if home == self._home:
                _check_folder(self.root, ours=False)
            for folder in (home, home / "entries"):
                _check_folder(folder, ours=True)
        except OSError:
            return False
        return True

    def _where_new(self, act: Callable[[Path], _T]) -> _T:
        """Runs ``act`` on the folder for new entries: recreated if it was removed, private if it cannot be
        written.
        """
        while True:
            home = self._homes()[-1]
            try:
                if home == self._home:
                    self._prepare()
                return act(home)
            except OSError as error:
                self._degrade(home, error)

    def _prepare(self) -> None:
        if not self.root.is_dir():
            os.makedirs(self.root, mode=0o700, exist_ok=True)
        _check_folder(self.root, ours=False)
        for folder in (self._home, *(self._home / name for name in _KEEPERS)):
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                _check_folder(folder, ours=True)

    def _clean(self) -> None:
        """Removes the files of dead processes."""
        machine = _machine()
        now = time.time()
        for name in os.listdir(self._home / "tmp"):
            path = self._home / "tmp" / name
            who, _, rest = name.partition("-")
            process = rest.partition("-")[0]
            try:
                old = now - path.lstat().st_mtime > STALE_SECONDS
            except OSError:
                continue
            if old or (who == machine and process.isdigit() and not _alive(int(process))):
                shutil.rmtree(path, ignore_errors=True)

    def _degrade(self, home: Path, error: OSError) -> None:
        """Continues elsewhere, since ``home`` cannot be written; warns the first time."""
        reason = error.strerror or str(error)
        with self._moving:
            if self._homes()[-1] != home:
                return  # another thread has noticed
            first = not self._private
            self._private.append(self._elsewhere(reason))
        if first:
            warnings.warn(
                f"smelt: the cache {self.root} cannot be written ({reason}); this process keeps what it "
                "compiles in a temporary directory. Set SMELT_CACHE_DIR to a directory of yours with free "
                "space.",
                RuntimeWarning,
                stacklevel=4,
            )

    def _elsewhere(self, reason: str) -> Path:
        for place in self._places:
            try:
                folder = Path(tempfile.mkdtemp(prefix="smelt-", dir=place))
                atexit.register(_remove_private, str(folder), os.getpid())
                for name in _KEEPERS:
                    os.mkdir(folder / name, 0o700)
                return folder
            except OSError:
                continue
        raise CacheError(
            "SM0508",
            f"nothing can be written, neither to the cache {self.root} nor to a temporary directory",
            why=reason,
            remedy="free space (or raise the limit), or set SMELT_CACHE_DIR to a directory that has some",
        )


def private_places() -> Iterator[str]:
    """Candidate directories for a private one, the usual temporary directory first."""
    found = []
    with suppress(OSError):  # there is none that can be written
        found.append(tempfile.gettempdir())
    found += [os.environ.get("XDG_RUNTIME_DIR", ""), "/var/tmp", "/dev/shm"]
    yield from (place for place in dict.fromkeys(found) if os.path.isdir(place))


@lru_cache(maxsize=16)
def _open(root: str) -> Cache:
    return Cache(root)


def open_cache() -> Cache:
    """The cache of `smelt.config.cache_dir`, opened once per process and directory.

    Raises:
        CacheError: see `Cache`.
    """
    return _open(str(cache_dir()))


def is_key(text: str) -> bool:
    """Whether an entry may have this key."""
    return _KEY.fullmatch(text) is not None


def is_file_name(text: str) -> bool:
    """Whether an entry may have a file of this name."""
    return _NAME.fullmatch(text) is not None and text != _MANIFEST


def _check_key(key: str) -> None:
    if not is_key(key):
        raise ValueError(f"not a cache key: {key!r}")


def _check_folder(folder: Path, *, ours: bool) -> None:
    """Checks that others cannot write to the user's directory; those that smelt made must be 0700."""
    found = os.lstat(folder) if ours else os.stat(folder)
    elsewhere = "or set SMELT_CACHE_DIR to a directory of yours"
    if not stat.S_ISDIR(found.st_mode):
        raise CacheError("SM0303", f"cache: {folder} is not a directory", remedy=f"remove it, {elsewhere}")
    if found.st_uid != os.geteuid():
        shared = not ours and found.st_mode & stat.S_ISVTX
        if not shared:
            raise CacheError(
                "SM0301",
                f"cache: {folder} belongs to user {found.st_uid}, not to you ({os.geteuid()})",
                why="whoever owns it could make smelt run code of theirs",
                remedy=f"chown it, {elsewhere}",
            )
    mode = stat.S_IMODE(found.st_mode)
    open_to_others = mode & 0o077 if ours else mode & 0o022 and not mode & stat.S_ISVTX
    if open_to_others:
        raise CacheError(
            "SM0302",
            f"cache: {folder} has mode {mode:04o}",
            why="other users could change what smelt loads and runs",
            remedy=f"chmod 700 {folder}, {elsewhere}",
        )


def _load(key: str, folder: Path) -> Entry | None:
    """The entry in ``folder`` if manifest and digests are right."""
    try:
        seal, _, body = (folder / _MANIFEST).read_bytes().partition(b"\n")
        if seal != hashlib.sha256(body).hexdigest().encode():
            return None
        manifest = json.loads(body)
        digests: dict[str, str] = manifest["files"]
        if manifest["key"] != key:
            return None
        for name, digest in digests.items():
            if not is_file_name(name) or _digest(folder / name) != digest:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Entry(key, folder, digests)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _put(home: Path, key: str, files: Mapping[str, bytes | Path]) -> Entry:
    folder = _temporary(home)
    try:
        digests = {name: _write(folder / name, data) for name, data in files.items()}
        body = json.dumps({"key": key, "files": digests}, sort_keys=True).encode()
        _write(folder / _MANIFEST, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        _sync(folder)
        return _publish(home, key, folder, digests)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(home: Path, key: str, folder: Path, digests: dict[str, str]) -> Entry:
    """Renames the finished directory to its place; see the module's docstring for concurrent writers."""
    target = home / "entries" / key
    for _ in range(100):
        try:
            os.rename(folder, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            present = _load(key, target)
            if present is not None and present.digests == digests:
                return present
            _discard(target, home)
            continue
        _sync(target.parent)
        return Entry(key, target, digests)
    raise OSError(errno.EBUSY, f"cannot replace {target}")


def _write(path: Path, data: bytes | Path) -> str:
    """Writes (or links, or copies) a file into place and to the disk; returns its digest."""
    if isinstance(data, Path):
        try:
            os.link(data, path)
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(data, path)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return _digest(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync a directory
            raise
    finally:
        os.close(descriptor)


def _discard(folder: Path, home: Path) -> None:
    """Moves a directory (or a stray file) away by one rename, then deletes it."""
    grave = home / "tmp" / f"{_who()}-{secrets.token_hex(8)}"
    try:
        os.rename(folder, grave)
    except OSError:
        return  # another process was faster, or the directory is read-only
    if grave.is_dir():
        shutil.rmtree(grave, ignore_errors=True)
    else:
        grave.unlink(missing_ok=True)


def _temporary(home: Path) -> Path:
    folder = home / "tmp" / f"{_who()}-{secrets.token_hex(8)}"
    os.mkdir(folder, 0o700)
    return folder


def _who() -> str:
    return f"{_machine()}-{os.getpid()}"


@lru_cache(maxsize=1)
def _machine() -> str:
    """An identifier of the machine and process namespace, in which a process number is unique."""
    parts = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(os.readlink(path) if "ns" in path else Path(path).read_text().strip())
        except OSError:
            continue
    return key_of(*parts)[:12]


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove_private(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
