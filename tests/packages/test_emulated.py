"""A package for several processors and systems: run natively and in emulators, with the same numbers."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smelt.packages.api import package
from smelt.packages.targets import TARGETS, native
from tests.packages.images import MachO, Portable
from tests.support.agreement import assert_close, draw

CALLER = Path(__file__).with_name("caller.c")
LEVELS = ("x86-64", "x86-64-v3", "x86-64-v4")
ROWS = 21


def _missing(*programs: str) -> pytest.MarkDecorator:
    missing = [each for each in programs if shutil.which(each) is None]
    if importlib.util.find_spec("ziglang") is None:
        missing.append("ziglang (PyPI)")
    x86 = native().machine == "x86_64" and native().system == "linux"
    reason = f"not here: {', '.join(missing)}" if missing else "needs Linux on x86"
    return pytest.mark.skipif(bool(missing) or not x86, reason=reason)


class Toy(nn.Module):
    """Products, a convolution, a norm, attention, an index: most kinds of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.heads = nn.Linear(96, 200), nn.Linear(200, 64), nn.Linear(64, 192)
        self.norm, self.convolution = nn.LayerNorm(64), nn.Conv2d(3, 16, 3, padding=1)

    def forward(self, x: Tensor, image: Tensor) -> dict[str, Tensor]:
        y = self.norm(self.down(F.gelu(self.up(x))))
        q, k, v = self.heads(y).view(1, -1, 3, 4, 16).permute(2, 0, 3, 1, 4)
        y = y + F.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3).reshape(-1, 64)
        z = F.relu(self.convolution(image)).mean((2, 3)).softmax(-1)
        return {"y": y, "z": z, "top": z.argmax(-1)}


@dataclass
class Packaged:
    """The package, its C caller for some targets, and its inputs in a file."""

    path: Path
    model: Toy
    inputs: tuple[Tensor, Tensor]
    programs: dict[str, Path]

    def run(
        self, target: str, level: str = "", emulator: Sequence[str] = ()
    ) -> tuple[int, str, list[np.ndarray]]:
        """Exit code and words of the caller, and the outputs."""
        out = self.path / "outputs.bin"
        out.unlink(missing_ok=True)
        files = [self.path / "weights.safetensors", self.path / "inputs.bin", out]
        command = [*emulator, self.programs[target], *files, level]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stdout.strip(), [] if done.returncode else self.read()

    def read(self) -> list[np.ndarray]:
        """The outputs in the file."""
        content, at, outputs = (self.path / "outputs.bin").read_bytes(), 0, []
        for count, dtype in ((ROWS * 64, np.float32), (2 * 16, np.float32), (2, np.int64)):
            outputs.append(np.frombuffer(content, dtype, count, at))
            at += outputs[-1].nbytes
        assert at == len(content)
        return outputs

    def check(self, outputs: list[np.ndarray]) -> None:
        with torch.no_grad():
            eager = list(self.model(*self.inputs).values())
            exact = list(self.model.double()(*(each.double() for each in self.inputs)).values())
            self.model.float()
        for got, ours, right in zip(outputs[:2], eager, exact):
            assert_close(torch.tensor(got).view(ours.shape), ours, right)
        assert outputs[2].tolist() == exact[2].tolist()


def packaged(folder: Path, targets: Sequence[str], levels: Sequence[str] | None = LEVELS) -> Packaged:
    torch.manual_seed(0)
    model, inputs = Toy().eval(), (draw(ROWS, 96), draw(2, 3, 16, 16))
    sizes = ({0: torch.export.Dim("rows", min=2, max=512)}, {})
    example = (draw(40, 96), inputs[1])
    path = package(model, example, folder / "toy.smelt", dynamic_shapes=sizes, target=targets, levels=levels)
    (path / "inputs.bin").write_bytes(b"".join(each.numpy().tobytes() for each in inputs))
    programs = {}
    for name in targets:
        target, made = TARGETS[name], path / f"caller-{name}"
        library = path / "lib" / name / target.libraries("toy")[1]
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", target.zig, "-O1", "-s", "-o", made]
        static = {"linux": ["-static"], "wasi": ["-DTHREADS=1"]}.get(target.system, [])
        subprocess.run([*zig, *static, f"-I{path / 'include'}", CALLER, library], check=True)
        programs[name] = made if made.exists() else made.with_suffix(".exe")
    return Packaged(path, model, inputs, programs)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Packaged:
    return packaged(tmp_path_factory.mktemp("package"), ["x86_64-linux-musl", "aarch64-linux-musl"])


