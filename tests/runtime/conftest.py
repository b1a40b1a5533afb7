"""A cache of its own for the tests of this folder, kept while they run so that equal sources compile once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from smelt.runtime.cache import Cache, key_of
from smelt.runtime.library import Library, compile_unit
from smelt.runtime.toolchain import Toolchain, find


@pytest.fixture(scope="session")
def cache_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(cache_root))


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def toolchain(_own_cache: None) -> Toolchain:
    return find()


@pytest.fixture
def compile_text(toolchain: Toolchain, cache_root: Path) -> Callable[[str], Library]:
    def build(text: str) -> Library:
        return compile_unit(text, toolchain, Cache(cache_root), key_of(text, toolchain.identity)).result()

    return build
