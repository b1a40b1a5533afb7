"""``smelt inspect`` and ``smelt verify``: what a package is, and whether it is as it was made."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from smelt.cli.console import err, out
from smelt.cli.package import size, table
from smelt.packages import manifest
from smelt.packages.callers.interface import Tensor
from smelt.packages.opened import Package, open_package

FEW_KERNELS = 12


def inspect(path: str, *, as_json: bool, all_kernels: bool) -> int:
    """Shows what a package is; nothing of it is run. The exit code is 1 if files differ from the manifest.

    Raises:
        SmeltError: as `open_package`.
    """
    package = open_package(path)
    wrong = manifest.differences(package.manifest)
    if as_json:
        sys.stdout.write(json.dumps(_document(package, wrong), indent=1) + "\n")
    else:
        _show(package, wrong, all_kernels)
    return 1 if wrong else 0


def _document(package: Package, wrong: list[str]) -> dict[str, Any]:
    return {
        **package.model,
        "libraries": {
            target: {file.name: file.stat().st_size for file in files}
            for target, files in package.libraries.items()
        },
        "weights": [
            {"name": each.name, "dtype": each.dtype, "shape": each.shape, "bytes": each.nbytes}
            for each in package.weights
            if not each.is_padding
        ],
        "signed": (package.folder / manifest.SIGNATURE).is_file(),
        "files": len(package.manifest.files),
        "differences": wrong,
    }


def _show(package: Package, wrong: list[str], all_kernels: bool) -> None:
    console, interface, model = out(), package.interface, package.model
    made_with = ", ".join(f"{name} {version}" for name, version in model.get("made_with", {}).items())
    console.print(Text.assemble((interface.name, "bold"), f"  made with {made_with}" if made_with else ""))
    states = {each.name for each in interface.states}
    for title, tensors in (
        ("inputs", interface.inputs),
        ("states, written in place", interface.states),
        ("outputs", interface.outputs),
    ):
        if tensors:
            console.print(_tensors(title, tensors, states))
    if interface.sizes:
        console.print(_sizes(package))
    if model.get("fixed"):
        console.print(_rows("fixed arguments", model["fixed"].items()))
    console.print(table(package))
    console.print(_kernels(package, all_kernels))
    signed = "signed: smelt verify --key PUB checks by whom" if _is_signed(package) else "not signed"
    if wrong:
        console.print(Text(f"{len(wrong)} difference(s) to the manifest:", style="bold red"))
        for each in wrong:
            console.print(Text(f"  {each}", style="red"))
    else:
        console.print(
            Text(f"{len(package.manifest.files)} files as the manifest says; {signed}", style="green")
        )


def _is_signed(package: Package) -> bool:
    return (package.folder / manifest.SIGNATURE).is_file()


def _tensors(title: str, tensors: Iterable[Tensor], states: set[str]) -> Table:
    def row(each: Tensor) -> str:
        layout = f", in memory as {list(each.order)}" if each.order else ""
        first = ", first value in the package" if each.initial else ", from the caller"
        return f"{each.dtype} {each.shape_text}{layout}{first if each.name in states else ''}"

    return _rows(title, [(each.name, row(each)) for each in tensors])


def _sizes(package: Package) -> Table:
    rows = [
        (each.name, f"{each.least} … {each.most}" if each.most < 2**62 else f"{each.least} and more")
        for each in package.interface.sizes
    ]
    return _rows("sizes", [*rows, *(("where", text) for text in package.model.get("conditions", ()))])


def _kernels(package: Package, whole: bool) -> Table:
    """The kernels of the first level with the user's lines that they compute."""
    listed = package.model.get("kernels", {})
    level = next(iter(listed), "")
    rows = [(each["kernel"], "\n".join(each["computes"])) for each in listed.get(level, ())]
    shown = rows if whole else rows[:FEW_KERNELS]
    left = len(rows) - len(shown)
    more = [("…", f"{left} more: --kernels shows them all")] if left else []
    return _rows(f"kernels of {level}" if level else "kernels", [*shown, *more])


def _rows(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 2))
    for name, text in rows:
        grid.add_row(Text(name), Text(text))
    return grid


def verify(path: str, key: str | None) -> None:
    """Checks every file of a package, and with a public key its signature.

    Raises:
        SmeltError: SM1420 it is no package, SM1425 files are not as its manifest says, SM1426 the signature
            is missing or wrong.
    """
    package = open_package(path, key)
    if key is None:
        manifest.verify(package.folder)
    count = len(package.manifest.files)
    nbytes = sum(each for _, each in package.manifest.files.values())
    out().print(f"{package.name}: {count} files, {size(nbytes)}, as the manifest says", markup=False)
    if key is not None:
        out().print(f"signed with the key of {key}", markup=False)
    elif _is_signed(package):
        err().print("there is a signature; --key PUB checks it", markup=False)
    else:
        err().print("no signature: whoever changed a file could change the manifest too", markup=False)
