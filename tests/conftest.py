"""Fixtures of the whole test suite."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import smelt
from tests.support import target


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden texts anew")
    parser.addoption("--target", choices=target.NAMES, default=target.NAMES[0], help="what runs loop graphs")
    parser.addoption(
        "--fast",
        action="store_true",
        help="each test once, with its first parameters; of a file PER_FILE; none of PROCESSES",
    )


def pytest_configure(config: pytest.Config) -> None:
    target.chosen = config.getoption("--target")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Makes many objects and little garbage: scanning them took each worker a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


PROCESSES = {"benchmarks", "cli", "codegen", "conformance", "mlir", "runtime"}
"""Folders whose tests mostly wait for other programs: compilers, emulators, the command line."""
PER_FILE = 12


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`make unit-fast`: what finds most mistakes in two minutes, for work in progress."""
    if not config.getoption("--fast"):
        return
    kept, left, seen, of_file = [], [], set(), Counter[Path]()
    for item in items:
        function = item.nodeid.split("[")[0]
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        dropped = folder in PROCESSES or function in seen or item.get_closest_marker("long")
        if dropped or of_file[item.path] == PER_FILE:
            left.append(item)
            continue
        kept.append(item)
        seen.add(function)
        of_file[item.path] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left)


@pytest.fixture(scope="session", autouse=True)
def _own_cache() -> Iterator[None]:
    """What an earlier run has compiled changes nothing in this one, unless the caller names the folder."""
    if "SMELT_CACHE_DIR" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="smelt-tests-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMELT_CACHE_DIR", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def _guards_are_not_timed() -> Iterator[None]:
    """Dynamo times each graph's guards after it has flushed the processor's caches: 30 ms for a number in a
    log that no test reads, and slow caches for whoever runs beside.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch._dynamo.guards.profile_guard_manager", lambda *given: 0.0, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _bugs_are_raised() -> Iterator[None]:
    """None is left to PyTorch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMELT_STRICT", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _eager_is_warm() -> None:
    """Eager's first ``exp`` in a process, where two threads share it, is wrong by 1e-4 now and then: what
    tests compare with has to have been called before.
    """
    import torch

    torch.exp(torch.zeros(8))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: the text is what ``goldens/<name>`` beside the test says, or will say."""
    folder = Path(request.path).parent / "goldens"

    def check(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-goldens"):
            folder.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no {path.name}: run pytest --update-goldens"
        assert text == path.read_text()

    return check


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing compiled before, and random numbers that are always the same."""
    smelt.reset()
    torch.manual_seed(0)
    yield
    smelt.reset()
