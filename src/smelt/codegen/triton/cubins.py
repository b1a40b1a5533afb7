"""Machine code of printed kernels, from the cache or from Triton's compiler; no GPU is needed for that.

Each kernel is an entry of its own in the cache. Missing ones are compiled by processes side by side.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from smelt.codegen.triton.unit import TritonKernel, functions_text
from smelt.errors import CacheError, ToolchainError
from smelt.records import dataclass
from smelt.runtime import process
from smelt.runtime.cache import Cache, key_of, open_cache
from smelt.runtime.library import compilers, start_compiler

POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
"""Triton's names of pointer element types."""
WORKER = Path(__file__).parent / "worker.py"
FILES = ("ptx", "bin", "json")
OPTIONS: dict[str, Any] = {"enable_fp_fusion": False}
"""The compiler does not contract products and sums."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU architecture in Triton's words: backend, architecture (90, or "gfx942") and lanes of a warp; and
    the number of multiprocessors.
    """

    backend: str
    architecture: int | str
    lanes: int = 32
    multiprocessors: int = 132

    @property
    def target(self) -> tuple[str, int | str, int]:
        return self.backend, self.architecture, self.lanes


@dataclass(frozen=True, slots=True)
class Order:
    """A kernel to compile: the name and text of its function, Triton's types of its parameters, the warps of
    a block and the blocks that are loaded ahead, and whether all addresses are multiples of 16 bytes; if they
    are not, ``general`` is its text if there is one. ``shown``: its name for people.
    """

    name: str
    shown: str
    text: str
    signature: Mapping[str, str]
    warps: int = 4
    aligned: bool = False
    stages: int = 3
    general: str = ""

    @property
    def source(self) -> str:
        """The text that is compiled."""
        return self.text if self.aligned or not self.general else self.general

    @property
    def key(self) -> str:
        """Equal for orders of equal machine code, whatever their names."""
        text = re.sub(rf"\b{self.name}", "kernel", self.source)
        about = [list(self.signature.items()), self.warps, self.aligned, self.stages]
        return key_of(functions_text(), text, json.dumps(about))

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {**asdict(self), "signature": list(self.signature.items())}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Order:
        """The inverse of `as_data`."""
        return cls(**{**data, "signature": dict(data["signature"])})


def order_of(printed: TritonKernel, aligned: bool = False) -> Order:
    """The order of a printed kernel."""
    kernel = printed.kernel
    types = {param.name: POINTERS[param.dtype] for param in kernel.params}
    types |= {size.name: "i64" for size in kernel.sizes} | {"failed": "*i32"}
    about = (printed.warps, aligned, printed.stages, printed.general)
    return Order(printed.name, kernel.name or "kernel", printed.text, types, *about)


@dataclass(frozen=True, slots=True)
class Cubin:
    """A kernel's machine code: its assembly (``ptx``) and ``binary``, the threads and the bytes of shared
    memory of a block, and the bytes of memory that each block needs for descriptors.
    """

    name: str
    ptx: str
    binary: bytes
    threads: int
    shared: int
    scratch: int

    def usage(self) -> tuple[int, int]:
        """The registers and the bytes of stack of a thread, as NVIDIA's ``cuobjdump`` reads them."""
        tool = str(triton_folder() / "backends" / "nvidia" / "bin" / "cuobjdump")
        with tempfile.NamedTemporaryFile(prefix="smelt-", suffix=".cubin") as file:
            file.write(self.binary)
            file.flush()
            command = [tool, "-res-usage", file.name]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
        return found["REG"], found["STACK"] + found["LOCAL"]


def compile_orders(orders: Sequence[Order], machine: Machine) -> list[Cubin]:
    """The machine code of kernels, in order; those that the cache lacks are compiled.

    Raises:
        ToolchainError: SM0207, Triton refused a kernel; SM0209, it is not installed; SM0507, it did not end.
        CacheError: SM0508, there is no space for its output.
    """
    store = open_cache()
    keys = [_key(order, machine) for order in orders]
    found = {key: _from_cache(store, key) for key in dict.fromkeys(keys)}
    missing = {key: order for key, order in zip(keys, orders, strict=True) if found[key] is None}
    if missing:
        found |= store.work(partial(_compile, missing, machine, store))
    return [_present(found[key]) for key in keys]


