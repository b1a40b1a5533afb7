"""Programs through the launcher, with a driver that interprets the kernels: ``python -m …launched``.

Machine code is compiled for a real architecture, and the driver is given its parameters; memory is the CPU's.
A line of JSON is printed for each program.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import smelt
from smelt.backend import backend_for
from smelt.codegen.triton.cubins import POINTERS, Machine, entry_name
from smelt.codegen.triton.unit import functions_text
from smelt.pipeline.triton import Launched, element, interpreted
from smelt.records import replace
from smelt.runtime.gpu import DeviceMemory
from smelt.schedule.tilings import Tiles
from tests.codegen.triton.programs import PROGRAMS
from tests.runtime.test_recorded import Device

STREAM = 77
DTYPES = {name: dtype for dtype, name in POINTERS.items()}
CHOSEN = ("extremes", "empty", "training", "layer_norm, dynamic")
MORE = (
    *("pointwise", "softmax", "scatter", "bfloat16", "product_of_matrices"),
    *("pointwise, dynamic", "sum_of_columns, dynamic"),
)
"""Programs that the slow test alone runs: the others have what they have."""
Launch = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *[ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p],
    *[ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p],
)
Allocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_void_p)
Release = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Interpreter:
    """A driver: functions are numbers of loaded kernels, and launches run Triton's interpreter."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[list[str], Any]] = {}
        self.loaded: list[str] = []
        self.launches: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.memory: dict[int, Any] = {}
        self.taken: list[int] = []
        self._functions = (Launch(self._launched), Allocate(self._allocate), Release(self._release))
        addresses = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in self._functions)
        self.launch, self.allocate, self.release = addresses

    def load(self, binary: bytes, name: str, shared: int) -> int:
        assert binary.startswith(b"\x7fELF") and name.encode() in binary
        self.loaded.append(name)
        return len(self.loaded)

    def _allocate(self, found: Any, size: int, stream: int) -> int:
        memory = ctypes.create_string_buffer(size)
        found[0] = ctypes.addressof(memory)
        self.memory[found[0]] = memory
        self.taken.append(size)
        return 0

    def _release(self, address: int, stream: int) -> int:
        del self.memory[address]
        return 0

    def _launched(self, function: int, x: int, y: int, z: int, *rest: Any) -> int:
        threads, _, _, shared, stream, args, _ = rest
        try:
            name = self.loaded[function - 1]
            signature, run = self.known[name]
            self.launches.append({"name": name, "threads": threads, "shared": shared, "stream": stream})
            values = [ctypes.cast(args[i], ctypes.POINTER(ctypes.c_int64))[0] for i in range(len(signature))]
            given = [
                element(value, DTYPES[kind]) if kind in DTYPES else value
                for value, kind in zip(values, signature, strict=True)
            ]
            run[x, y, z](*given)
        except BaseException as error:
            self.errors.append(repr(error))
            return 999
        return 0


class Faked(Launched):
    """Launches on the CPU's memory by the interpreter."""

    def __init__(self, products: bool | Tiles = False) -> None:
        self.fake = Interpreter()
        super().__init__(torch.device("cpu"), Machine("cuda", 90), lambda: self.fake, products)

    def _code(self, launches: Any, errors: Any) -> Any:
        functions = interpreted(launches.text)
        for order in launches.orders:
            for aligned in (True, False):
                name = entry_name(replace(order, aligned=aligned), self.architecture)
                function = functions[order.name]
                if order.general and not aligned:
                    function = interpreted(f"{functions_text()}\n\n{order.general}")[order.name]
                self.fake.known[name] = (list(order.signature.values()), function)
        return super()._code(launches, errors)


def difference(found: Any, wanted: Any) -> str:
    """The first difference beyond rounding, or nothing; eager rounds 16-bit floats more often."""
    first = next(each for each in tree_leaves(found) if isinstance(each, torch.Tensor))
    rtol, atol = (0.02, 0.01) if first.dtype in (torch.bfloat16, torch.float16) else (1e-4, 1e-5)
    try:
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return str(error)
    return ""


