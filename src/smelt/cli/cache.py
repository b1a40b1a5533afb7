"""``smelt cache``: where compiled programs are kept, how much they take, and clearing them."""

from __future__ import annotations

import typer
from rich.console import Console

from smelt.runtime.cache import open_cache


def info(console: Console) -> None:
    """Print place, number of entries and size.

    Raises:
        CacheError: the directory cannot be trusted.
    """
    cache = open_cache()
    count = sum(1 for _ in cache.entries())
    console.print(f"where    {cache.root}", markup=False, soft_wrap=True)
    console.print(f"entries  {count}")
    console.print(f"size     {size(cache.size())}")
    if cache.degraded:
        console.print("[yellow]it cannot be written: what is compiled now is kept for one process only[/]")


def clear(console: Console, *, yes: bool) -> None:
    """Remove all entries, after asking."""
    cache = open_cache()
    count, taken = sum(1 for _ in cache.entries()), size(cache.size())
    if count == 0:
        console.print("the cache is empty")
        return
    if not yes:
        typer.confirm(f"Remove {count} entries ({taken}) in {cache.root}?", abort=True)
    cache.clear()
    console.print(f"removed {count} entries ({taken})")


def size(count: int) -> str:
    """Bytes for people.

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