def _present(cubin: Cubin | None) -> Cubin:
    assert cubin is not None
    return cubin


def entry_name(order: Order, machine: Machine) -> str:
    """The name of a kernel in machine code, as profilers show it."""
    return f"{order.shown}_{_key(order, machine)[:8]}"


def _key(order: Order, machine: Machine) -> str:
    return key_of("triton", _version(), order.key, json.dumps([machine.target, OPTIONS]), WORKER.read_text())


def _from_cache(store: Cache, key: str) -> Cubin | None:
    entry = store.get(key)
    if entry is None:
        return None
    try:
        return _cubin(*(entry.read(name) for name in FILES))
    except (CacheError, KeyError, ValueError):
        store.remove(key)
        return None


def _cubin(ptx: bytes, binary: bytes, facts: bytes) -> Cubin:
    known = json.loads(facts)
    return Cubin(known["name"], ptx.decode(), binary, known["threads"], known["shared"], known["scratch"])


def _compile(missing: Mapping[str, Order], machine: Machine, store: Cache, folder: Path) -> dict[str, Cubin]:
    """Compiles orders by several processes, each of which takes its share."""
    count = min(len(missing), compilers())
    shares = [dict(list(missing.items())[number::count]) for number in range(count)]
    triton_folder()
    running = [_start(share, machine, folder / str(number)) for number, share in enumerate(shares)]
    found = {}
    for number, (share, run) in enumerate(zip(shares, running, strict=True)):
        _, said = process.wait(run, ("triton",), process.SECONDS)
        place = folder / str(number)
        for key, order in share.items():
            files = {name: place / f"{entry_name(order, machine)}.{name}" for name in FILES}
            if not all(file.exists() for file in files.values()):
                _refused(order, key, said.decode(errors="replace"), store)
            found[key] = _cubin(*(file.read_bytes() for file in files.values()))
            with suppress(CacheError):  # no room: this process has it all the same
                store.put(key, files)
    return found


def _start(share: Mapping[str, Order], machine: Machine, folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir()
    texts, orders = [functions_text()], {}
    for order in share.values():
        name = entry_name(order, machine)
        texts.append(re.sub(rf"\b{order.name}", name, order.source))
        pointers = [place for place, kind in enumerate(order.signature.values()) if kind.startswith("*")]
        about = {"signature": dict(order.signature), "aligned": pointers[:-1] if order.aligned else []}
        options = {**OPTIONS, "num_warps": order.warps, "num_stages": order.stages}
        orders[name] = {"target": machine.target, "options": options, **about}
    (folder / "module.py").write_text("\n\n".join(texts))
    (folder / "orders.json").write_text(json.dumps(orders))
    more = {
        "PYTHONPATH": str(triton_folder().parent),
        "TRITON_CACHE_DIR": str(folder),
        "TRITON_INTERPRET": "0",
    }
    return start_compiler([sys.executable, str(WORKER), str(folder)], folder, subprocess.PIPE, more)


def _refused(order: Order, key: str, said: str, store: Cache) -> NoReturn:
    kept = None
    with suppress(CacheError):
        kept = store.keep_failed(key, order.source)
    lines = said.strip().splitlines()[-8:] or ["no message"]
    raise ToolchainError(
        "SM0207",
        f"Triton refused the kernel {order.name}",
        where=None if kept is None else str(kept),
        why="\n       ".join(lines),
        remedy="report this as a bug of smelt, with the file above",
    )


@lru_cache(maxsize=1)
def triton_folder() -> Path:
    """Triton's folder.

    Raises:
        ToolchainError: SM0209, it is not installed.
    """
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        raise ToolchainError("SM0209", "Triton is not installed", remedy="pip install triton")
    return Path(found.origin).parent


@lru_cache(maxsize=1)
def _version() -> str:
    """Triton's version, read without an import: that takes a second."""
    found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", (triton_folder() / "__init__.py").read_text())
    return found.group(1) if found else "unknown"
