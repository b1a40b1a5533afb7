"""C++ text → shared library, compiled in parallel to Python and loaded with ctypes."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import filelock

from smelt.errors import CacheError, SmeltError, ToolchainError
from smelt.runtime import process
from smelt.runtime.cache import Cache, Entry, key_of, open_cache, private_places
from smelt.runtime.toolchain import Toolchain, find

SOURCE = "unit.cpp"
LOCK_SECONDS = 300.0
"""Time to wait for another process that compiles the same key, before it is compiled here as well."""
FULL = (
    "No space left on device",
    "Disk quota exceeded",
    "File size limit exceeded",
    "File too large",
    "Read-only file system",
)
"""Compiler messages (in English, `start_compiler`) for output that could not be written."""

_SHOWN_LINES = 8
_THREAD = "smelt-compile"

_starting = threading.Lock()
"""Held while a compiler is started. A fork waits for it: a child that inherits the writing end of the
compiler's pipe would keep the pipe open, while it may be waiting for this compilation.
"""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release
    )

_running: set[CompileJob] = set()
"""The running jobs of this process, and of those it was forked from."""


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded shared library. It stays loaded for the life of the process."""

    path: Path
    handle: ctypes.CDLL = field(repr=False)

    def function(self, name: str) -> Any:
        """A fresh ctypes function; it returns int64 and releases the GIL while it runs.

        Raises:
            ToolchainError: SM0206, the library has no such function.
        """
        try:
            found = self.handle[name]
        except AttributeError as error:
            raise ToolchainError("SM0206", f"{self.path} has no function {name}", why=str(error)) from error
        found.restype = ctypes.c_int64
        return found

    def address(self, name: str) -> int:
        """The address of the function."""
        return ctypes.cast(self.function(name), ctypes.c_void_p).value or 0


class PythonLibrary:
    """A library whose functions are Python's: those of kernels that are launched, not called."""

    def __init__(self, functions: Mapping[str, Callable[..., int]]) -> None:
        self.functions = functions


class Job(Protocol):
    """A library that is being made."""

    def result(self) -> Library:
        """Waits for the library."""


def load(path: Path) -> Library:
    """Loads a shared library: all symbols are bound now, none is visible to others.

    Raises:
        ToolchainError: SM0205, the dynamic linker refused it.
    """
    import torch  # noqa: F401  (its OpenMP runtime must be there first)

    try:
        return Library(path, ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL))
    except OSError as error:
        refusal = error
    for place in private_places():  # the cache may be on a file system without execution
        try:
            with tempfile.TemporaryDirectory(prefix="smelt-", dir=place) as folder:
                copy = shutil.copy(path, folder)
                return Library(path, ctypes.CDLL(copy, mode=os.RTLD_NOW | os.RTLD_LOCAL))
        except OSError:
            continue
    raise ToolchainError(
        "SM0205",
        "a compiled library cannot be loaded",
        why=str(refusal),
        remedy="if the cache lies on a file system mounted noexec, set SMELT_CACHE_DIR elsewhere",
    ) from refusal


