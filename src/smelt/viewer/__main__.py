"""``python -m smelt.viewer trace.json -o page.html``: the page of a trace, or of two that are compared."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from smelt.errors import SmeltError
from smelt.viewer import render, render_difference


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
        trace = _read(given.trace)
        page = render(trace) if given.after is None else render_difference(trace, _read(given.after))
        given.output.write_text(page, "utf-8")
    except SmeltError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{given.output}: {len(page.encode()) / 1e6:.2f} MB")
    return 0


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SmeltError("SM0131", f"{path} is no trace of smelt", why=str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
