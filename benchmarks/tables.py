"""Results as text: medians and ratios, geometric means, compile seconds, memory, the roofline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from contenders import CONTENDERS, OURS, PEERS
from smelt.cli.bench import duration

Document = dict[str, Any]
LONGEST = 5
"""How many of a program's kernels are listed."""
SUMMED = ("seconds", "calls", "operations", "moved")


def geometric_mean(values: Iterable[float]) -> float | None:
    """The mean of ratios; None of nothing.

    >>> geometric_mean([1.0, 4.0]), geometric_mean([])
    (2.0, None)
    """
    logarithms = [math.log(value) for value in values]
    return math.exp(math.fsum(logarithms) / len(logarithms)) if logarithms else None


def means(
    documents: Sequence[Document], ratio_of: Callable[[Document, str], float | None] | None = None
) -> dict[str, tuple[float, int]]:
    """By contender: the geometric mean over eager, and of how many programs."""
    ratio_of = ratio_of or _speedup
    found = {}
    for name in _names(documents):
        ratios = [ratio for document in documents if (ratio := ratio_of(document, name))]
        mean = geometric_mean(ratios)
        if mean is not None:
            found[name] = (mean, len(ratios))
    return found


def over_best_peer(document: Document) -> float | None:
    """smelt's speed over that of the fastest other compiler on this program; smelt in its best mode."""
    ours = [ratio for name in OURS if (ratio := _speedup(document, name))]
    peers = [ratio for name in PEERS if (ratio := _speedup(document, name))]
    return max(ours) / max(peers) if ours and peers else None


def groups(documents: Sequence[Document]) -> list[tuple[str, list[Document]]]:
    """Documents by mode and threads, in the order they were measured, with a heading each."""
    found: dict[str, list[Document]] = {}
    for document in documents:
        threads = document["threads"]
        title = f"{document['mode']}, {threads} thread{'s' if threads != 1 else ''}"
        found.setdefault(title, []).append(document)
    return list(found.items())


def markdown(results: Document) -> str:
    """The whole of results.md."""
    machine = results["machine"]
    lines = ["# smelt's benchmarks", ""]
    lines += [
        f"{machine['processor']}, {machine['cpus']} CPU(s), {machine['isa']}; {_versions(machine)}.",
        "",
    ]
    lines += [f"Measured {results['date']} by `{results['command']}`.", ""]
    for title, documents in groups(results["programs"]):
        lines += [f"## {title[0].upper()}{title[1:]}", "", *_speeds(documents), "", *_costs(documents), ""]
        lines += _failures(documents)
        peak = results["peaks"].get(str(documents[0]["threads"]))
        lines += _inside([each for each in documents if each.get("inside")], peak)
    for title, documents in groups(results["kernels"]):
        peak = results["peaks"].get(str(documents[0]["threads"]))
        lines += [f"## Roofline: {title}", "", *_roofline(documents, peak), "", *_failures(documents)]
    return "\n".join(lines).rstrip() + "\n"


def _speeds(documents: Sequence[Document]) -> list[str]:
    names = _names(documents)
    rows = []
    for document in documents:
        best = over_best_peer(document)
        cells = [_cell(document, name) for name in names]
        rows.append([document["name"], *cells, f"{best:.2f}" if best else "–"])
    for title, ratio_of in (("geometric mean over eager", _speedup), ("of the fastest turns", _fastest)):
        found = means(documents, ratio_of)
        known = [_mean(found[name], len(documents)) if name in found else "–" for name in names]
        rows.append([f"**{title}**", *known, _mean_over_peers(found)])
    text = [
        "Median of a call, and in parentheses how many times faster than eager. The last line is what others"
    ]
    text += ["that work on the machine disturb least: each contender's fastest turn over eager's.", ""]
    return text + table(["program", *names, "smelt / best peer"], rows)


def _mean(mean: tuple[float, int], programs: int) -> str:
    value, count = mean
    return f"**{value:.2f}x**" + ("" if count == programs else f" ({count} of {programs})")