def launched(name: str, dynamic: bool | None = None) -> dict[str, Any]:
    """Runs a program twice: memory of the first call is gone by then."""
    function, make = PROGRAMS[name]
    torch.manual_seed(0)
    args, target = make(), Faked()
    compiled = torch.compile(function, backend=backend_for(target), dynamic=dynamic)
    wanted = function(*args)
    said = [difference(compiled(*args), wanted) for _ in range(2)]
    return {
        "differences": [each for each in said if each],
        "launches": target.fake.launches,
        "loaded": len(target.fake.loaded),
        "errors": target.fake.errors,
    }


def unaligned() -> dict[str, Any]:
    """Inputs that begin at any element take the code for all addresses."""
    target = Faked()
    compiled = torch.compile(lambda x: x.exp() + 1, backend=backend_for(target))
    memory = torch.randn(1001)
    said = [difference(compiled(x), x.exp() + 1) for x in (memory[:1000], memory[1:], memory[:1000])]
    return {"differences": [each for each in said if each], "launches": target.fake.launches}


def descriptors() -> dict[str, Any]:
    """Blocks that the copy engine loads, from memory that the driver gives; other code where it cannot."""
    target = Faked(Tiles(32, 32, 16, descriptors=True))
    compiled = torch.compile(lambda a, b: a @ b, backend=backend_for(target))
    memory = torch.randn(70 * 40 + 1)
    a, odd, b = memory[:-1].view(70, 40), memory[1:].view(70, 40), torch.randn(40, 36)
    said = [difference(compiled(x, b), x @ b) for x in (a, odd)]
    return {
        "differences": [each for each in said if each],
        "launches": target.fake.launches,
        "taken": target.fake.taken,
        "kept": len(target.fake.memory),
    }


def checks() -> dict[str, Any]:
    """A failed check is raised by the next call, and only by that."""
    target = Faked()
    compiled = torch.compile(lambda t, i: t[i] * 2, backend=backend_for(target))
    table, said = torch.arange(5.0), []
    for index in ([1, 4], [1, 7], [0, 2], [3, 3]):
        try:
            said.append(str(compiled(table, torch.tensor(index)).tolist()))
        except (IndexError, RuntimeError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return {"said": said}


def recorded() -> dict[str, Any]:
    """In mode ``max`` calls are replayed from the second on; a failed check is raised by the next one."""

    class Recorded(Faked):
        records = True

    target, device = Recorded(), Device()
    DeviceMemory.record = lambda self, call: device.record(call)  # type: ignore[method-assign]
    options = {"mode": "max", "freezing": False}
    compiled = torch.compile(
        lambda t, i: torch.softmax(t[i], -1), backend=backend_for(target), options=options
    )
    table, said = torch.randn(5, 7), []
    for index in ([1, 4], [0, 2], [3, 0], [1, 7], [2, 2], [4, 3]):
        place = torch.tensor(index)
        try:
            found = compiled(table, place)
            said.append(difference(found, torch.softmax(table[place % 7 % 5], -1))[:20])
        except (IndexError, RuntimeError) as error:
            said.append(type(error).__name__)
    note = smelt.reports()[-1].recorded
    return {"said": said, "recordings": device.recordings, "replays": device.replays, "note": note}


def warm() -> dict[str, Any]:
    """The second compilation of a program finds its plan and its launches in the cache."""
    function, make = PROGRAMS["layer_norm"]
    torch.manual_seed(0)
    said, hits = [], []
    for _ in range(2):
        torch._dynamo.reset()
        smelt.reset()
        args = make()
        said.append(difference(torch.compile(function, backend=backend_for(Faked()))(*args), function(*args)))
        hits.append(smelt.reports()[-1].cache_hit)
    return {"differences": [each for each in said if each], "hits": hits}


SPECIAL: dict[str, Callable[[], dict[str, Any]]] = {
    "unaligned": unaligned,
    "descriptors": descriptors,
    "checks": checks,
    "recorded": recorded,
    "warm": warm,
}
USUAL = (*CHOSEN, *SPECIAL)


def main() -> None:
    DeviceMemory.stream = lambda self: STREAM  # type: ignore[method-assign]
    for case in sys.argv[1:]:
        name, *dynamic = case.split(", ")
        torch._dynamo.reset()
        try:
            said = SPECIAL[case]() if case in SPECIAL else launched(name, True if dynamic else None)
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps({"name": case, **said}), flush=True)


if __name__ == "__main__":
    main()
