"""`CompileReport`s as tables (rich), and as plain data for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from smelt.reporting import CompileReport, Fallback


def total_phases(reports: Sequence[CompileReport]) -> dict[str, float]:
    """smelt's own seconds by phase, over all graphs.

    >>> total_phases([CompileReport("forward", "a", {"lowering": 1.0}), CompileReport("backward", "a")])
    {'lowering': 1.0}
    """
    total: dict[str, float] = {}
    for report in reports:
        for phase, seconds in report.phase_seconds.items():
            total[phase] = total.get(phase, 0.0) + seconds
    return total


def total_externs(reports: Sequence[CompileReport]) -> dict[str, int]:
    """ATen calls that smelt chose, over all graphs."""
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report.externs)
    return dict(sorted(total.items()))


def total_fallbacks(reports: Sequence[CompileReport]) -> list[Fallback]:
    """Fallbacks over all graphs; equal operator and reason are counted together, the first line is kept."""
    total: dict[tuple[str, str], Fallback] = {}
    for fallback in (each for report in reports for each in report.fallbacks):
        key = (fallback.op, fallback.reason)
        seen = total.get(key)
        count = fallback.count + (seen.count if seen else 0)
        where = seen.where if seen else fallback.where
        total[key] = Fallback(fallback.op, fallback.reason, count, where)
    return list(total.values())


def summary(reports: Sequence[CompileReport]) -> dict[str, Any]:
    """The summary of reports, as plain data."""
    return {
        "graphs": sum(not report.is_cluster for report in reports),
        "clusters": sum(report.is_cluster for report in reports),
        "eager_graphs": sum(report.kind == "eager" for report in reports),
        "kernels": sum(len(report.kernels) for report in reports),
        "native_calls": sum(report.native_calls for report in reports),
        "externs": total_externs(reports),
        "contractions": _contractions(reports),
        "fallbacks": [
            {"op": each.op, "reason": each.reason, "count": each.count, "where": each.where}
            for each in total_fallbacks(reports)
        ],
        "symbols": sorted({symbol for report in reports for symbol in report.symbols}),
        "dynamic_sizes": _distinct(str(each) for report in reports for each in report.dynamic_sizes),
        "specialized": _distinct(
            str(each) for report in reports for each in report.size_guards if each.fixed
        ),
        "arena_bytes": sum(report.arena_bytes for report in reports),
        "folded_constants": sum(report.folded for report in reports),
        "folded_bytes": sum(report.folded_bytes for report in reports),
        "cache_hits": sum(report.cache_hit for report in reports),
    }


def _contractions(reports: Sequence[CompileReport]) -> dict[str, int]:
    """``native`` and ``ATen`` → the number of contractions that each computes."""
    total: Counter[str] = Counter()
    for each in (choice for report in reports for choice in report.choices):
        total[each.kernel] += each.count
    return dict(total)


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def overview(reports: Sequence[CompileReport]) -> RenderableType:
    """A few lines: graphs, kernels, ATen calls, fallbacks, smelt's own compile time by phase."""
    facts = summary(reports)
    grid = Table.grid(padding=(0, 2))
    graphs = Counter(report.kind for report in reports if not report.is_cluster)
    grid.add_row("graphs", ", ".join(f"{count} {kind}" for kind, count in graphs.items()) or "none")
    if facts["clusters"]:
        grid.add_row("clusters", f"{facts['clusters']}, PyTorch between them")
    grid.add_row("kernels", f"{facts['kernels']} in {facts['native_calls']} native call(s)")
    grid.add_row("ATen calls", Text(_counted(facts["externs"]), overflow="fold"))
    if facts["contractions"]:
        grid.add_row("contractions", _counted(facts["contractions"]))
    grid.add_row("arena", _bytes(facts["arena_bytes"]))
    if facts["folded_constants"]:
        constants = f"{facts['folded_constants']} computed ahead, {_bytes(facts['folded_bytes'])}"
        grid.add_row("constants", constants)
    if facts["symbols"]:
        grid.add_row("dynamic sizes", ", ".join(facts["symbols"]))
    phases = sorted(total_phases(reports).items(), key=lambda item: -item[1])
    own = sum(seconds for _, seconds in phases)
    parts = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in phases if seconds >= 0.005)
    hits = f", {facts['cache_hits']} from the cache" if facts["cache_hits"] else ""
    grid.add_row("compile", f"{own:.2f} s of smelt's own" + (f" ({parts})" if parts else "") + hits)
    return Group(grid, fallbacks(reports))


def fallbacks(reports: Sequence[CompileReport]) -> RenderableType:
    """Each fallback with its reason and the user's line."""
    found = total_fallbacks(reports)
    if not found:
        return Text("no fallbacks", style="green")
    table = Table(title="fallbacks (ATen runs these)", title_justify="left", box=None, header_style="bold")
    table.add_column("operator")
    table.add_column("times", justify="right")
    table.add_column("why")
    table.add_column("where")
    for each in sorted(found, key=lambda fallback: -fallback.count):
        table.add_row(*(Text(text) for text in (each.op, str(each.count), each.reason, each.where or "")))
    return table


