"""The README's table and picture, from docs/figures/inference.json: `make figures`.

`--from bench-results/results.json` first makes that file anew from a run of `make bench`: inference with two
threads, all programs in which each contender has succeeded.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import tables
from plot import ceiling

Document = dict[str, Any]

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "figures"
DATA = FOLDER / "inference.json"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
THREADS = 2
LABELS = {
    "eager": "eager",
    "smelt": "smelt",
    "smelt-max": 'smelt, `mode="max"`',
    "inductor-freezing": "Inductor",
    "openvino": "OpenVINO",
    "onnxruntime": "ONNX Runtime",
}
"""The contenders of the table; Inductor in its faster mode."""
BARS = ("smelt-max", "smelt", "inductor-freezing", "openvino", "onnxruntime")
LIGHT = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "faint": "#d8dee4",
    "smelt-max": "#c2410c",
    "smelt": "#f59e5b",
    "inductor-freezing": "#6b7280",
    "openvino": "#4f86c6",
    "onnxruntime": "#9cc3e6",
}
DARK = {
    **LIGHT,
    "paper": "#0d1117",
    "ink": "#e6edf3",
    "faint": "#30363d",
    "smelt-max": "#fb7a3c",
    "smelt": "#b4552a",
    "inductor-freezing": "#8b949e",
    "onnxruntime": "#2d5f94",
}
THEMES = {"light": LIGHT, "dark": DARK}
BAR, GAP, LEFT, TOP, HEIGHT, BELOW = 12, 20, 40, 62, 200, 34


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pictures and the README's table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="results", type=Path, help="results.json of a run of `make bench`")
    options = parser.parse_args(arguments)
    if options.results:
        found = from_results(json.loads(options.results.read_text()))
        DATA.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    document = json.loads(DATA.read_text())
    for theme in THEMES:
        (FOLDER / f"inference-{theme}.svg").write_text(svg(document, theme))
    readme = ROOT / "README.md"
    readme.write_text(put(readme.read_text(), markdown(document)))
    return 0


def from_results(results: Document) -> Document:
    """The figures of a run.

    Raises:
        ValueError: nobody, or no program, that the table needs was measured.
    """
    measured = [
        each for each in results["programs"] if (each["mode"], each["threads"]) == ("inference", THREADS)
    ]
    times = {}
    for each in measured:
        runs = {name: (each["contenders"].get(name) or {}).get("run") for name in LABELS}
        if all(runs.values()):
            times[each["name"]] = {name: _rounded(run["median"] * 1e3) for name, run in runs.items() if run}
    if not times:
        raise ValueError(f"no program has inference with {THREADS} threads of all: {', '.join(LABELS)}")
    means = tables.means([each for each in measured if each["name"] in times])
    machine = results["machine"]
    return {
        "machine": f"{machine['cpus']} cores of {machine['processor']} ({machine['isa']})",
        "versions": f"torch {machine['versions']['torch']}",
        "date": results["date"].split()[0],
        "threads": THREADS,
        "command": results["command"],
        "note": "",
        "milliseconds": times,
        "means": {name: round(means[name][0], 2) for name in BARS},
    }


def markdown(document: Document) -> str:
    """The table: milliseconds of a call, the fastest bold, and the means over eager; where they come from."""
    rows = []
    for program, times in document["milliseconds"].items():
        least = min(times.values())
        rows.append([program, *(_bold(f"{times[name]:g}", times[name] == least) for name in LABELS)])
    most = max(document["means"].values())
    means = {name: _bold(f"{mean:.2f}x", mean == most) for name, mean in document["means"].items()}
    rows.append(["geometric mean over eager", "1", *(means[name] for name in LABELS if name != "eager")])
    table = tables.table(["ms a call", *LABELS.values()], rows)
    source = (
        f"{document['machine']}, {document['versions']}, {document['threads']} threads, {document['date']}."
    )
    lines = [*table, "", f"{source} Medians of calls in turns; means of ratios between neighbouring calls."]
    return "\n".join([*lines, document["note"]] if document["note"] else lines) + "\n"


def put(text: str, table: str) -> str:
    """``text`` with ``table`` between the markers.

    >>> print(put(f"a\\n{BEGIN}\\nold\\n{END}\\nb", "new\\n"))
    a
    <!-- measured: begin -->
    new
    <!-- measured: end -->
    b
    """
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n{table}{END}", text)


def svg(document: Document, theme: str) -> str:
    """Bars of speed over eager, a group for each program and one for the means."""
    colors = THEMES[theme]
    groups = [
        (program, {name: times["eager"] / times[name] for name in BARS})
        for program, times in document["milliseconds"].items()
    ]
    groups.append(("geo. mean", document["means"]))
    top = ceiling([value for _, values in groups for value in values.values()])
    width = LEFT + len(groups) * (BAR * len(BARS) + GAP) + 10
    height = TOP + HEIGHT + BELOW
    heading = f"Speed over eager PyTorch: inference, {document['threads']} threads, float32"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif" '
        f'font-size="11" fill="{colors["ink"]}" role="img">',
        f"<title>{escape(heading)}</title>",
        f'<rect width="100%" height="100%" rx="6" fill="{colors["paper"]}"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="600">{escape(heading)}</text>',
    ]
    x = LEFT
    for name in BARS:
        label = LABELS[name].replace("`", "")
        parts.append(f'<rect x="{x}" y="35" width="10" height="10" rx="2" fill="{colors[name]}"/>')
        parts.append(f'<text x="{x + 15}" y="44">{escape(label)}</text>')
        x += 40 + 7 * len(label)
    for tick in range(int(top) + 1):
        y = TOP + HEIGHT * (1 - tick / top)
        stroke = colors["ink" if tick == 1 else "faint"]
        dash = ' stroke-dasharray="4 3"' if tick == 1 else ""
        parts.append(
            f'<line x1="{LEFT}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="{stroke}"{dash}/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick}x</text>')
    for place, (program, values) in enumerate(groups):
        left = LEFT + GAP / 2 + place * (BAR * len(BARS) + GAP)
        parts += _group(left, program, values, top, colors)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _group(
    left: float, program: str, values: dict[str, float], top: float, colors: dict[str, str]
) -> list[str]:
    parts = []
    for place, name in enumerate(BARS):
        x, tall = left + BAR * place, HEIGHT * values[name] / top
        tip = f"{program}, {LABELS[name]}: {values[name]:.2f}x"
        box = f'x="{x:.1f}" y="{TOP + HEIGHT - tall:.1f}" width="{BAR - 1}" height="{tall:.1f}"'
        parts.append(f'<rect {box} rx="1.5" fill="{colors[name]}"><title>{escape(tip)}</title></rect>')
        if name == "smelt-max":
            at = f'x="{x + BAR / 2:.1f}" y="{TOP + HEIGHT - tall - 4:.1f}" text-anchor="middle"'
            parts.append(f'<text {at} font-size="10" font-weight="600">{values[name]:.1f}</text>')
    middle, y = left + BAR * len(BARS) / 2, TOP + HEIGHT + 18
    parts.append(f'<text x="{middle:.1f}" y="{y}" text-anchor="middle">{escape(program)}</text>')
    return parts


def _bold(text: str, wanted: bool) -> str:
    return f"**{text}**" if wanted else text


def _rounded(value: float) -> float:
    """Three digits.

    >>> _rounded(123.456), _rounded(3.4567)
    (123.0, 3.46)
    """
    return float(f"{value:.3g}")


if __name__ == "__main__":
    sys.exit(main())