@_missing("qemu-aarch64", "qemu-x86_64")
class TestEmulated:
    @pytest.mark.parametrize("level", ["", *LEVELS])
    def test_musl_runs_here_at_each_level(self, toy: Packaged, level: str) -> None:
        code, said, outputs = toy.run("x86_64-linux-musl", level)
        if code and "does not run" in said:
            pytest.skip(said)
        assert code == 0 and said == (level or said) and said in LEVELS
        toy.check(outputs)

    def test_arm_has_the_same_numbers(self, toy: Packaged) -> None:
        code, said, outputs = toy.run("aarch64-linux-musl", emulator=["qemu-aarch64"])
        assert (code, said) == (0, "aarch64")
        toy.check(outputs)

    @pytest.mark.parametrize(("cpu", "best"), [("Nehalem", "x86-64"), ("Haswell", "x86-64-v3")])
    def test_an_older_processor_runs_its_best_level_and_never_a_better_one(
        self, toy: Packaged, cpu: str, best: str
    ) -> None:
        emulator = ["qemu-x86_64", "-cpu", cpu]
        code, said, outputs = toy.run("x86_64-linux-musl", emulator=emulator)
        assert (code, said) == (0, best)
        toy.check(outputs)
        for level in LEVELS[LEVELS.index(best) + 1 :]:
            code, said, _ = toy.run("x86_64-linux-musl", level, emulator)
            assert (code, said) == (1, f"this processor does not run code of level {level}")

    @pytest.mark.skipif(not shutil.which("nm") or not shutil.which("objdump"), reason="no binutils")
    def test_code_of_a_level_stays_in_functions_of_that_level(self, toy: Packaged) -> None:
        library = toy.path / "lib" / "x86_64-linux-musl" / "libtoy.a"
        said = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
        weak = re.findall(r"^\S+ [VWu] (\S+)", said, re.MULTILINE)
        assert weak
        assert all(re.search(r"\dtoy_x86_64", each) for each in weak)
        command = ["objdump", "-d", "--no-show-raw-insn", library]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        _, *parts = re.split(r"^(\S+): +file format .*$", said, flags=re.MULTILINE)
        allowed = {"": set(), "v3": {"%ymm"}, "v4": {"%ymm", "%zmm"}}
        seen = set()
        for name, code in zip(parts[::2], parts[1::2]):
            level = re.match(r"kernels_x86_64_(v\d)", name)
            seen.add(level[1] if level else "")
            found = {register for register in ("%ymm", "%zmm") if register in code}
            assert found <= allowed[level[1] if level else ""], name
        assert seen == set(allowed)


@pytest.mark.slow
@_missing()
def test_other_systems_get_libraries_that_need_their_c_library_alone(tmp_path: Path) -> None:
    systems = ["aarch64-macos", "x86_64-macos", "x86_64-windows", "aarch64-windows"]
    toy = packaged(tmp_path, systems)
    header = (toy.path / "include" / "toy.h").read_text()
    exported = set(re.findall(r"\b(toy_\w+)\(", header))
    for name in systems:
        target = TARGETS[name]
        image = (toy.path / "lib" / name / str(target.libraries("toy")[0])).read_bytes()
        if target.system == "macos":
            library: MachO | Portable = MachO(image)
            assert library.libraries == {"/usr/lib/libSystem.B.dylib"}
            assert MachO(image).name == "@rpath/libtoy.dylib"
            assert exported <= library.exports
        else:
            library = Portable(image)
            assert all(re.fullmatch(r"api-ms-win-crt-.*|KERNEL32", each[:-4]) for each in library.libraries)
            assert library.exports == exported
        assert library.machine == target.machine
    if shutil.which("wine"):
        shutil.copy(toy.path / "lib" / "x86_64-windows" / "toy.dll", toy.path)
        for level in ("", "x86-64"):
            code, said, outputs = toy.run("x86_64-windows", level, ["wine"])
            assert code == 0 and said in LEVELS, said
            toy.check(outputs)


@pytest.mark.slow
@_missing("qemu-riscv64")
def test_processors_without_a_level_of_their_own_run_the_generic_one(tmp_path: Path) -> None:
    toy = packaged(tmp_path, ["riscv64-linux-musl"], levels=None)
    code, said, outputs = toy.run("riscv64-linux-musl", emulator=["qemu-riscv64"])
    assert (code, said) == (0, "generic")
    toy.check(outputs)


@pytest.mark.slow
@_missing()
def test_webassembly_has_the_same_numbers(tmp_path: Path) -> None:
    wasmtime = pytest.importorskip("wasmtime")
    toy = packaged(tmp_path, ["wasm32-wasi"], levels=None)
    engine = wasmtime.Engine()
    module = wasmtime.Module.from_file(engine, str(toy.programs["wasm32-wasi"]))
    linker, store, wasi = wasmtime.Linker(engine), wasmtime.Store(engine), wasmtime.WasiConfig()
    linker.define_wasi()
    wasi.argv = ["caller", "weights.safetensors", "inputs.bin", "outputs.bin", ""]
    wasi.preopen_dir(str(toy.path), ".")
    wasi.stdout_file = str(toy.path / "said")
    store.set_wasi(wasi)
    linker.instantiate(store, module).exports(store)["_start"](store)
    assert (toy.path / "said").read_text() == "generic\n"
    toy.check(toy.read())