def graph_tables(reports: Sequence[CompileReport]) -> RenderableType:
    """A table of facts for each graph, and each kernel with its fused operators; equal kernels once."""
    parts: list[RenderableType] = []
    for report in reports:
        heading = f"{report.graph_name} ({report.kind})"
        parts.append(Text(heading, style="bold"))
        if report.regions:
            parts += [*size_lines(report), region_table(report), Text("")]
            continue
        facts = f"  {len(report.kernels)} kernels in {report.native_calls} native call(s), arena "
        facts += _bytes(report.arena_bytes)
        if report.folded:
            facts += f", {report.folded} constants computed ahead ({_bytes(report.folded_bytes)})"
        if report.symbols:
            facts += ", sizes " + ", ".join(f"{name} (seen: {hint})" for name, hint in report.symbols.items())
        if report.cache_hit:
            facts += ", from the cache"
        if report.recorded:
            facts += f", {report.recorded}"
        parts.append(Text(facts))
        parts += size_lines(report)
        parts.append(Text(f"  ATen calls: {_counted(report.externs)}"))
        if report.choices:
            parts.append(_choice_table(report))
        if report.fused:
            parts.append(_kernel_table(report))
        parts += [Text(f"  fallback {each}", style="yellow") for each in report.fallbacks]
        parts.append(Text(""))
    return Group(*parts)


def region_table(report: CompileReport) -> Table:
    """The clusters of a graph and PyTorch's parts between them, in order."""
    total = sum(region.seconds for region in report.regions)
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 2))
    table.add_column("region")
    table.add_column("operators", justify="right")
    if total:
        table.add_column("time", justify="right")
    table.add_column("what and why")
    table.add_column("where")
    for region in report.regions:
        share = [f"{region.seconds / total:.0%}"] if total else []
        saves = f"; compiled too, it saves {region.joins} clusters" if region.joins else ""
        why = "compiled" if region.is_native else f"{', '.join(region.ops)}: {region.reason}{saves}"
        style = "" if region.is_native else "yellow"
        cells = (region.name, str(region.nodes), *share, why, region.where or "")
        table.add_row(*(Text(cell, style, overflow="fold") for cell in cells))
    return table


def size_lines(report: CompileReport) -> list[Text]:
    """The dynamic sizes, the specializations with their reasons, and the assumptions on dynamic sizes.

    >>> from smelt.reporting import SizeGuard
    >>> report = CompileReport("inference", "graph 0")
    >>> report.size_guards.append(SizeGuard("x.size(0) == 7", True, "model.py:3 in forward: if n == 7:"))
    >>> print(size_lines(report)[0])
      specialized: x.size(0) == 7  (at model.py:3 in forward: if n == 7:)
    """
    lines = [Text(f"  dynamic: {each}") for each in report.dynamic_sizes]
    fixed = [each for each in report.size_guards if each.fixed]
    lines += [Text(f"  specialized: {each}", style="yellow") for each in fixed]
    lines += [Text(f"  guard: {each}") for each in report.size_guards if not each.fixed]
    return lines


def _kernel_table(report: CompileReport) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 2))
    table.add_column("kernel")
    table.add_column("times", justify="right")
    table.add_column("operators fused in it")
    table.add_column("where")
    names = report.kernels or [str(number) for number in range(len(report.fused))]
    first: dict[tuple[str, str], str] = {}
    times: Counter[tuple[str, str]] = Counter()
    for name, origins in zip(names, report.fused):
        row = _fused(origins)
        first.setdefault(row, name)
        times[row] += 1
    for row, count in times.items():
        table.add_row(Text(first[row]), str(count), *(Text(text, overflow="fold") for text in row))
    return table


def _choice_table(report: CompileReport) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 2))
    table.add_column("contraction", overflow="fold")
    table.add_column("times", justify="right")
    table.add_column("who")
    table.add_column("why")
    for each in report.choices:
        why = f"{each.why}: {each.times}" if each.times else each.why
        table.add_row(
            *(Text(text, overflow="fold") for text in (each.what, str(each.count), each.kernel, why))
        )
    return table


def _fused(origins: Sequence[str]) -> tuple[str, str]:
    """``["aten.mul.Tensor at a.py:1 in f", "aten.exp.default at a.py:2 in f"]`` as operators and lines."""
    operators: dict[str, None] = {}
    lines: dict[str, None] = {}
    for origin in origins:
        operator, _, where = origin.partition(" at ")
        operators[operator.removeprefix("aten.").removesuffix(".default")] = None
        lines[where.partition(" in ")[0]] = None
    shown = [line for line in lines if line]
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return " → ".join(operators), ", ".join(shown[:3]) + more


def _counted(counts: dict[str, int]) -> str:
    """``{"mm": 2, "exp": 1}`` as ``mm ×2, exp``."""
    return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in counts.items()) or "none"


def _bytes(count: int) -> str:
    return f"{count:,} bytes" if count < 4096 else f"{count / 1024:,.0f} KiB"
