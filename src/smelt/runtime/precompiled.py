"""smelt's C++ header, precompiled once for all units, which makes compilation faster.

GCC uses ``smelt.h.gch`` if a file begins by including the adjacent ``smelt.h``, with the same compiler and
flags; otherwise it reads ``smelt.h`` itself. The definitions that each program contains once are compiled
together with it.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from smelt.errors import SmeltError
from smelt.runtime import process
from smelt.runtime.cache import Cache, Entry, key_of
from smelt.runtime.library import start_compiler
from smelt.runtime.toolchain import Toolchain

HEADER = "smelt.h"
BINARY = f"{HEADER}.gch"
OBJECT = "smelt.o"

_known: dict[str, Precompiled] = {}


def precompiled(text: str, once: str, toolchain: Toolchain, cache: Cache) -> Precompiled | None:
    """The header ``text``, and the definitions ``once`` that follow it in a separate file; the lookup or
    compilation starts once per process. None if the compiler has no precompiled headers of that kind.
    """
    if toolchain.family != "gcc":
        return None
    key = key_of("header", text, once, toolchain.identity)
    found = _known.get(key)
    if found is None or found.is_lost():
        found = _known[key] = Precompiled(key, text, once, toolchain, cache)
    return found


def wait_for_all() -> None:
    """Waits until no header is being compiled."""
    for each in list(_known.values()):
        each.thread.join()


class Precompiled:
    """A header that is compiled, or being compiled.

    ``path``: the file to include; None if the compilation is running (``done``), or failed.
    """

    def __init__(self, key: str, text: str, once: str, toolchain: Toolchain, cache: Cache) -> None:
        self.key, self.text, self.once, self.toolchain, self.cache = key, text, once, toolchain, cache
        self.path: Path | None = None
        self.done = False
        self.thread = threading.Thread(target=self._run, name="smelt-header", daemon=True)
        self.thread.start()

    def is_lost(self) -> bool:
        """Whether it was cleared from the cache, or not ready when this process was forked."""
        return not self.path.exists() if self.path else not (self.done or self.thread.is_alive())

    @property
    def include(self) -> str | None:
        """The line to begin a file with; None if it is not ready, so that the file needs the text."""
        path = self.path
        if path is None or not path.exists() or not str(path).isprintable() or '"' in str(path):
            return None
        return f'#include "{path}"'

    @property
    def objects(self) -> tuple[str, ...]:
        """The object file of the definitions, as soon as it exists."""
        return () if self.path is None else (str(self.path.with_name(OBJECT)),)

    def _run(self) -> None:
        with suppress(SmeltError, OSError):  # units have the header's text then
            entry = self.cache.get(self.key) or self._compiled()
            self.path = None if entry is None else entry.path(HEADER)
        self.done = True

    def _compiled(self) -> Entry | None:
        return self.cache.work(self._compiled_in)

    def _compiled_in(self, folder: Path) -> Entry | None:
        tools = self.toolchain
        source, binary, once, made = (folder / name for name in (HEADER, BINARY, "smelt.cpp", OBJECT))
        source.write_text(self.text)
        once.write_text(f'#include "{HEADER}"\n{self.once}')
        for command in (
            tools.header_command(str(source), str(binary)),
            tools.object_command(str(once), str(made)),
        ):
            try:
                run = start_compiler(command, folder)
            except OSError:  # it is no program
                return None
            process.wait(run, tools.command, tools.seconds)
            if run.returncode != 0:
                return None
        return self.cache.put(self.key, {HEADER: self.text.encode(), BINARY: binary, OBJECT: made})
