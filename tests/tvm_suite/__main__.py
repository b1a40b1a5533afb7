"""TVM's own public tests against smelt, through the import shim beside this file.

``python -m tests.tvm_suite SOURCE --reference PYTHON [GROUP …]``: SOURCE is a checkout of apache/tvm (0.27),
PYTHON an interpreter with the apache-tvm wheel. The tests that pass there are the denominator. The command
prints a table by group and the reason of each failure. No file of TVM is in this project.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
SCHEDULE = "s_tir/schedule/test_tir_schedule_"
SCRIPT = "tvmscript/test_tvmscript_"
GROUPS: dict[str, tuple[str, ...]] = {
    "te": ("te/*.py",),
    "schedule": tuple(
        f"{SCHEDULE}{name}.py"
        for name in (
            "split_fuse",
            "for_kind",
            "reorder",
            "compute_at",
            "compute_inline",
            "cache_read_write",
            "reduction",
            "rfactor",
            "blockize",
            "tensorize",
        )
    ),
    "more schedule": tuple(
        f"{SCHEDULE}{name}.py"
        for name in (
            "analysis",
            "decompose_padding",
            "error",
            "merge",
            "pad_einsum",
            "partition",
            "reindex",
            "reorder_block_iter_var",
            "sampling",
            "set_scope",
            "storage_align",
            "trace",
            "transform_layout",
            "utilities",
        )
    ),
    "blockbuilder": ("relax/test_blockbuilder*.py",),
    "legalize_ops": ("relax/test_transform_legalize_ops*.py",),
    "from_fx": ("relax/test_frontend_from_fx.py",),
    "from_exported_program": ("relax/test_frontend_from_exported_program.py",),
    "script": tuple(
        f"{SCRIPT}{name}.py"
        for name in (
            "complete",
            "error_report",
            "meta_programming",
            "ops",
            "parser_ir",
            "parser_tir",
            "pep563_closure",
            "regression",
            "roundtrip",
            "syntax_sugar",
        )
    ),
    "more script": tuple(
        f"{SCRIPT}{name}.py" for name in ("ir_builder_*", "parser_evaluator", "parser_source", "printer_*")
    ),
    "relax script": ("relax/test_tvmscript_*.py",),
}
GOALS = {
    "te": 95,
    "schedule": 85,
    "blockbuilder": 95,
    "legalize_ops": 90,
    "script": 80,
}


Outcomes = dict[str, tuple[str, str]]


def outcomes(python: str, shim: str, source: Path, files: list[str], out: Path) -> Outcomes:
    """The outcome of each test under an interpreter; a shim of "-" leaves TVM as it is installed.

    ``out`` gets them one by one; what it has already is not run again.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if shim == "-":
        environment.pop("PYTHONPATH", None)
    command = [python, str(HERE / "forked.py"), str(out.resolve()), shim, str(source), *files]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    lines = map(json.loads, out.read_text().splitlines())
    return {node: (outcome, reason) for node, outcome, reason in lines}


def begin(out: Path, known: Outcomes) -> Path:
    """The file of outcomes, with those that are known."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps([node, *each]) + "\n" for node, each in known.items()))
    return out


def main(
    source: Annotated[Path, typer.Argument(help="a checkout of apache/tvm")],
    groups: Annotated[
        list[str] | None, typer.Argument(help=f"of {', '.join(GROUPS)}; all without any")
    ] = None,
    reference: Annotated[
        str, typer.Option(help="an interpreter with apache-tvm; its outcomes are kept")
    ] = "",
    keep: Annotated[Path, typer.Option(help="where the outcomes are kept")] = Path(
        "conformance-results/tvm.json"
    ),
    resume: Annotated[bool, typer.Option(help="goes on where a run was stopped")] = False,
    again: Annotated[bool, typer.Option(help="runs only what did not pass in the last run")] = False,
    failures: Annotated[bool, typer.Option(help="each failure with its reason")] = True,
) -> None:
    """Runs TVM's tests on smelt and prints how many of those that pass on TVM pass here."""
    folder = (source / "tests" / "python").resolve()
    chosen = groups or list(GROUPS)
    if unknown := [name for name in chosen if name not in GROUPS]:
        raise typer.BadParameter(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    kept = json.loads(keep.read_text()) if keep.exists() else {}
    console = Console()
    table = Table("group", "pass on TVM", "pass on smelt", "share", "goal", "skipped here")
    for name in chosen:
        files = sorted(
            str(each.relative_to(folder)) for pattern in GROUPS[name] for each in folder.glob(pattern)
        )
        if not files:
            raise typer.BadParameter(f"{folder} has no tests of the group {name}")
        record = kept.setdefault(name, {})
        if reference:
            out = begin(keep.with_name(f"{name} on TVM.jsonl"), {})
            record["tvm"] = outcomes(reference, "-", folder, files, out)
        if "tvm" not in record:
            raise typer.BadParameter(f"no outcomes of TVM for {name} yet: name an interpreter by --reference")
        out = keep.with_name(f"{name}.jsonl")
        if not (resume and out.exists()):
            last = record.get("smelt", {}) if again else {}
            begin(out, {node: each for node, each in last.items() if each[0] == "passed"})
        record["smelt"] = outcomes(sys.executable, str(HERE / "shim"), folder, files, out)
        wanted = [node for node, (outcome, _) in record["tvm"].items() if outcome == "passed"]
        ours = {node: record["smelt"].get(node, ("failed", "not collected")) for node in wanted}
        count = Counter(outcome for outcome, _ in ours.values())
        share = 100 * count["passed"] / max(len(wanted), 1)
        goal = f"{GOALS[name]} %" if name in GOALS else ""
        table.add_row(
            name, str(len(wanted)), str(count["passed"]), f"{share:.1f} %", goal, str(count["skipped"])
        )
        if failures:
            for node, (outcome, reason) in ours.items():
                if outcome != "passed":
                    line = reason.splitlines()[0] if reason else ""
                    console.print(f"{outcome} {node}: {line}"[:300], markup=False, highlight=False)
        keep.parent.mkdir(parents=True, exist_ok=True)
        keep.write_text(json.dumps(kept, indent=1))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
