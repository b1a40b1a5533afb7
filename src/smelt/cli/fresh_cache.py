"""Empty caches, so that measurements, explanations and trials do not use results of an earlier run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE_VARIABLES = {"smelt": "SMELT_CACHE_DIR", "inductor": "TORCHINDUCTOR_CACHE_DIR"}


@contextmanager
def temporary_folder(purpose: str) -> Iterator[str]:
    """A temporary folder; it is kept if it holds a source which the C++ compiler refused."""
    folder = tempfile.mkdtemp(prefix=f"smelt-{purpose}-")
    try:
        yield folder
    finally:
        if not any(Path(folder).glob("**/failed/*.cpp")):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def cache_in(folder: str) -> Iterator[None]:
    """Inside, compilers use ``folder`` as their cache.

    At its end, all of smelt's compilations have ended, also that of smelt's own helper library (once per
    process), so that the folder can be removed.
    """
    from smelt.runtime import library, precompiled

    before = {name: os.environ.get(name) for name in CACHE_VARIABLES.values()}
    os.environ.update(cache_variables(folder))
    try:
        yield
    finally:
        library.wait_for_all()
        precompiled.wait_for_all()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def cache_variables(folder: str) -> dict[str, str]:
    """The environment variables that make ``folder`` the cache of compilers."""
    return {variable: os.path.join(folder, name) for name, variable in CACHE_VARIABLES.items()}
