"""Kernels by hand: a product with a relu, and a softmax: smelt's own schedule, one by hand, a searched one.

    python benchmarks/by_hand.py --seconds 10 --tvm OTHER/bin/python

``--tvm``: a Python that has apache-tvm; the same programs run there, for the same processor: TVM's default
schedule, the same schedule by hand, MetaSchedule for as many seconds. Times are the fastest calls of several
rounds, in turns within each process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

N = 512
ROWS, COLUMNS = 8, 64
SOFTMAX = (1024, 512)
ROUNDS = 7


def fastest(calls: dict[str, Callable[[], Any]], seconds: float = 0.15) -> dict[str, float]:
    """Seconds of each call: the fastest of several rounds, taken in turns."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                start = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def product(te: Any) -> list[Any]:
    """``relu(A @ B)``."""
    a, b = (te.placeholder((N, N), name=name, dtype="float32") for name in "AB")
    k = te.reduce_axis((0, N), name="k")
    c = te.compute((N, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    return [a, b, te.compute((N, N), lambda i, j: te.max(c[i, j], 0.0), name="relu")]


def softmax(te: Any, exp: Callable[..., Any]) -> list[Any]:
    """A softmax of rows, in four stages."""
    rows, columns = SOFTMAX
    x = te.placeholder(SOFTMAX, name="X", dtype="float32")
    k, m = (te.reduce_axis((0, columns), name=name) for name in "km")
    top = te.compute((rows,), lambda i: te.max(x[i, k], axis=k), name="top")
    power = te.compute(SOFTMAX, lambda i, j: exp(x[i, j] - top[i]), name="power")
    total = te.compute((rows,), lambda i: te.sum(power[i, m], axis=m), name="total")
    return [x, te.compute(SOFTMAX, lambda i, j: power[i, j] / total[i], name="share")]


def product_by_hand(sch: Any) -> Any:
    """Register tiles of rows by vectors; blocks of rows in parallel."""
    block, relu = sch.get_sblock("matmul"), sch.get_sblock("relu")
    i, j, k = sch.get_loops(block)
    i_0, i_1 = sch.split(i, factors=[None, ROWS])
    j_0, j_1 = sch.split(j, factors=[None, COLUMNS])
    sch.reorder(i_0, j_0, k, i_1, j_1)
    sch.parallel(i_0)
    sch.vectorize(j_1)
    sch.unroll(i_1)
    sch.decompose_reduction(block, k)
    sch.reverse_compute_at(relu, j_0)
    sch.vectorize(sch.get_loops(relu)[-1])
    return sch


def softmax_by_hand(sch: Any) -> Any:
    """All four stages for one row after another, rows in parallel."""
    rows = sch.get_loops(sch.get_sblock("share"))[0]
    for name in ("total", "power", "top"):
        sch.compute_at(sch.get_sblock(name), rows)
    sch.parallel(rows)
    for name in ("power", "share"):
        sch.vectorize(sch.get_loops(sch.get_sblock(name))[-1])
    return sch


def ours(seconds: float) -> dict[str, dict[str, float]]:
    """The two programs with smelt, and in eager."""
    import torch

    import smelt
    from smelt import te, tir

    found = {}
    a, b = torch.randn(N, N), torch.randn(N, N)
    x = torch.randn(SOFTMAX)
    cases = {
        "product": (product(te), product_by_hand, (a, b), lambda: torch.relu(a @ b)),
        "softmax": (softmax(te, te.exp), softmax_by_hand, (x,), lambda: torch.softmax(x, -1)),
    }
    for name, (tensors, by_hand, inputs, eager) in cases.items():
        func = te.create_prim_func(tensors)
        wanted = eager()
        tuned = te.tune(func, seconds=seconds)
        calls: dict[str, Callable[[], Any]] = {"eager": eager}
        for kind, thing in (
            ("smelt", func),
            ("smelt by hand", by_hand(tir.Schedule(func))),
            ("smelt tuned", tuned.best.sch),
        ):
            out = torch.full_like(wanted, float("nan"))
            run = smelt.build(thing)
            run(*inputs, out)
            assert torch.allclose(out, wanted, rtol=1e-3, atol=1e-3), kind
            calls[kind] = lambda run=run, out=out, inputs=inputs: run(*inputs, out)  # type: ignore[misc]
        found[name] = fastest(calls)
        print(f"{name}: {tuned.best.line}", file=sys.stderr)
    return found


def theirs(seconds: float) -> dict[str, dict[str, float]]:
    """The same with TVM; what it refuses is left out, with its reason on stderr."""
    import numpy as np
    import tvm
    from tvm import s_tir, te

    target = tvm.target.Target(
        {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2}
    )
    found: dict[str, dict[str, float]] = {}
    rng = np.random.default_rng(0)
    for name, tensors, by_hand in (
        ("product", product(te), product_by_hand),
        ("softmax", softmax(te, te.exp), softmax_by_hand),
    ):
        func = te.create_prim_func(tensors)
        shapes = [[int(size) for size in tensor.shape] for tensor in tensors]
        args = [tvm.runtime.tensor(rng.random(shape, dtype=np.float32)) for shape in shapes]
        calls: dict[str, Callable[[], Any]] = {}

        def add(kind: str, make: Callable[[], Any], calls: Any = calls, args: Any = args) -> None:
            try:
                run = tvm.compile(make(), target=target)["main"]
                run(*args)
                calls[kind] = lambda: run(*args)
            except Exception as error:
                print(f"{kind}: {str(error).strip().splitlines()[-1][:200]}", file=sys.stderr)

        def tuned(func: Any = func) -> Any:
            from tvm.s_tir import meta_schedule as ms

            mod = tvm.IRModule({"main": func})
            begin = time.perf_counter()
            folder = f"/tmp/ms-{time.time_ns()}"
            database, trials = None, 0
            while time.perf_counter() - begin < seconds:
                trials += 16
                database = ms.tune_tir(
                    mod=mod, target=target, max_trials_global=trials, num_trials_per_iter=16, work_dir=folder
                )
            return ms.tir_integration.compile_tir(database, mod, target).mod

        add("TVM default", lambda func=func: func)
        add("TVM by hand", lambda func=func, by_hand=by_hand: by_hand(s_tir.Schedule(func)).mod)
        if seconds:
            add("TVM MetaSchedule", tuned)
        found[name] = fastest(calls) if calls else {}
    return found


def told(python: str, seconds: float) -> dict[str, dict[str, float]]:
    """What the other Python measured; without the search where that takes its process down."""
    command = [python, __file__, "--theirs", "--seconds", str(seconds)]
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    if other.returncode and seconds:
        print(f"TVM's search ended its process: signal {-other.returncode}", file=sys.stderr)
        return told(python, 0.0)
    other.check_returncode()
    found: dict[str, dict[str, float]] = json.loads(other.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each search")
    parser.add_argument("--tvm", help="a Python that has apache-tvm")
    parser.add_argument("--theirs", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.theirs:
        print(json.dumps(theirs(options.seconds)))
        return
    found = ours(options.seconds)
    if options.tvm:
        for name, times in told(options.tvm, options.seconds).items():
            found[name] |= times
    for name, times in found.items():
        print(f"{name}:")
        for kind, taken in times.items():
            print(f"  {kind:18} {taken * 1e3:9.3f} ms  {times['eager'] / taken:6.2f} x eager")


if __name__ == "__main__":
    main()
