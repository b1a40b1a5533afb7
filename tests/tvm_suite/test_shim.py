"""The stand-in for TVM: programs of our own run through it, in a process of its own, so that no other test
gets a wrong ``tvm``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SHIM = Path(__file__).parent / "shim"

pytestmark = pytest.mark.long

HEAD = """
import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir.schedule.testing import assert_structural_equal_ignore_global_symbol as check
from tvm.s_tir.schedule.testing import verify_trace_roundtrip
from tvm.script import ir as I
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def doubled(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, (24, 10))
    B = T.match_buffer(b, (24, 10))
    for i, j in T.grid(24, 10):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
"""


def run(program: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """What a program prints that imports the stand-in as ``tvm``."""
    file = tmp_path / "program.py"  # decorators read the source of what they decorate
    file.write_text(HEAD + textwrap.dedent(program))
    paths = [str(SHIM), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    return subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, env=environment, timeout=300, check=False
    )


def passes(program: str, tmp_path: Path) -> None:
    done = run(program + "\nprint('done')\n", tmp_path)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr


def test_a_schedule_is_compared_with_a_script(tmp_path):
    passes(
        """
        @T.prim_func(s_tir=True)
        def split(a: T.handle, b: T.handle) -> None:
            A = T.match_buffer(a, (24, 10))
            B = T.match_buffer(b, (24, 10))
            for i0, i1, j in T.grid(6, 4, 10):
                with T.sblock("another name"):
                    vi = T.axis.S(24, i0 * 4 + i1)
                    vj = T.axis.S(10, j)
                    B[vi, vj] = A[vi, vj] * 2.0

        sch = tvm.s_tir.Schedule(doubled, debug_mask="all")
        i, j = sch.get_loops(sch.get_sblock("B"))
        sch.split(i, factors=[None, 4])
        check(sch.mod["main"], split)
        verify_trace_roundtrip(sch=sch, mod=doubled)
        with pytest.raises(ValueError):
            check(sch.mod["main"], doubled)
        with pytest.raises(ValueError):
            tvm.ir.assert_structural_equal(sch.mod["main"], split)  # they are called otherwise
        with pytest.raises(tvm.s_tir.ScheduleError):
            sch.parallel(i)
        """,
        tmp_path,
    )


def test_another_normal_form_is_run_and_another_value_is_found(tmp_path):
    passes(
        """
        def written(index, factor):
            return tvm.script.from_source(f'''
        from tvm.script import tirx as T
        @T.prim_func
        def main(A: T.Buffer((24,), "float32"), B: T.Buffer((24,), "float32")):
            for i in range(24):
                with T.sblock("B"):
                    vi = T.axis.spatial(24, i)
                    B[vi] = A[{index}] * T.float32({factor})
        ''')

        plain, same = written("vi", 2), written("T.max(vi, vi - 3)", 2)
        assert not tvm.ir.structural_equal(plain, written("23 - vi", 2))
        assert not tvm.ir.structural_equal(plain, written("vi", 3))
        tvm.ir.assert_structural_equal(plain, same)
        """,
        tmp_path,
    )


def test_functions_are_compiled_and_called(tmp_path):
    passes(
        """
        n = te.var("n")
        A = te.placeholder((n,), name="A")
        B = te.compute((n,), lambda i: tirx.if_then_else(A[i] > 0.0, A[i], tirx.const(0.0, "float32")))
        func = tvm.compile(te.create_prim_func([A, B]), target="llvm")
        given = np.array([-1.0, 2.0, -3.0, 4.0, 5.0], dtype=A.dtype.dtype)
        out = tvm.runtime.tensor(np.zeros(5, dtype="float32"))
        func(tvm.runtime.tensor(given), out)
        tvm.testing.assert_allclose(out.numpy(), np.maximum(given, 0))
        """,
        tmp_path,
    )


def test_errors_are_of_the_kinds_that_tvm_has(tmp_path):
    passes(
        """
        x = te.placeholder((1, 8), dtype="int16", name="x")
        with pytest.raises(TypeError, match="only supports floating-point inputs"):
            tvm.topi.acos(x)
        k = te.reduce_axis((0, 8), "k")
        with pytest.raises(RuntimeError):
            te.compute((1,), lambda i: te.sum(x[i, k], axis=k) + 1)
        with pytest.raises(ValueError), te.tag_scope("a"), te.tag_scope("b"):
            pass
        """,
        tmp_path,
    )


@pytest.mark.parametrize("inside", [False, True], ids=["at the top", "in a test"])
def test_a_script_that_is_not_read_fails_where_it_is_used(tmp_path, inside):
    program = """
        @T.prim_func
        def wrong(A: T.Buffer((4,), "float32")):
            A[0] = no_such_name

        print("read")
        tvm.s_tir.Schedule(wrong)
        """
    if inside:
        program = "def test():\n" + textwrap.indent(textwrap.dedent(program), "    ") + "\ntest()\n"
    done = run(program, tmp_path)
    assert done.returncode == 1 and "no_such_name" in done.stderr
    assert done.stdout == ("" if inside else "read\n")


def test_the_stand_in_stays_outside_of_this_process():
    there = sys.modules.get("tvm")
    assert there is None or not str(there.__file__).startswith(str(SHIM))
