"""The passes of the compiler: each has a name and a summary, can be printed, and leaves what it was given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smelt
from smelt.config import Config
from smelt.errors import SmeltError, VerificationError
from smelt.passes import name_of, summary_of
from smelt.pipeline.passes import FORMS, PASSES
from smelt.records import replace
from smelt.schedule import PASSES as SCHEDULE
from smelt.schedule import Context, Target, schedule
from smelt.schedule.grouping.items import Work
from smelt.schedule.memory.execution import Grouped
from smelt.schedule.printer import print_groups, print_work, verify_groups, verify_work
from tests.lowering.harness import lowered


@pytest.fixture(autouse=True)
def _no_reports() -> None:
    smelt.reset()


EVERY = [pass_ for _, passes in PASSES for pass_ in passes]
OF_TORCH_COMPILE = [
    pass_
    for about, passes in PASSES
    for pass_ in passes
    if not {"person", "GPU"} & {*about.replace(",", "").split()}
]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.nn.functional.gelu(self.inner(x)))


@pytest.mark.parametrize("pass_", EVERY, ids=name_of)
def test_a_pass_says_in_one_sentence_what_it_does(pass_: object) -> None:
    summary = summary_of(pass_)  # type: ignore[arg-type]
    assert summary[0].isupper() and len(summary) > 20


def test_every_pass_of_torch_compile_is_seen_before_and_after() -> None:
    model = Small().eval()
    names = [name_of(pass_) for pass_ in OF_TORCH_COMPILE]
    with torch.no_grad():
        smelt.compile(model, print_passes=";".join(names), verify=True)(torch.randn(4, 8))
    (report,) = smelt.reports()
    for name in names:
        assert report.text(f"before {name}").strip() and report.text(f"after {name}").strip()
    assert "aten.addmm" in report.text("before lower_calls")
    assert "loops (" in report.text("before fuse_items") and "group 0" in report.text("after fuse_items")
    assert "parallel" not in report.text("before choose_loops")
    assert "begins at byte 0" in report.text("after place_buffers")


def test_a_pass_that_is_not_asked_for_leaves_no_text() -> None:
    with torch.no_grad():
        smelt.compile(Small().eval(), print_passes="rewrite")(torch.randn(4, 8))
    (report,) = smelt.reports()
    assert report.text("after rewrite")
    with pytest.raises(SmeltError, match="SM0104"):
        report.text("after lower_calls")


def test_an_unknown_pass_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(Exception, match=r"SM0102: no pass 'fuze'[\s\S]*fuse_items"):
        smelt.compile(Small().eval(), print_passes="fuze", strict=True)(torch.randn(4, 8))


def test_no_pass_changes_what_it_was_given() -> None:
    """The text of what a pass was given is the same when it has run."""
    given: dict[str, tuple[object, str]] = {}
    changed = []

    def watch(moment: str, pass_: object, ir: object) -> None:
        form = next(form for form in FORMS if isinstance(ir, form.kind))
        name = name_of(pass_)  # type: ignore[arg-type]
        if moment == "before":
            given[name] = ir, form.text(ir)
        else:
            before, text = given[name]
            form = next(form for form in FORMS if isinstance(before, form.kind))
            changed.extend([name] if form.text(before) != text else [])

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ y + 1, -1).sum(0)

    graph = lowered(program, torch.randn(8, 16), torch.randn(16, 32))
    schedule(graph, Config(), Target(32), watch=watch)
    assert not changed and set(given) >= {name_of(pass_) for pass_ in SCHEDULE}


def test_an_item_that_reads_what_is_not_written_yet_is_found() -> None:
    found: list[object] = []

    def watch(moment: str, pass_: object, ir: object) -> None:
        if moment == "after" and isinstance(ir, (Work, Grouped)):
            found.append(ir)

    graph = lowered(lambda x: torch.softmax(x, -1), torch.randn(8, 300))
    schedule(graph, Config(fusion=False), Target(32), watch=watch)
    work = next(each for each in found if isinstance(each, Work))
    grouped = next(each for each in found if isinstance(each, Grouped))
    assert print_work(work) and print_groups(grouped)
    with pytest.raises(VerificationError, match=r"SM0526[\s\S]*before it is written"):
        verify_work(replace(work, items=work.items[::-1]))
    with pytest.raises(VerificationError, match=r"SM0526[\s\S]*before it is written"):
        verify_groups(replace(grouped, groups=grouped.groups[::-1]))


def test_the_context_is_plain_data() -> None:
    assert Context(Config(), Target(32)) == Context(Config(), Target(32))
