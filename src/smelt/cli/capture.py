"""``smelt capture``: all capture methods on one program."""

from __future__ import annotations

import dataclasses
import json as _json
import sys

from rich.table import Table
from rich.text import Text

from smelt.cli import spec as specs
from smelt.cli.console import out, progress


def capture(spec: str, *, graphs: bool, json: bool) -> None:
    """Captures the program by each method, runs each capture with other arguments, and prints a table.

    Raises:
        SmeltError: a bad SPEC, a program that raises in eager (SM0906).
    """
    specs.split(spec)
    with progress(f"capturing {spec}"):
        import torch

        from smelt.capture.compare import compare

        torch.manual_seed(0)
        program = specs.load(spec)
        call = program.call
        if isinstance(call, torch.nn.Module):
            call.eval()
        with specs.in_eager(spec), torch.no_grad():
            call(*program.args, **program.kwargs)
        if program.kwargs:
            kwargs = program.kwargs
            found = compare(lambda *args: program.call(*args, **kwargs), program.args)
        else:
            found = compare(call, program.args)
    if json:
        sys.stdout.write(_json.dumps([dataclasses.asdict(each) for each in found.captures], indent=1) + "\n")
        return
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for head in ("way", "captured", "fixed by the example", "with other arguments"):
        table.add_column(head, overflow="fold")
    for each, row in zip(found.captures, found.rows(), strict=True):
        style = "green" if each.is_right else "yellow" if each.is_captured else "red"
        table.add_row(*(Text(cell, style if column == 0 else "") for column, cell in enumerate(row)))
    console = out()
    console.print(f"[bold]{spec}[/]")
    console.print(table)
    for each in found.captures if graphs else ():
        if each.is_captured:
            console.print(f"\n[bold]{each.way}[/]")
            console.print(Text(each.text))
