"""The documents say what the code does: error codes, stages, commands, links, the README's program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_CODE = re.compile(r"\bSM\d{4}\b")


def _codes_in_source() -> dict[str, set[str]]:
    """Each error code in the source, with the packages of smelt that mention it."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for code in _CODE.findall(path.read_text()):
            found.setdefault(code, set()).add(path.relative_to(ROOT / "src" / "smelt").parts[0])
    del found["SM0123"], found["SM0001"]  # the examples in the docstrings of errors.py and the command line
    return found


def _rows() -> list[str]:
    return re.findall(r"^\| (SM\d{4}) \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)


def test_each_error_code_has_one_row_and_each_row_a_code():
    rows = _rows()
    assert rows == sorted(set(rows))
    assert set(rows) == set(_codes_in_source())


def test_stages_in_the_documents_are_those_of_the_reports():
    from smelt.cli.app import Stage
    from smelt.reporting import OF_TARGETS, STAGES

    assert tuple(stage.value for stage in Stage) == (*STAGES, *OF_TARGETS)
    assert "|".join((*STAGES, *OF_TARGETS)) in (ROOT / "docs" / "cli.md").read_text()


def test_architecture_lists_the_layers_that_are_checked():
    contract = (ROOT / "pyproject.toml").read_text().split("layers = [")[1].split("]")[0]
    layers = [layer for layer in re.findall(r'"([^"]+)"', contract) if layer != "__main__"]
    text = (ROOT / "docs" / "architecture.md").read_text()
    block = next(block for block in text.split("```") if "the command line" in block)
    assert [re.split(r"\s{2,}", line)[0] for line in block.strip().splitlines()] == layers


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not target.startswith("http") and target != "primitives.md":  # made where the site is built
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_the_documents_exist(document):
    from smelt.cli.app import app

    unnamed = [group.typer_instance for group in app.registered_groups if not isinstance(group.name, str)]
    found = [info for each in (app, *unnamed) for info in each.registered_commands if info.callback]
    commands = {info.name or info.callback.__name__ for info in found}
    commands |= {group.name for group in app.registered_groups}
    for command in re.findall(r"(?:^|`)smelt ([a-z]+)", document.read_text(), re.MULTILINE):
        if command not in ("compiles", "is"):  # prose at a line's start
            assert command in commands, command


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_in_the_documents_exist(document):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", document.read_text(), re.MULTILINE):
        assert target in targets, target


def test_specs_in_the_documents_are_in_the_zoo():
    zoo = (ROOT / "benchmarks" / "zoo.py").read_text()
    found = [
        name
        for path in DOCUMENTS
        for name in re.findall(r"benchmarks/zoo\.py:([a-z0-9_]+)", path.read_text())
    ]
    assert found
    for name in found:
        assert f"\ndef {name}()" in zoo


def test_configuration_is_small():
    import dataclasses

    from smelt.config import Config

    assert len(dataclasses.fields(Config)) <= 40


def _examples(document: Path) -> str:
    """The document's Python blocks as one program, whose lines have the numbers that they have there."""
    lines, inside = [], False
    for line in document.read_text().splitlines():
        marked = line.startswith("```")
        lines.append(line if inside and not marked else "")
        inside = line == "```python" or (inside and not marked)
    return "\n".join(lines) + "\n"


EXAMPLES = [each for each in DOCUMENTS if each.name != "README.md" and _examples(each).strip()]


@pytest.mark.parametrize("document", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_run(document, tmp_path, monkeypatch):
    program = compile(_examples(document), str(document), "exec")
    if document.name == "CONTRIBUTING.md":
        return  # it shows a row of the lowering table, which has that row
    if "smelt.export(" in _examples(document):
        pytest.importorskip("torch_mlir", reason="needs the extra [mlir]")
    if "TRITON_INTERPRET" in _examples(document):
        return  # tests/codegen/triton runs it, where Triton is
    import smelt

    monkeypatch.chdir(tmp_path)
    smelt.reset()
    exec(program, {"__name__": "example"})


def test_the_examples_are_the_blocks_in_place(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n```python\nx = 1\n```\nb\n```sh\nls\n```\n```python\nassert x == 1\n```\n")
    assert _examples(page).splitlines() == ["", "", "x = 1", "", "", "", "", "", "", "assert x == 1", ""]


def test_the_readmes_program_compiles_kernels(capsys):
    import smelt

    smelt.reset()
    exec(compile(_examples(ROOT / "README.md"), "README.md", "exec"), {})
    assert "inference" in capsys.readouterr().out
    assert len(smelt.reports()[0].kernels) >= 1


def test_each_page_is_in_the_sites_contents():
    contents = re.findall(r"^([a-z-]+)$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE)
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"} | {"primitives"}
    assert sorted(contents) == sorted(pages)


def test_the_readme_takes_a_minute_to_read():
    text = (ROOT / "README.md").read_text()
    paragraphs = re.sub(r"```.*?```", "", text, flags=re.DOTALL).split("\n\n")
    prose = [each for each in paragraphs if not each.startswith(("|", "- ", "<", "#"))]
    assert all(len(each.strip().splitlines()) <= 5 for each in prose)
    assert len(text.splitlines()) <= 120


def test_the_page_of_primitives_has_every_step(tmp_path):
    """Each has a section of its docstring; making the page runs the examples."""
    import runpy

    made = runpy.run_path(str(ROOT / "docs" / "primitives.py"))
    page = made["page"]()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    shown = [name for name in made["steps"]() if not name.startswith("sample_") and name != "enter_postproc"]
    assert list(sections) == shown
    assert set(made["EXAMPLES"]) <= set(shown) and not set(made["EXAMPLES"]) & set(made["WITHOUT"])
    rows = set(_rows())
    for name, text in sections.items():
        assert f"`{name}(" in text
        assert "→" in text, name
        assert "```diff\n" in text or name in made["WITHOUT"], name
        assert "Refused: " in text or name == "add_unit_loop", name
        assert set(_CODE.findall(text)) <= rows
        assert "its text stays" not in text, name
    program = tmp_path / "primitives.md"
    program.write_text(page)
    exec(compile(_examples(program), str(program), "exec"), {})
