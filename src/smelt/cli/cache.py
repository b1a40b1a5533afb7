"""``smelt cache``: the place and size of compiled programs; clearing, saving, loading them."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from smelt.cli.console import progress
from smelt.runtime import archive
from smelt.runtime.cache import open_cache

CHOICE = "choice-"
"""Prefix of the keys of `smelt.tuning`'s entries."""
KEPT = "program-"
"""Prefix of the keys of `smelt.runtime.kept`'s entries."""


def info(console: Console) -> None:
    """Prints place, number of entries and size.

    Raises:
        CacheError: the directory cannot be trusted.
    """
    cache = open_cache()
    count = sum(1 for _ in cache.entries())
    console.print(f"where    {cache.root}", markup=False, soft_wrap=True)
    console.print(f"entries  {count}")
    console.print(f"size     {size(cache.size())}")
    kept = sum(key.startswith(KEPT) for key in cache.entries())
    if kept:
        console.print(f"models   {kept} programs that start without tracing (smelt.Generator)")
    measured = sum(key.startswith(CHOICE) for key in cache.entries())
    if measured:
        console.print(f"choices  {measured} measured (smelt cache choices)")
    if cache.degraded:
        console.print("[yellow]it cannot be written: what is compiled now is kept for one process only[/]")


def choices(console: Console) -> None:
    """Prints each contraction that mode ``max`` has measured, both times, and the faster kernel."""
    from smelt.tuning import remembered

    found = remembered(open_cache())
    if not found:
        console.print("no contraction was measured: compile with mode max")
        return
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("contraction", overflow="fold")
    for heading in ("threads", "native µs", "ATen µs"):
        table.add_column(heading, justify="right")
    table.add_column("faster")
    for what, timing, threads in found:
        times = (f"{seconds * 1e6:,.0f}" for seconds in (timing.native, timing.aten))
        tiles = "" if timing.tiles is None else f" ({timing.tiles})"
        faster = f"native{tiles}" if timing.native <= timing.aten else "ATen"
        table.add_row(Text(what, overflow="fold"), str(threads), *times, faster)
    console.print(table)


def clear(console: Console, *, yes: bool) -> None:
    """Removes all entries, after a confirmation."""
    cache = open_cache()
    count, taken = sum(1 for _ in cache.entries()), size(cache.size())
    if count == 0 and cache.size() == 0:
        console.print("the cache is empty")
        return
    if not yes:
        typer.confirm(f"Remove {count} entries ({taken}) in {cache.root}?", abort=True)
    cache.clear()
    console.print(f"removed {count} entries ({taken})")


def save(console: Console, path: Path) -> None:
    """Writes the cache to one archive, and prints its contents.

    Raises:
        CacheError: SM0525, the file cannot be written.
        ToolchainError: there is no compiler.
    """
    from smelt.runtime.made_with import made_with

    cache = open_cache()
    with progress(f"saving {cache.root}"):
        contents = archive.save(cache, path, made_with())
    console.print(
        f"saved {contents_text(contents)} to {path} ({size(path.stat().st_size)})",
        markup=False,
        soft_wrap=True,
    )


def load(console: Console, path: Path) -> None:
    """Puts the contents of an archive into the cache, and prints them.

    Raises:
        CacheError: SM0521 to SM0525, see `smelt.runtime.archive.load`.
        ToolchainError: there is no compiler.
    """
    from smelt.runtime.made_with import made_with

    cache = open_cache()
    with progress(f"loading {path}"):
        contents = archive.load(cache, path, made_with())
    console.print(f"loaded {contents_text(contents)} into {cache.root}", markup=False, soft_wrap=True)


def contents_text(contents: archive.Contents) -> str:
    """The contents of an archive as text.

    >>> contents_text(archive.Contents(2, 0, 1, 2048))
    '2 programs, 0 measurements and 1 other entries (2.0 KiB)'
    """
    listed = f"{contents.programs} programs, {contents.measurements} measurements and {contents.others} other"
    return f"{listed} entries ({size(contents.size)})"


def size(count: int) -> str:
    """A number of bytes as text.

    >>> size(10), size(3 * 2**20)
    ('10 bytes', '3.0 MiB')
    """
    if count < 1024:
        return f"{count} bytes"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024 or unit == "GiB":
            break
    return f"{value:.1f} {unit}"
