"""``python -m smelt.viewer trace.json -o page.html``: the page of a trace, or of two that are compared."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from smelt.errors import SmeltError
from smelt.viewer import render, render_difference
from smelt.viewer.checks import read


def main(arguments: list[str] | None = None) -> int:
    """Writes the page; an error is one line and 2."""
    parser = argparse.ArgumentParser(prog="python -m smelt.viewer", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument(
        "after", type=Path, nargs="?", help="a second trace, which is compared with the first"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("page.html"))
    given = parser.parse_args(arguments)
    try:
        trace = read(given.trace)
        page = render(trace) if given.after is None else render_difference(trace, read(given.after))
        given.output.write_text(page, "utf-8")
    except SmeltError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{given.output}: {len(page.encode()) / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