class CompileJob:
    """A compilation in parallel to Python. ``result()`` waits for it.

    ``seconds``: the time until the library was loaded; ``cached``: no compiler was run.
    """

    def __init__(
        self,
        text: str,
        toolchain: Toolchain,
        cache: Cache,
        key: str,
        extra: Mapping[str, bytes] | None = None,
        parts: Sequence[str] = (),
        objects: Objects | None = None,
    ) -> None:
        self.text, self.toolchain, self.cache, self.key = text, toolchain, cache, key
        self.parts, self.objects = parts, objects
        self.extra = dict(extra or {})
        # the dynamic linker takes a path it knows for the library it knows: another text, another name
        self.binary = f"unit-{key_of(text, toolchain.identity)[:16]}.so"
        self.seconds = 0.0
        self.cached = False
        self.waited = 0.0
        self.on_ready: Callable[[CompileJob], None] | None = None
        self._library: Library | None = None
        self._error: BaseException | None = None
        self._told = False
        self._start()

    def done(self) -> bool:
        """Whether ``result()`` would not wait."""
        return self._ended.is_set() and self._process == os.getpid()

    def result(self) -> Library:
        """The library. An interrupted wait may be repeated; a failed compilation is repeated at the next
        call.

        Raises:
            ToolchainError: SM0204 the compiler refused the source, SM0205 the library cannot be loaded,
                SM0507 the compiler did not end.
            CacheError: SM0508, there is no space for its output.
        """
        if self._library is None and (self._process != os.getpid() or self._told):
            self._start()  # we are in a fork: the thread stayed in the parent
        began = time.perf_counter()
        self.wait()
        self.waited += time.perf_counter() - began
        ready, self.on_ready = self.on_ready, None
        if ready is not None:
            ready(self)
        if self._error is not None:
            self._told = True
            raise self._error
        assert self._library is not None
        return self._library

    def wait(self) -> None:
        """Waits for the end, successful or not."""
        if self._process == os.getpid():
            self._ended.wait()  # an interrupted Thread.join counts as done, up to Python 3.12

    def _start(self) -> None:
        self._process, self._ended = os.getpid(), threading.Event()
        self._error, self._told = None, False
        _running.add(self)
        threading.Thread(target=self._run, name=_THREAD, daemon=True).start()

    def _run(self) -> None:
        began = time.perf_counter()
        try:
            self._library = self._from_cache() or self._compile_once()
        except BaseException as error:
            self._error = error
        finally:
            self.objects = None
            self.seconds = time.perf_counter() - began
            _running.discard(self)
            self._ended.set()

    def _from_cache(self) -> Library | None:
        entry = self.cache.get(self.key)
        if entry is None:
            return None
        try:
            if entry.read(SOURCE) != self.text.encode():
                return None  # the key did not cover the text: the new text is right
            if not set(self.extra) <= set(entry.digests):
                with suppress(CacheError):  # no room: the library is there all the same
                    entry = self._stored(entry.path(self.binary))
            library = load(entry.path(self.binary))
        except (CacheError, KeyError, ToolchainError):
            self.cache.remove(self.key)
            return None
        self.cached = True
        return library

    def _compile_once(self) -> Library:
        with _held(self.cache.lock(self.key)) as waited:
            library = self._from_cache() if waited else None
            return library or self._compile()

    def _compile(self) -> Library:
        process.check(self.toolchain.command, self.toolchain.seconds)
        return self.cache.work(self._compile_in)

    def _compile_in(self, folder: Path) -> Library:
        binary = folder / "unit.so"
        objects = self.objects or Objects(self.toolchain, self.cache)
        if not (self.parts and objects.link(self.parts, binary)):
            compile_to(binary, self.text, self.toolchain, self.cache, self.key)
        try:
            return load(self._stored(binary).path(self.binary))
        except (CacheError, ToolchainError):
            return load(binary)  # the entry was cleared or damaged under us, or there is no room for it

    def _stored(self, binary: Path) -> Entry:
        files: dict[str, bytes | Path] = {**self.extra, SOURCE: self.text.encode(), self.binary: binary}
        return self.cache.put(self.key, files)


def compile_unit(
    text: str,
    toolchain: Toolchain,
    cache: Cache,
    key: str,
    extra: Mapping[str, bytes] | None = None,
    parts: Sequence[str] = (),
    objects: Objects | None = None,
) -> CompileJob:
    """Starts the compilation of ``text``; ``job.result()`` gives the `Library`.

    ``key`` names the cache entry (see `smelt.runtime.cache.key_of`) and should cover the text and
    ``toolchain.identity``; an entry that holds another text is replaced. ``extra`` files (``plan.json``) are
    stored in the same entry, so that a later process finds them with ``cache.get(key)`` and continues with
    `load_entry`; they are added to an entry without them. ``parts``: the same source in several files, to be
    compiled in parallel, without those that are among ``objects`` already.
    """
    return CompileJob(text, toolchain, cache, key, extra, parts, objects)


_helpers: dict[str, CompileJob] = {}


def helper(name: str, text: str) -> CompileJob | None:
    """Starts to compile (or load) a helper library, once per process; None if there is no toolchain."""
    try:
        if name not in _helpers:
            toolchain = find()
            key = key_of(name, text, toolchain.identity)
            _helpers[name] = compile_unit(text, toolchain, open_cache(), key)
        return _helpers[name]
    except (SmeltError, OSError):
        return None


def wait_for_all() -> None:
    """Waits until no compilation of this process is running; errors are raised by each ``result()``."""
    for job in list(_running):
        job.wait()


def load_entry(entry: Entry) -> Library:
    """The library of an entry that `compile_unit` stored.

    Raises:
        CacheError: SM0304, the entry has gone or its library cannot be loaded: treat it as a miss.
    """
    try:
        return load(entry.path(next(name for name in entry.digests if name.endswith(".so"))))
    except (StopIteration, ToolchainError) as error:
        raise CacheError(
            "SM0304", f"cache entry {entry.key[:12]} has no library that loads", why=str(error)
        ) from error


def compilers() -> int:
    """The number of parallel compilers: one for each processor that this process may use.

    >>> compilers() >= 1
    True
    """
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux tells
        return os.cpu_count() or 1


