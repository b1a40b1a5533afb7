"""Units compiled for 64-bit ARM, whose vectors are NEON's, and run in an emulator.

Zig's Clang makes a static program of a unit (`ziglang` on PyPI is that compiler); Unicorn executes it.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from smelt.codegen.cpp import print_unit
from smelt.nest.ir import Run
from smelt.runtime import toolchain
from tests.codegen.support import Library

ZIG = [sys.executable, "-m", "ziglang"]
TARGET = ["-target", "aarch64-linux-musl"]
FLAGS = [*toolchain.FLAGS, *toolchain.CLANG_FLAGS, *TARGET, "-fno-sanitize=all"]
LINK = [*TARGET, "-O1", "-s", "-static", "-Wl,--no-gc-sections"]
"""As `tests.packages.test_emulated` links: zig compiles musl, a minute of work, once for both."""
_TABLE = "smelt_table"
"""The section with the addresses of the functions: a stripped program has no symbols."""
_MEMORY = """
extern "C" {
alignas(64) static char pool[1 << 25];
static unsigned long taken;
int main() { return 0; }
void reset() { taken = 0; }
void* malloc(unsigned long size) {
  taken = (taken + 63) / 64 * 64;
  void* found = pool + taken;
  taken += size;
  return taken <= sizeof(pool) ? found : (void*)0;
}
void free(void*) {}
}
"""
_STACK, _STACK_SIZE = 0x7000_0000, 1 << 23
_DATA = 0x8000_0000
_RETURN = 0x6000_0000
_PAGE = 1 << 12
_EVERY_FLOATING_POINT_INSTRUCTION = 0x300000


class ArmLibrary(Library):
    """As `Library`, emulated; skips the test where the compiler or the emulator is missing."""

    def __init__(self, folder: Path, runs: Sequence[Run]) -> None:
        pytest.importorskip("ziglang")
        unicorn = pytest.importorskip("unicorn")
        registers = pytest.importorskip("unicorn.arm64_const")
        self.unit = print_unit(runs)
        names = ["reset", *(run.name for run in runs)]
        declared = "".join(f'extern "C" int {name}();\n' for name in names[1:])
        table = ", ".join(f"(void*)&{name}" for name in names)
        placed = f'__attribute__((used, section("{_TABLE}"))) void* table[] = {{{table}}};\n'
        texts = {"unit": self.unit.text, "memory": _MEMORY + declared + placed}
        for name, text in texts.items():
            (folder / f"{name}.cpp").write_text(text)
            _zig("c++", *FLAGS, "-c", folder / f"{name}.cpp", "-o", folder / f"{name}.o")
        target = folder / "unit.elf"
        _zig("cc", *LINK, *(folder / f"{name}.o" for name in texts), "-lm", "-o", target)
        self.registers: Any = registers
        self.machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self.machine.reg_write(registers.UC_ARM64_REG_CPACR_EL1, _EVERY_FLOATING_POINT_INSTRUCTION)
        image = target.read_bytes()
        for address, content, size in _segments(image):
            first = address // _PAGE * _PAGE
            self.machine.mem_map(first, _up(address + size - first))
            self.machine.mem_write(address, content)
        self.machine.mem_map(_STACK, _STACK_SIZE)
        self.machine.mem_map(_RETURN, _PAGE)
        self.functions = dict(zip(names, _addresses(image), strict=True))
        self.mapped = 0

    def __call__(self, name: str, *args: torch.Tensor | int, arena: torch.Tensor | int = 0) -> int:
        args = (arena, *args)
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        places, at = [], _DATA
        for tensor in tensors:
            places.append(at)
            at = (at + tensor.untyped_storage().nbytes() + 127) // 64 * 64
        missing = _up(at - _DATA) - self.mapped
        if missing > 0:
            self.machine.mem_map(_DATA + self.mapped, missing)
            self.mapped += missing
        for tensor, place in zip(tensors, places):
            self.machine.mem_write(place, bytes(tensor.untyped_storage()))
        addresses = iter(places)
        values = [
            next(addresses) + arg.storage_offset() * arg.itemsize if isinstance(arg, torch.Tensor) else arg
            for arg in args
        ]
        self._run("reset", [])
        result = self._run(name, values)
        for tensor, place in zip(tensors, places):
            storage = tensor.untyped_storage()
            made = torch.frombuffer(self.machine.mem_read(place, storage.nbytes()), dtype=torch.uint8)
            storage.copy_(made.untyped_storage())
        return result

    def _run(self, name: str, values: Sequence[int]) -> int:
        """Call a function as ARM's standard says: eight words in registers, the others on the stack."""
        top = _STACK + _STACK_SIZE - 4096
        machine, registers = self.machine, self.registers
        for number, value in enumerate(values[:8]):
            machine.reg_write(getattr(registers, f"UC_ARM64_REG_X{number}"), value & (2**64 - 1))
        machine.mem_write(top, struct.pack(f"<{len(values[8:])}q", *values[8:]))
        machine.reg_write(registers.UC_ARM64_REG_SP, top)
        machine.reg_write(registers.UC_ARM64_REG_TPIDR_EL0, _STACK)
        machine.reg_write(registers.UC_ARM64_REG_LR, _RETURN)
        machine.emu_start(self.functions[name], _RETURN)
        return int(machine.reg_read(registers.UC_ARM64_REG_X0))


def _zig(*words: object) -> None:
    done = subprocess.run([*ZIG, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr[:4000])


def _up(size: int) -> int:
    return (size + _PAGE - 1) // _PAGE * _PAGE


def _segments(image: bytes) -> Iterator[tuple[int, bytes, int]]:
    """What an ELF file wants in memory: address, content, and size with the zeros behind it."""
    start, _, _, _, size, count = struct.unpack_from("<QQIHHH", image, 0x20)
    for number in range(count):
        kind, _, offset, address, _, stored, needed = struct.unpack_from(
            "<IIQQQQQ", image, start + number * size
        )
        if kind == 1 and needed:
            yield address, image[offset : offset + stored], needed


def _addresses(image: bytes) -> tuple[int, ...]:
    """The addresses in `_TABLE` of an ELF file."""
    (start,) = struct.unpack_from("<Q", image, 0x28)
    size, count, last = struct.unpack_from("<HHH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", image, start + number * size) for number in range(count)]
    names = sections[last][4]
    for name, _, _, _, offset, length in sections:
        if image[names + name :].startswith(_TABLE.encode() + b"\0"):
            return struct.unpack_from(f"<{length // 8}Q", image, offset)
    raise AssertionError(f"the program has no section {_TABLE}")
