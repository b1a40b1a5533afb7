"""Compiling and loading: OpenMP on torch's runtime, refusals, races, kill -9, damage, the trampoline."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smelt.cli.fresh_cache import cache_in, temporary_folder
from smelt.errors import CacheError, ToolchainError
from smelt.runtime import trampoline
from smelt.runtime.cache import Cache, open_cache
from smelt.runtime.library import Library, compile_unit, load, load_entry
from smelt.runtime.toolchain import Toolchain

EXPORT = 'extern "C" __attribute__((visibility("default"))) long long '
ANSWER = EXPORT + "answer(char*, long long x) { return x * 2; }\n"

TEAM = (
    'extern "C" { int omp_get_num_threads(); int omp_get_max_threads(); int omp_get_thread_num(); }\n'
    + EXPORT
    + """team(char*, void* out, long long n) {
  int* counts = (int*)out;
  #pragma omp parallel num_threads(omp_get_max_threads())
  { counts[omp_get_thread_num()] = omp_get_num_threads(); }
  long long total = 0;
  #pragma omp parallel for reduction(+: total)
  for (long long i = 0; i < n; i++) total += i;
  return total;
}
"""
)


def slower(folder: Path, toolchain: Toolchain, first: str) -> Toolchain:
    """A compiler that runs a line of shell before it compiles."""
    program = folder / "slower"
    program.write_text(f'#!/bin/sh\n{first}\nexec {toolchain.command[0]} "$@"\n')
    program.chmod(0o755)
    return replace(toolchain, command=(str(program),))


def test_parallel_kernels_run_on_the_runtime_that_torch_loaded(
    compile_text: Callable[[str], Library],
) -> None:
    function = compile_text(TEAM).function("team")
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        counts = torch.zeros(64, dtype=torch.int32)
        assert function(0, counts.data_ptr(), 1000) == 499500
        assert counts[: threads + 1].tolist() == [threads] * threads + [0]
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "/" in line}
    assert len({path for path in paths if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))}) == 1


def test_generated_code_links_no_standard_library(compile_text: Callable[[str], Library]) -> None:
    library = compile_text(TEAM + "// alone\n")
    assert b"libstdc++" not in library.path.read_bytes()


def test_functions_and_addresses(compile_text: Callable[[str], Library]) -> None:
    library = compile_text(ANSWER)
    function = library.function("answer")
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    assert function(0, -(1 << 40)) == -(1 << 41)
    assert library.address("answer") == ctypes.cast(function, ctypes.c_void_p).value
    with pytest.raises(ToolchainError, match=r"SM0206.*nothing"):
        library.function("nothing")


def test_the_second_time_runs_no_compiler(
    tmp_path: Path, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    job = compile_unit(ANSWER, toolchain, cache, "k", {"plan.json": b"{}"})
    job.result()
    assert not job.cached and job.done()
    monkeypatch.setattr(subprocess, "Popen", None)
    warm = compile_unit(ANSWER, toolchain, Cache(tmp_path), "k", {"plan.json": b"{}"})
    assert warm.result().function("answer")(0, 4) == 8 and warm.cached
    entry = Cache(tmp_path).get("k")
    assert entry is not None and entry.read("plan.json") == b"{}"
    assert load_entry(entry).function("answer")(0, 5) == 10
    assert os.listdir(tmp_path / "v1" / "tmp") == []


def test_an_entry_with_another_text_is_not_taken(tmp_path: Path, toolchain: Toolchain) -> None:
    cache = Cache(tmp_path)
    compile_unit(ANSWER, toolchain, cache, "k").result()
    other = compile_unit(ANSWER.replace("* 2", "* 3"), toolchain, cache, "k")
    assert other.result().function("answer")(0, 4) == 12 and not other.cached


def test_compiles_beside_python(tmp_path: Path, toolchain: Toolchain) -> None:
    slow = slower(tmp_path, toolchain, f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done")
    job = compile_unit(ANSWER, slow, Cache(tmp_path / "cache"), "k")
    assert not job.done()
    (tmp_path / "go").touch()
    assert job.result().function("answer")(0, 1) == 2 and job.done()


def test_a_temporary_cache_is_left_when_nothing_compiles_in_it(tmp_path: Path, toolchain: Toolchain) -> None:
    slow = slower(tmp_path, toolchain, "sleep 0.2")
    with temporary_folder("test") as folder, cache_in(folder):
        job = compile_unit(ANSWER, slow, open_cache(), "k")
    assert job.done() and not Path(folder).exists()
    assert job.result().function("answer")(0, 1) == 2


def test_a_cache_that_is_removed_meanwhile_is_made_anew(tmp_path: Path, toolchain: Toolchain) -> None:
    cache = Cache(tmp_path / "cache")
    compile_unit(ANSWER, toolchain, cache, "k").result()
    shutil.rmtree(tmp_path / "cache")
    assert compile_unit(ANSWER, toolchain, cache, "k").result().function("answer")(0, 1) == 2
    assert Cache(tmp_path / "cache").get("k") is not None


def test_refused_source_tells_the_errors_and_keeps_the_source(tmp_path: Path, toolchain: Toolchain) -> None:
    text = "int x = 1;\nint y = undeclared_name;\n"
    job = compile_unit(text, toolchain, Cache(tmp_path), "k")
    for _ in range(2):
        with pytest.raises(ToolchainError, match="undeclared_name") as caught:
            job.result()
    assert caught.value.code == "SM0204"
    assert caught.value.where is not None and Path(caught.value.where).read_text() == text
    assert Cache(tmp_path).get("k") is None and os.listdir(tmp_path / "v1" / "tmp") == []


def test_compiler_that_is_killed(tmp_path: Path, toolchain: Toolchain) -> None:
    killed = slower(tmp_path, toolchain, "kill -9 $$")
    job = compile_unit(ANSWER, killed, Cache(tmp_path / "cache"), "k")
    with pytest.raises(ToolchainError, match=r"SM0204(.|\n)*memory"):
        job.result()


def test_compiler_that_vanished(tmp_path: Path, toolchain: Toolchain) -> None:
    job = compile_unit(ANSWER, replace(toolchain, command=("/no/such/compiler",)), Cache(tmp_path), "k")
    with pytest.raises(ToolchainError, match=r"SM0204.*cannot be started"):
        job.result()


def test_undefined_symbols_are_found_when_loading(tmp_path: Path, toolchain: Toolchain) -> None:
    text = 'extern "C" int no_such_symbol(void);\n' + EXPORT + "f(char*) { return no_such_symbol(); }\n"
    with pytest.raises(ToolchainError, match=r"SM0205(.|\n)*no_such_symbol"):
        compile_unit(text, toolchain, Cache(tmp_path), "k").result()


@pytest.mark.parametrize("name", ["unit-*.so", "unit.cpp", "manifest.json"])
@pytest.mark.parametrize("cut", [True, False])
def test_damaged_entry_is_compiled_again(tmp_path: Path, toolchain: Toolchain, name: str, cut: bool) -> None:
    text = ANSWER + f"// {name} {cut}\n"
    cache = Cache(tmp_path)
    compile_unit(text, toolchain, cache, "k").result()
    (path,) = (tmp_path / "v1" / "entries" / "k").glob(name)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # not in place: the library is mapped into this process
    path.write_bytes(data[: len(data) // 2] if cut else data)
    job = compile_unit(text, toolchain, cache, "k")
    assert job.result().function("answer")(0, 4) == 8 and not job.cached
    again = compile_unit(text, toolchain, cache, "k")
    again.result()
    assert again.cached


def test_library_that_does_not_load_counts_as_missing(tmp_path: Path, toolchain: Toolchain) -> None:
    cache = Cache(tmp_path)
    entry = cache.put("k", {"unit.cpp": ANSWER.encode(), "unit.so": b"not ELF"})
    with pytest.raises(CacheError, match="SM0304"):
        load_entry(entry)
    assert compile_unit(ANSWER, toolchain, cache, "k").result().function("answer")(0, 4) == 8
    with pytest.raises(ToolchainError, match="SM0205"):
        load(tmp_path / "nothing.so")


def test_cache_that_cannot_be_written_still_compiles(tmp_path: Path, toolchain: Toolchain) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        cache = Cache(tmp_path / "file" / "cache")
    assert compile_unit(ANSWER, toolchain, cache, "k").result().function("answer")(0, 4) == 8


COMPILE = """if True:
    import ctypes, sys, time
    from pathlib import Path
    from smelt.runtime.cache import Cache
    from smelt.runtime.library import compile_unit
    from smelt.runtime.toolchain import find
    toolchain = find()
    print("ready", flush=True)
    sys.stdin.readline()
    job = compile_unit(Path(sys.argv[2]).read_text(), toolchain, Cache(sys.argv[1]), "k")
    print(job.result().function("answer")(0, 21), job.cached, flush=True)