def compile_to(binary: Path, text: str, toolchain: Toolchain, cache: Cache, key: str) -> None:
    """Compiles ``text`` to the shared library ``binary``, in a directory of its own.

    Raises:
        ToolchainError: SM0204 with the compiler's first errors and the path of the kept source. SM0507, it
            did not end.
        OSError: it cannot write there.
    """
    source = binary.parent / SOURCE
    source.write_text(text)
    command = toolchain.build_command(str(source), str(binary))
    try:
        run = start_compiler(command, binary.parent, subprocess.PIPE)
    except OSError as error:
        raise ToolchainError(
            "SM0204", f"the C++ compiler {command[0]} cannot be started", why=str(error)
        ) from error
    _, output = process.wait(run, toolchain.command, toolchain.seconds)
    if run.returncode == 0 and binary.exists():
        return
    said = output.decode(errors="replace")
    full = next((why for why in FULL if why in said), None)
    if full is not None:
        raise OSError(errno.ENOSPC, f"compiling: {full.lower()}")
    kept = None
    with suppress(CacheError):
        kept = cache.keep_failed(key, text)
    lines = said.replace(str(source), SOURCE if kept is None else kept.name).splitlines()
    errors = [line for line in lines if "error" in line.lower()] or lines
    shown = errors[:_SHOWN_LINES] or [f"exit status {run.returncode}"]
    killed = run.returncode < 0 or any("Killed" in line for line in lines)
    raise ToolchainError(
        "SM0204",
        "the C++ compiler refused a generated source",
        where=None if kept is None else str(kept),
        why="\n       ".join(shown),
        remedy="it was killed: give it more memory"
        if killed
        else "report this as a bug of smelt, with the file above",
    )


class Include(Protocol):
    """A header in a form that compilers read faster."""

    @property
    def include(self) -> str | None:
        """The line that includes it; None if it does not exist (yet)."""

    @property
    def objects(self) -> Sequence[str]:
        """The object files to link with units that include it; none if they do not exist (yet)."""


class Objects:
    """Object files of parts of a unit, compiled while Python makes the rest.

    The files exist, and compilers run, as long as this object.
    """

    def __init__(self, toolchain: Toolchain, cache: Cache, precompiled: Include | None = None) -> None:
        """``precompiled``: the header in a form that compilers read faster, or None."""
        self.toolchain, self.cache, self.precompiled = toolchain, cache, precompiled
        self.files: list[str] = []
        self._folder: Path | None = None
        self._running: list[subprocess.Popen[bytes]] = []
        self._rest = 0
        self._failed = False
        self._process = os.getpid()

    @property
    def header(self) -> str | None:
        """The line that replaces the header's text in a part."""
        return None if self.precompiled is None else self.precompiled.include

    def free(self) -> bool:
        """Whether a processor is free for one more compiler, besides Python's own."""
        return sum(run.poll() is None for run in self._running) < compilers() - 1

    def start(self, text: str) -> None:
        """Starts the compilation of a part."""
        try:
            if self._folder is None:
                self._folder = self.cache.scratch()
                weakref.finalize(self, _forget, self._folder, self._running, self._process)
            source = self._folder / f"part{len(self.files)}.cpp"
            source.write_text(text)
            self.files.append(str(source.with_suffix(".o")))
            command = self.toolchain.object_command(str(source), self.files[-1])
            self._running.append(start_compiler(command, self._folder))
        except (OSError, CacheError):
            self._failed = True

    def start_rest(self, parts: Sequence[str]) -> None:
        """Starts the compilation of all remaining parts, because the caller waits for them."""
        while self._rest < len(parts):
            self.start(parts[self._rest])
            self._rest += 1

    def link(self, parts: Sequence[str], binary: Path) -> bool:
        """Links a shared library of these parts, the rest, and those started before. False if that fails: the
        caller compiles the whole, which gives the error.

        Raises:
            ToolchainError: SM0507, a compiler did not end.
        """
        if self._process != os.getpid():
            return False  # we are in a fork: the compilers are the parent's
        self.start_rest(parts)
        for run in self._running:
            self._wait(run)
        if any(run.returncode for run in self._running) or self._failed:
            return False
        try:
            shared = () if self.precompiled is None else self.precompiled.objects
            command = self.toolchain.link_command([*self.files, *shared], str(binary))
            linker = start_compiler(command, binary.parent)
        except OSError:
            return False
        self._wait(linker)
        return linker.returncode == 0 and binary.exists()

    def _wait(self, run: subprocess.Popen[bytes]) -> None:
        process.wait(run, self.toolchain.command, self.toolchain.seconds)


def _forget(folder: Path, running: Sequence[subprocess.Popen[bytes]], owner: int) -> None:
    if owner != os.getpid():
        return
    for run in running:
        process.end(run)
    shutil.rmtree(folder, ignore_errors=True)


def start_compiler(
    command: Sequence[str],
    folder: Path,
    errors: int = subprocess.DEVNULL,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a compiler with temporary files in ``folder``; ``errors``: the destination of its messages;
    ``variables`` of its environment.

    It leads a session of its own: its children are ended with it, and Ctrl-C ends only Python.
    """
    with _starting:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "TMPDIR": str(folder), "LC_ALL": "C", **(variables or {})},
            start_new_session=True,
        )


@contextmanager
def _held(lock: filelock.BaseFileLock) -> Any:
    """Holds the lock if possible; yields whether another process held it first (its work may be done now)."""
    try:
        lock.acquire(timeout=0)
        waited = False
    except filelock.Timeout:
        waited = True
        with suppress(filelock.Timeout):
            lock.acquire(timeout=LOCK_SECONDS, poll_interval=0.02)
    except (
        OSError,
        NotImplementedError,
    ):  # no locks on this file system: two may compile, the cache sorts it out
        waited = False
    try:
        yield waited
    finally:
        if lock.is_locked:
            lock.release()