def _mean_over_peers(found: dict[str, tuple[float, int]]) -> str:
    """smelt's mean over the best peer's, where both are of as many programs."""
    ours = [found[name] for name in OURS if name in found]
    if not ours:
        return "–"
    value, count = max(ours)
    peers = [mean for name in PEERS if name in found for mean, of in [found[name]] if of == count]
    return f"**{value / max(peers):.2f}**" if peers else "–"


def _cell(document: Document, name: str) -> str:
    contender = document["contenders"].get(name)
    if contender is None or contender["run"] is None:
        return "–"
    text = duration(contender["run"]["median"])
    off = "" if contender["accuracy"]["within_promise"] else " ⚠"
    if name == "eager" or contender["speedup"] is None:
        return text + off
    return f"{text} ({contender['speedup']:.2f}x){off}"


def _costs(documents: Sequence[Document]) -> list[str]:
    names = _names(documents)
    rows = []
    for document in documents:
        cells = []
        for name in names:
            each = document["contenders"].get(name) or {}
            if not each.get("peak_bytes"):
                cells.append("–")
                continue
            parts = [f"{each['compile_seconds']:.1f} s"] if each["compile_seconds"] is not None else []
            parts += [f"own {each['own_seconds']:.2f} s"] if each["own_seconds"] is not None else []
            cells.append(", ".join([*parts, f"{each['peak_bytes'] / 2**20:,.0f} MiB"]))
        rows.append([document["name"], *cells])
    text = "Cold compile (own: without Dynamo and AOTAutograd), and peak memory of the contender's process."
    return [text, "", *table(["program", *names], rows)]


