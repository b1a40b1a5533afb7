"""A stored plan is data: nothing in it runs as Python, and what is no plan is compiled again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.errors import SmeltError
from smelt.runtime import library, toolchain
from smelt.runtime.cache import Cache, open_cache
from smelt.runtime.executor import build
from smelt.runtime.plan_json import from_json

FORGED = "SMELT_TEST_FORGED"
RUNS = f"__import__('os').environ.setdefault('{FORGED}', 'x')"
EVIL = [
    RUNS,
    f"0] + [{RUNS}",
    f"0]\n    {RUNS}\n    [0",
    f"s0 or {RUNS}",
    f"x=1, **{{{RUNS}: 1}}, y",
    f"f(): pass\n{RUNS}\n#",
    "s0 # ",
    "s0)\n",
]
FREE = {"notes", "errors", "error", "outputs"}
"""Fields that may hold any text: what a report says, what an error says, results that are literals."""
VALUES = re.compile(r"'args'|'kwargs', \d+, 1|'specs', \d+, 'name'")
SCHEMA = "scaled(Tensor x, *, float factor) -> Tensor"


@pytest.fixture(autouse=True)
def _not_forged(own_cache: None, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORGED, raising=False)


@pytest.fixture(scope="module")
def scaled() -> Iterator[Callable[..., torch.Tensor]]:
    with torch.library._scoped_library("smelt_forged", "FRAGMENT") as made:
        made.define(SCHEMA)
        made.impl("scaled", lambda x, *, factor: x * factor, "CompositeExplicitAutograd")
        made.impl("scaled", lambda x, *, factor: torch.empty_like(x), "Meta")
        made.define("positive(Tensor x) -> Tensor")
        made.impl("positive", lambda x: x[x > 0], "CompositeExplicitAutograd")
        count = lambda: torch.library.get_ctx().new_dynamic_size()  # noqa: E731
        torch.library.register_fake("smelt_forged::positive", lambda x: x.new_empty(count()), lib=made)
        yield torch.ops.smelt_forged.scaled


def program(scaled: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """It has all that reaches source: sizes of data and inputs, keyword arguments, the arena, bodies."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = scaled((x @ x.t() + 1).relu(), factor=2.0)
        z = torch.cond(x.sum() > 0, lambda x: x.sin().sum(), lambda x: x.cos().sum(), (x,))
        return y.sum() + scaled(torch.ops.smelt_forged.positive(x) * 3, factor=0.5).sum() + z

    return f


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the plan has anything that is no list or dictionary."""
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in pairs:
        yield from leaves(value, (*path, key))
    if not isinstance(data, (dict, list)):
        yield path


def replaced(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = replaced(data[path[0]], path[1:], value)
    return copy


def stored(cache: Cache) -> dict[str, Any]:
    """Key → plan of what the cache holds."""
    library.wait_for_all()
    entries = [entry for key in cache.entries() if (entry := cache.get(key)) is not None]
    return {each.key: json.loads(each.read("plan.json")) for each in entries if "plan.json" in each.digests}


def forge(cache: Cache, key: str, plan: Any) -> None:
    entry = cache.get(key)
    assert entry is not None
    files = {name: entry.read(name) for name in entry.digests}
    cache.put(key, {**files, "plan.json": json.dumps(plan).encode()})


@pytest.fixture
def compiled(scaled: Callable[..., torch.Tensor]) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield torch.compile(program(scaled), backend="smelt", dynamic=True)


def test_no_field_runs_as_python(
    compiled: Callable[[torch.Tensor], torch.Tensor], scaled: Callable[..., torch.Tensor]
) -> None:
    x = torch.randn(6, 5)
    torch.testing.assert_close(compiled(x), program(scaled)(x))
    cache = open_cache()
    ((key, plan),) = stored(cache).items()
    text = json.dumps(plan)
    for word in ('"sizes": [["', '"kwargs": [["factor"', '"check"', '"bodies": [{', '"symbols": ["'):
        assert word in text, word
    entry = cache.get(key)
    assert entry is not None
    built = library.load_entry(entry)
    tried = 0
    for number, path in enumerate(leaves(plan)):
        for evil in (RUNS, EVIL[number % len(EVIL)]):
            tried += 1
            try:
                build(from_json(json.dumps(replaced(plan, path, evil))), built, {})
            except (SmeltError, SyntaxError):
                continue
            assert FREE.intersection(path) or VALUES.search(repr(path)), (path, evil)
    assert tried > 200 and FORGED not in os.environ


def steps_with(plan: Any, kind: str, field: str, change: Callable[[Any], Any]) -> Any:
    found = [each for each in plan["steps"] if each["step"] == kind and each.get(field)]
    assert found
    steps = [{**each, field: change(each[field])} if each in found else each for each in plan["steps"]]
    return {**plan, "steps": steps}


def dimension(plan: Any) -> Any:
    return steps_with(plan, "extern", "sizes", lambda each: [[a, b, RUNS] for a, b, _ in each])


def keyword(plan: Any) -> Any:
    return steps_with(plan, "extern", "kwargs", lambda each: [[f"a=1, **{{{RUNS}: 1}}", 1.0]])


def function(plan: Any) -> Any:
    return steps_with(plan, "native", "function", lambda name: f"f(): pass\n{RUNS}\n#")


def operator(plan: Any) -> Any:
    return steps_with(plan, "extern", "target", lambda name: "load_library.__func__.__globals__")


FORGERIES: dict[str, Callable[[Any], Any]] = {
    "a dimension of an input": lambda plan: {**plan, "shape_symbols": [["s99", "arg2_1", RUNS]]},
    "a dimension of a result": dimension,
    "a keyword": keyword,
    "a function": function,
    "an operator": operator,
    "constants": lambda plan: {**plan, "notes": {"$": "dict", "v": [["constants", RUNS]]}},
    "nothing": lambda plan: [],
}


def test_forged_plans_are_compiled_again(
    compiled: Callable[[torch.Tensor], torch.Tensor], scaled: Callable[..., torch.Tensor]
) -> None:
    x = torch.randn(6, 5)
    compiled(x)
    cache = open_cache()
    ((key, plan),) = stored(cache).items()
    for what, change in FORGERIES.items():
        forge(cache, key, change(plan))
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(x), program(scaled)(x))
        assert stored(cache)[key] == plan and not smelt.reports()[-1].cache_hit, what
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(x), program(scaled)(x))
    assert smelt.reports()[-1].cache_hit and FORGED not in os.environ


def test_a_forged_description_of_a_compiler_starts_no_program() -> None:
    toolchain._find.cache_clear()
    before = toolchain.find()
    cache = open_cache()
    entries = [entry for key in cache.entries() if (entry := cache.get(key)) is not None]
    entry = next(each for each in entries if "toolchain.json" in each.digests)
    known = json.loads(entry.read("toolchain.json"))
    for change in ({"command": ["/bin/evil"]}, {"tuning": ["-fplugin=evil.so"]}, {"vector_bytes": "9"}):
        cache.put(entry.key, {"toolchain.json": json.dumps({**known, **change}).encode()})
        toolchain._find.cache_clear()
        assert toolchain.find() == before
