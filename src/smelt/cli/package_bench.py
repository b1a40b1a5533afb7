"""``smelt bench PACKAGE``: the time of a call, alone or against the model compiled in torch, in turns."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from smelt.cli import jobs, measure
from smelt.cli.bench import duration
from smelt.cli.console import check_folder, err, out, progress
from smelt.cli.fresh_cache import cache_variables, temporary_folder
from smelt.cli.package_run import SEED, asked_for, chosen_sizes, random_arrays
from smelt.errors import SmeltError
from smelt.packages.callers.numpy_model import Model
from smelt.packages.opened import Package, open_package, refusals

SCHEMA = 1
"""Version of the ``--json`` format."""


@dataclass(frozen=True, slots=True)
class Request:
    """``against``: a SPEC, whose model is compiled in torch and takes turns with the package."""

    path: str
    against: str | None = None
    sizes: Sequence[str] = ()
    threads: int | None = None
    seconds: float = 5.0
    options: Mapping[str, Any] | None = None


def bench(request: Request, json_to: str | None) -> None:
    """Measures, shows, writes.

    Raises:
        SmeltError: SM0907 no place to write to, SM1428 sizes that the model does not have, or a SPEC whose
            arguments are not the package's; and the errors of `open_package` and of the library.
    """
    check_folder("--json", json_to)
    package = open_package(request.path)
    if request.against is None:
        with progress(f"{request.path}, {request.seconds:g} s"):
            document = _alone(package, request)
    else:
        if request.sizes:
            raise SmeltError(
                "SM1428", "--size is for a package alone: with --vs the SPEC's arguments have sizes"
            )
        job = {
            "task": "package",
            "path": request.path,
            "spec": request.against,
            "threads": request.threads,
            "seconds": request.seconds,
            "options": dict(request.options or {}),
        }
        said = f"{request.path} and {request.against} in turns, {request.seconds:g} s"
        with progress(said), temporary_folder("bench") as folder:
            document = jobs.run(job, cache_variables(folder))
    document = {"schema": SCHEMA, "package": request.path, "against": request.against, **document}
    if json_to == "-":
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    _show(document)
    if json_to is not None:
        Path(json_to).write_text(json.dumps(document, indent=1) + "\n")
        err().print(f"written: {json_to}", markup=False)


def _alone(package: Package, request: Request) -> dict[str, Any]:
    sizes = chosen_sizes(package, request.sizes, {})
    arrays = random_arrays(asked_for(package), sizes)
    if package.seed is not None:
        arrays[package.seed] = np.array(SEED)
    with refusals():
        model = Model(package.library.parents[2], threads=request.threads or 0)
        model.states.update(
            {each.name: arrays[each.name] for each in model.state_infos if each.name in arrays}
        )
        values = [arrays[each.name] for each in model.inputs]
        results = model.run(values)
        times = measure.race({"package": lambda: model.run(values, None, results)}, request.seconds)
    moved = [*values, *model.states.values(), *results]
    nbytes = sum(each.nbytes for each in moved) + weight_bytes(package)
    return {
        "level": model.level,
        "sizes": sizes,
        "threads": request.threads,
        "bytes": nbytes,
        "contenders": {name: {"run": timing.as_dict()} for name, timing in times.items()},
    }


def weight_bytes(package: Package) -> int:
    """The bytes of the weights that a run reads: none of padding, and none of states' first values."""
    return sum(
        each.nbytes
        for each in package.weights
        if not each.is_padding and not each.name.startswith("initial.")
    )


def compared(job: Mapping[str, Any]) -> dict[str, Any]:
    """The package, the compiled model and eager PyTorch in turns in this process, on the SPEC's arguments."""
    import torch
    from torch.utils._pytree import tree_leaves

    from smelt.cli import spec as specs
    from smelt.packages.loaded import load
    from smelt.tracing import workload

    if job["threads"]:
        torch.set_num_threads(job["threads"])
    torch.manual_seed(workload.SEED)
    program = specs.load(job["spec"])
    setup = workload.Setup(options=tuple(sorted(job["options"].items())))
    package = open_package(job["path"])
    model = load(job["path"])
    values = [
        each.clone() if isinstance(each, torch.Tensor) else each
        for each in tree_leaves((program.args, program.kwargs))
        if isinstance(each, torch.Tensor)
    ]
    if len(values) != len(model.inputs) - (package.seed is not None):
        raise SmeltError(
            "SM1428",
            f"{job['spec']} has {len(values)} tensors as arguments, {package.name} takes {len(model.inputs)}",
            remedy="give the SPEC that the package was made from",
        )

    def packaged() -> Any:
        with torch.no_grad():
            return model(*values)

    eager = workload.runner(program, program.call, setup)
    with specs.in_eager(job["spec"]):
        expected = [each.clone() for each in tree_leaves(eager()) if isinstance(each, torch.Tensor)]
    found = tree_leaves(packaged())
    compiled = workload.runner(program, workload.compiled("smelt", program.call, setup), setup)
    runs: dict[str, Callable[[], Any]] = {"eager": eager, "compiled": compiled, "package": packaged}
    times = measure.race(runs, job["seconds"])
    moved = [*values, *found, *model.buffers()]
    return {
        "level": model.level,
        "sizes": {},
        "threads": torch.get_num_threads(),
        "bytes": sum(each.nbytes for each in moved) + weight_bytes(package),
        "difference": max(map(_difference, expected, found), default=0.0),
        "contenders": {
            name: {"run": timing.as_dict(), "speedup": measure.ratio(times["compiled"], timing)}
            for name, timing in times.items()
        },
    }


def _difference(expected: Any, found: Any) -> float:
    """The largest difference, over the largest value."""
    if expected.shape != found.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    expected, found = expected.double(), found.double()
    largest = max(float(expected.abs().max()), 1e-30)
    return float((expected - found).abs().max()) / largest


def _show(document: Mapping[str, Any]) -> None:
    console = out()
    sizes = ", ".join(f"{name}={extent}" for name, extent in document["sizes"].items())
    facts = [document["level"], f"{document['threads'] or 'all'} thread(s)", *([sizes] if sizes else [])]
    console.print(Text.assemble((document["package"], "bold"), f"  {', '.join(facts)}"))
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    headings = ["", "median", "min", "GB/s", "rounds"]
    if document["against"] is not None:
        headings.append("against compiled")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for name, contender in document["contenders"].items():
        run = contender["run"]
        row = [name, duration(run["median"]), duration(run["min"])]
        row += [f"{document['bytes'] / run['median'] / 1e9:.2f}", str(run["rounds"])]
        if document["against"] is not None:
            row.append(f"{contender['speedup']:.2f}x")
        table.add_row(*row)
    console.print(table)
    console.print(
        f"{document['bytes']:,} bytes of inputs, outputs, states and weights, each counted once", markup=False
    )
    if "difference" in document:
        console.print(f"largest difference to eager over the largest value: {document['difference']:.2e}")