def _failures(documents: Sequence[Document]) -> list[str]:
    """Who is missing and why; the same reason for several programs is said once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for document in documents:
        for name, contender in document["contenders"].items():
            if contender["failed"]:
                reasons.setdefault((name, contender["failed"]), []).append(document["name"])
            elif not contender["accuracy"]["within_promise"]:
                why = f"⚠ numbers outside the promise: {_error(contender['accuracy'])}"
                reasons.setdefault((name, why), []).append(document["name"])
    lines = []
    for (name, reason), programs in reasons.items():
        which = "" if len(programs) == len(documents) else f" ({', '.join(programs)})"
        lines.append(f"- {name}{which}: {_escaped(reason)}")
    return ["Not measured, or to be read with care:", "", *lines, ""] if lines else []


def _error(accuracy: Document) -> str:
    worst = accuracy["worst"]
    if worst is None or worst["contender"] is None:
        return (worst and worst["why"]) or "not comparable"
    return f"error {worst['contender']:.1e} against float64, eager's {worst['eager']:.1e} ({worst['name']})"


def _inside(documents: Sequence[Document], peak: Document | None) -> list[str]:
    """The kernels that take longest within each program, and all together that mostly multiply."""
    if not documents or peak is None:
        return []
    balance = peak["flops"] / peak["bytes"]
    rows = []
    for document in documents:
        inside = document["inside"]
        heavy = [row for row in inside["rows"] if row["operations"] > balance * row["moved"]]
        total = {key: math.fsum(row[key] for row in heavy) for key in SUMMED}
        shown = [(row["name"], row) for row in inside["rows"][:LONGEST]]
        if heavy:
            shown.append((f"all of over {balance:.0f} operations a byte", total))
        for place, (name, row) in enumerate(shown):
            rates, share = _rates(row["operations"], row["moved"], row["seconds"], peak)
            rows.append(
                [
                    "" if place else f"{document['name']}: {inside['of']}, {duration(inside['run_seconds'])}",
                    name,
                    f"{row['calls']:g}",
                    f"{row['seconds'] / inside['run_seconds']:.1%}",
                    *rates,
                    share,
                ]
            )
    text = f"The {LONGEST} kernels and ATen calls that take longest within a call. {_peaks(peak)}"
    heads = ["program", "kernel", "calls", "share of time", "Gop/s", "GB/s", "of what the peaks allow"]
    return [text, "", *table(heads, rows), ""]


def _roofline(documents: Sequence[Document], peak: Document | None) -> list[str]:
    names = _names(documents)
    if peak is None:
        return ["The machine's peaks could not be measured."]
    text = f"{_peaks(peak)} A cell: GFLOP/s and GB/s, and in parentheses the share of what these peaks "
    text += "allow: bytes count once each, and more than 100 % is possible where operands stay in the caches."
    if any("of_peak_flops" in each for document in documents for each in document["contenders"].values()):
        text += " Flop/s are held against those of the multiply-add loop, which took turns with the kernels;"
        text += " the second share is that of the fastest turns, which others on the machine disturb least."
    rows = []
    for document in documents:
        intensity = document["flops"] / document["bytes"]
        cells = []
        for name in names:
            contender = document["contenders"].get(name, {})
            cells.append(_roof_cell(document, contender, peak) if contender.get("run") else "–")
        rows.append([document["name"], f"{intensity:.1f}", *cells])
    return [text, "", *table(["kernel", "flop/byte", *names], rows)]


def _peaks(peak: Document) -> str:
    flops = f"{peak['flops'] / 1e9:,.0f} GFLOP/s ({peak['flops_from']})"
    return f"Peaks: {flops}, {peak['bytes'] / 1e9:,.1f} GB/s (copy, read and write)."


def _roof_cell(document: Document, contender: Document, peak: Document) -> str:
    run, flops, moved, shares = contender["run"], document["flops"], document["bytes"], []
    rates, share = _rates(flops, moved, run["median"], peak)
    for seconds, of_peak in (("median", "of_peak_flops"), ("min", "of_peak_flops_fastest")):
        if run[seconds] and contender.get(of_peak):  # the peak of the turns in which it was measured
            at_once = {**peak, "flops": flops / run[seconds] / contender[of_peak]}
            shares.append(_rates(flops, moved, run[seconds], at_once)[1])
    return f"{', '.join(rates)} ({', '.join(shares) or share})"


def _rates(flops: float, moved: float, seconds: float, peak: Document) -> tuple[tuple[str, str], str]:
    """GFLOP/s and GB/s, and the share of what the peaks allow; a clock that has not ticked tells nothing."""
    if not seconds:
        return ("–", "–"), "–"
    share = roofline_share(flops, moved, seconds, peak)
    return (f"{flops / seconds / 1e9:,.1f}", f"{moved / seconds / 1e9:,.1f}"), f"{share:.0%}"


def roofline_share(flops: float, moved: float, seconds: float, peak: Document) -> float:
    """The least time that the peaks allow, over the time taken.

    >>> roofline_share(100, 10, 2.0, {"flops": 100.0, "bytes": 10.0})
    0.5
    """
    return max(flops / peak["flops"], moved / peak["bytes"]) / seconds


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Markdown's lines; numbers to the right.

    >>> table(["a", "b"], [["x", "1|2"]])
    ['| a | b |', '|---|---:|', '| x | 1\\\\|2 |']
    """
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return lines + ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _names(documents: Sequence[Document]) -> list[str]:
    """Contenders that are in any of the documents, in the usual order."""
    present = {name for document in documents for name in document["contenders"]}
    return [name for name in CONTENDERS if name in present]


def _speedup(document: Document, name: str) -> float | None:
    contender = document["contenders"].get(name)
    speedup: float | None = contender["speedup"] if contender else None
    return speedup


def _fastest(document: Document, name: str) -> float | None:
    """The fastest turn's speed over that of eager's."""
    runs = [(document["contenders"].get(each) or {}).get("run") for each in ("eager", name)]
    eager, own = (run["min"] if run else None for run in runs)
    return eager / own if eager and own else None


def _versions(machine: Document) -> str:
    return ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