"""


def start(root: Path, source: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMPILE, str(root), str(source)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()


def test_eight_processes_compile_one_key_and_one_of_them_works(tmp_path: Path, toolchain: Toolchain) -> None:
    source = tmp_path / "unit.cpp"
    source.write_text(ANSWER)
    processes = [start(tmp_path / "cache", source) for _ in range(8)]
    for process in processes:
        go(process)
    said = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [words[0] for words in said] == ["42"] * 8
    assert [words[1] for words in said].count("False") == 1
    assert os.listdir(tmp_path / "cache" / "v1" / "tmp") == []


def test_kill_during_compile_leaves_nothing_wrong(
    tmp_path: Path, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "unit.cpp"
    source.write_text(ANSWER)
    wait = f'case "$*" in *unit.cpp*) touch {tmp_path}/began; sleep 30;; esac'
    root = tmp_path / "cache"
    monkeypatch.setenv("CXX", slower(tmp_path, toolchain, wait).command[0])
    process = start(root, source)
    go(process)
    deadline = time.monotonic() + 60
    while not (tmp_path / "began").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert Cache(root).get("k") is None
    assert os.listdir(root / "v1" / "tmp") == []
    job = compile_unit(ANSWER, toolchain, Cache(root), "k")  # the dead holder's lock is no obstacle
    assert job.result().function("answer")(0, 4) == 8


FORKED = """if True:
    import os, subprocess, sys, threading, time
    from smelt.runtime.cache import Cache
    from smelt.runtime.library import compile_unit
    from smelt.runtime.toolchain import find
    toolchain, pipes_are_open = find(), threading.Event()
    handles = subprocess.Popen._get_handles
    def slow_start(*args):
        made = handles(*args)
        pipes_are_open.set()
        time.sleep(0.3)
        return made
    subprocess.Popen._get_handles = slow_start
    job = compile_unit(sys.argv[2], toolchain, Cache(sys.argv[1]), "k")
    if sys.argv[3] == "while starting":
        pipes_are_open.wait()
    child = os.fork()
    value = job.result().function("answer")(0, 4)
    if child == 0:
        os._exit(value)
    print(value, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("when", ["at once", "while starting"])
def test_a_job_started_before_a_fork_finishes_in_the_child(
    tmp_path: Path, toolchain: Toolchain, when: str
) -> None:
    """Also where the compiler's pipes are open just then: the child must not hold their writing ends."""
    words = [sys.executable, "-c", FORKED, str(tmp_path), ANSWER, when]
    out = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert out.stdout.split() == ["8", "8"], out.stderr


def test_trampoline_passes_integers_and_status(compile_text: Callable[[str], Library]) -> None:
    names = [f"x{i}" for i in range(20)]
    body = " + ".join(f"{name} * {i + 1}" for i, name in enumerate(names))
    text = EXPORT + f"weigh({', '.join('long long ' + name for name in names)}) {{ return {body}; }}\n"
    weigh = trampoline.fast_callable(compile_text(text), "weigh", 20)
    assert weigh is not None
    values = [(-1) ** i * (1 << i) for i in range(20)]
    assert weigh(*values) == sum(value * (i + 1) for i, value in enumerate(values))
    assert weigh(*[-1] * 20) == -210
    with pytest.raises(TypeError):
        weigh("text", *values[1:])
    with pytest.raises(OverflowError):
        weigh(1 << 64, *values[1:])


def test_trampoline_hands_over_very_many_as_a_table(compile_text: Callable[[str], Library]) -> None:
    text = EXPORT + "weigh(const long long* x) { return x[0] + 3 * x[256] - x[1999]; }\n"
    weigh = trampoline.fast_callable(compile_text(text), "weigh", 2000)
    assert weigh is not None
    values = [(-1) ** i * (i << 40) for i in range(2000)]
    assert weigh(*values) == 3 * values[256] - values[1999]
    with pytest.raises(OverflowError):
        weigh(*values[1:], 1 << 64)


def test_trampoline_gives_up_the_gil(compile_text: Callable[[str], Library]) -> None:
    text = EXPORT + "wait(char*, void* flag) { while (!*(volatile long long*)flag) {} return 1; }\n"
    wait = trampoline.fast_callable(compile_text(text), "wait", 2)
    assert wait is not None
    flag = torch.zeros(1, dtype=torch.int64)
    timer = threading.Timer(0.05, lambda: flag.fill_(1))
    timer.start()
    assert wait(0, flag.data_ptr()) == 1
    timer.join()


def test_executor_works_without_the_trampoline(
    compile_text: Callable[[str], Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    from smelt.runtime.executor import build
    from smelt.runtime.plan import NativeStep, Plan

    monkeypatch.setattr(trampoline, "_maker", lambda: None)
    text = EXPORT + "half(char*, void* x, long long n) { ((double*)x)[0] /= n; return 0; }\n"
    call = build(Plan(("x",), (), (), 0, (), (NativeStep("half", ("x",), (2,)),), ()), compile_text(text), {})
    x = torch.tensor([3.0], dtype=torch.float64)
    call([x])
    assert x.item() == 1.5


def test_executor_hands_over_a_table_without_the_trampoline(
    compile_text: Callable[[str], Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ctypes takes 1024 arguments at most."""
    from smelt.runtime.executor import build
    from smelt.runtime.plan import NativeStep, Plan

    monkeypatch.setattr(trampoline, "_maker", lambda: None)
    text = EXPORT + "half(long long* x) { ((double*)x[1100])[0] /= x[1101]; return 0; }\n"
    names = tuple(f"x{number}" for number in range(1100))
    call = build(Plan(names, (), (), 0, (), (NativeStep("half", names, (2,)),), ()), compile_text(text), {})
    xs = [torch.tensor([3.0], dtype=torch.float64) for _ in names]
    call(list(xs))
    assert xs[-1].item() == 1.5 and xs[0].item() == 3.0


def test_trampoline_is_absent_without_a_compiler(tmp_path: Path) -> None:
    code = """if True:
        from smelt.runtime import trampoline
        print(trampoline.start(), trampoline._maker())
    """
    env = {**os.environ, "PATH": "", "CXX": "", "SMELT_CACHE_DIR": str(tmp_path)}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert out.stdout.split() == ["None", "None"], out.stderr
