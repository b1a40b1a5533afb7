"""``smelt view`` and the joins of ``smelt explain``: a trace, made of a SPEC or read from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from smelt.cli import spec as specs
from smelt.cli.console import out, progress
from smelt.cli.fresh_cache import cache_in, temporary_folder
from smelt.tracing import lookup
from smelt.tracing.exports import chrome
from smelt.viewer.checks import read

Data = dict[str, Any]


def trace_of(
    spec: str, *, train: bool, dynamic: bool | None, options: dict[str, Any], seconds: float, command: str
) -> Data:
    """The trace of a SPEC, compiled in an empty cache, or the one that a ``.json`` file holds.

    Raises:
        SmeltError: a bad SPEC; SM0906, the model raises in eager; SM0930, nothing was compiled; SM0131,
            SM0132, the file holds no trace.
    """
    if spec.endswith(".json"):
        return read(Path(spec))
    specs.split(spec)
    import torch

    from smelt.runtime import toolchain
    from smelt.tir.schedule import Schedule
    from smelt.tracing import record, schedules, workload

    toolchain.find()
    name = spec.rpartition("/")[2]
    setup = workload.Setup(train, dynamic, tuple(sorted(options.items())))
    torch.manual_seed(workload.SEED)
    made = specs.made(spec)
    if isinstance(made, Schedule):
        with progress(f"building and running {spec}"):
            return schedules.schedule_trace(made, title=name, command=command, seconds=seconds)
    program = specs.checked(spec, made)
    workload.prepare(program, setup)
    with progress(f"compiling and running {spec}"), temporary_folder("view") as folder, cache_in(folder):
        with specs.in_eager(spec):
            workload.runner(program, program.call, setup)()
        kind = "training step" if train else "inference"
        return record.record(program, setup, title=f"{name}, {kind}", command=command, seconds=seconds)


def write(text: str, file: str) -> None:
    """Writes a text to a file, or to standard output (``-``)."""
    if file == "-":
        out().file.write(text + "\n")
    else:
        Path(file).write_text(text, encoding="utf-8")


def page_name(spec: str) -> str:
    """The file of a page without ``--output``.

    >>> page_name("benchmarks/zoo.py:tiny"), page_name("before.json")
    ('tiny.html', 'before.html')
    """
    return f"{Path(spec.rpartition(':')[2]).stem}.html"


def write_page(trace: Data, file: str, earlier: Data | None) -> None:
    """Writes the page of a trace, or of its difference from an earlier one, and says what it is."""
    from smelt.viewer import render, render_difference

    text = render(trace) if earlier is None else render_difference(earlier, trace)
    write(text, file)
    if file != "-":
        steps = sum(len(graph["steps"]) for graph in trace["graphs"])
        told = (
            f", {lookup.attributed(trace):.1%} of the time belongs to lines" if trace["run_seconds"] else ""
        )
        size = len(text.encode()) / 2**20
        out().print(f"{file}: {steps} steps in {len(trace['graphs'])} graph(s){told}; {size:.2f} MiB")


def export(trace: Data, json_to: str | None, events_to: str | None) -> None:
    """Writes the trace as JSON, and as events for Perfetto, where wanted."""
    if json_to is not None:
        write(json.dumps(trace), json_to)
    if events_to is not None:
        write(json.dumps(chrome(trace)), events_to)


# -- explain -----------------------------------------------------------------------------------------------


def explain(trace: Data, *, line: str | None, kernel: str | None, top: int | None) -> None:
    """Prints what became of a line, which lines a step is, and what costs most."""
    console = out()
    if line is not None:
        console.print(line_text(trace, line))
    if kernel is not None:
        console.print(kernel_text(trace, kernel))
    if top is not None:
        _print_top(trace, top, console)


def line_text(trace: Data, name: str) -> RenderableType:
    """What became of a line: its operators, and the steps that compute them."""
    place = lookup.line_named(trace, name)
    found = lookup.parts(trace)[place]
    seconds = sum(part.seconds or 0.0 for part in found)
    head = f"{lookup.name_of(trace, place)}: {lookup.text_of(trace, place)}"
    table = _table("step", "what", "graph", "ms", "share", "of it", "operators of this line")
    for part in found:
        names = list(dict.fromkeys(each["op"] for each in part.operators))
        whole = part.step["seconds"]
        table.add_row(
            part.step["id"],
            Text(part.step["name"]),
            part.graph["name"],
            _ms(part.seconds),
            _share(part.seconds, lookup.total(trace)),
            "–" if not whole or part.seconds is None else f"{part.seconds / whole:.0%}",
            Text(", ".join(name.removeprefix("aten.").removesuffix(".default") for name in names)),
        )
    taken = f"{_ms(seconds)} ms a run, {_share(seconds, lookup.total(trace))}"
    summary = f"in {len(found)} step(s)" + (f", {taken}" if trace["run_seconds"] else ", not timed")
    return Group(Text(head, "bold"), Text(summary), table)


def kernel_text(trace: Data, name: str) -> RenderableType:
    """Which lines a step is, what bounds it, and why it is not fused with the next."""
    graph, step = lookup.step_named(trace, name)
    table = _table("line", "source", "operators")
    for place, operators in lookup.lines_of(graph, step).items():
        names = ", ".join(operator["text"] for operator in operators)
        table.add_row(
            Text(lookup.name_of(trace, place)),
            Text(lookup.text_of(trace, place), overflow="fold"),
            Text(names, overflow="fold"),
        )
    about = [f"{step['id']} {step['name']} ({step['kind']} of {graph['name']})"]
    if step["seconds"] is not None:
        rate = f"{step['moved'] / max(step['seconds'], 1e-12) / 1e9:.1f} GB/s"
        about.append(f"{_ms(step['seconds'])} ms, {_share(step['seconds'], lookup.total(trace))}, {rate}")
        bound = lookup.bound(trace, step)
        if bound is not None:
            about.append(f"{bound[1]:.0%} of the peak of {bound[0]}")
    about += [f"why: {step['reason']}"] if step["reason"] else []
    about += [f"apart from the next: {step['apart']}"] if step["apart"] else []
    about += [f"measured: {step['alternatives']}"] if step["alternatives"] else []
    return Group(*(Text(each) for each in about), table)


def _print_top(trace: Data, count: int, console: Console) -> None:
    whole = lookup.total(trace)
    lines = _table("line", "ms", "share", "steps", "source")
    found = lookup.parts(trace)
    spent = {place: sum(part.seconds or 0.0 for part in parts) for place, parts in found.items()}
    for place in sorted(spent, key=lambda each: -spent[each])[:count]:
        lines.add_row(
            Text(lookup.name_of(trace, place)),
            _ms(spent[place]),
            _share(spent[place], whole),
            str(len(found[place])),
            Text(lookup.text_of(trace, place)),
        )
    kernels = _table("step", "what", "ms", "share", "of the peak", "lines")
    listed = [each for each in lookup.steps(trace) if each[1]["kind"] != "cluster"]
    for graph, step in sorted(listed, key=lambda each: -(each[1]["seconds"] or 0.0))[:count]:
        bound = lookup.bound(trace, step)
        places = ", ".join(lookup.name_of(trace, place) for place in lookup.lines_of(graph, step))
        kernels.add_row(
            step["id"],
            Text(step["name"]),
            _ms(step["seconds"]),
            _share(step["seconds"], whole),
            "–" if bound is None else f"{bound[1]:.0%} {bound[0]}",
            Text(places, overflow="fold"),
        )
    console.print(Text("the lines that cost most", "italic"), lines, "")
    console.print(Text("the steps that cost most", "italic"), kernels, "")
    others = [(graph, step) for graph, step in listed if step["kind"] != "kernel"]
    if others:
        table = _table("step", "what", "ms", "share", "why")
        for _, step in sorted(others, key=lambda each: -(each[1]["seconds"] or 0.0))[:count]:
            cells = (step["id"], step["name"], _ms(step["seconds"]), _share(step["seconds"], whole))
            table.add_row(*map(Text, cells), Text(step["reason"] or "", overflow="fold"))
        console.print(Text("what PyTorch does", "italic"), table, "")
    share = f"{lookup.attributed(trace):.1%} of the measured time belongs to lines of the model"
    console.print(share if trace["run_seconds"] else "not timed")


def _table(*headings: str) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("ms", "share", "of it", "steps") else "left")
    return table


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.3f}"


def _share(seconds: float | None, whole: float) -> str:
    return "–" if seconds is None or not whole else f"{seconds / whole:.1%}"
