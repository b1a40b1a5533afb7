"""The Triton target: kernels for GPUs, or interpreted on the CPU."""

from __future__ import annotations

import ctypes
import json
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from sympy import Expr, Symbol

from smelt.codegen.triton.cubins import Cubin, Machine, Order, compile_orders, order_of
from smelt.codegen.triton.launcher import launcher_text
from smelt.codegen.triton.stand_in import Libdevice, amend_interpreter
from smelt.codegen.triton.unit import TritonKernel, functions_of, module_text, print_kernels
from smelt.config import Config
from smelt.errors import SmeltError, ToolchainError, Unsupported
from smelt.loops.ir import Attentions, Graph
from smelt.nest.ir import Call, InArena, Kernel, Run
from smelt.pipeline.built import Errors
from smelt.pipeline.targets import Code
from smelt.records import dataclass, replace
from smelt.runtime import toolchain
from smelt.runtime.cache import Cache, key_of, open_cache
from smelt.runtime.gpu import DeviceMemory, Driver, native_driver
from smelt.runtime.library import Library, PythonLibrary, compile_unit
from smelt.schedule import Target
from smelt.schedule.attention.lanes import has_blocks
from smelt.schedule.products.operands import Product
from smelt.schedule.tilings import Tiles
from smelt.symbolic import evaluate
from smelt.tuning import Measurements


class Interpreted:
    """Kernels in Triton, run by its interpreter on the CPU: slow, and exactly what the text says.

    ``torch.compile(model, backend=smelt.backend.backend_for(Interpreted()))``. ``products``: matrix products
    and convolutions are kernels too, perhaps by these tiles; ATen has them otherwise. ``multiprocessors``: of
    the GPU.
    """

    def __init__(self, products: bool | Tiles = False, multiprocessors: int = 1) -> None:
        self.choose = partial(_chosen, products)
        self.machine = Target(vector_bytes=4, blocks=True, multiprocessors=multiprocessors)

    def build(self, runs: Sequence[Run]) -> Code:
        """Raises:
        Unsupported: Triton has no text for something, or is not installed.
        """
        kernels = print_kernels(runs, interpreted=True)
        text = module_text(list(kernels.values()))
        functions = interpreted(text)
        bound = {run.name: _run(run, kernels, functions) for run in runs}
        errors = _errors(runs, kernels)
        return Code(text, PythonLibrary(bound), errors, "triton")


def _errors(runs: Sequence[Run], kernels: Mapping[Kernel, TritonKernel]) -> Errors:
    """The errors of each run's checks, in order."""
    return {run.name: tuple(e for call in run.calls for e in kernels[call.kernel].errors) for run in runs}


def _chosen(
    products: bool | Tiles, product: Product | Attentions, graph: Graph, target: Target
) -> bool | Tiles:
    """Whether a product or attention is a kernel; cuBLAS, cuDNN and PyTorch's attention have the others."""
    if not isinstance(product, Product):
        return bool(products) and has_blocks(product)
    return products if product.body.dtype.is_floating_point else False


class Launched:
    """Kernels in Triton, launched on a device by a driver.

    ``architecture``: of the GPU that machine code is compiled for; ``products``: as for `Interpreted`.
    """

    def __init__(
        self,
        device: torch.device,
        architecture: Machine,
        driver: Callable[[], Driver],
        products: bool | Tiles = False,
    ) -> None:
        self.device, self.architecture, self.driver = device, architecture, driver
        self.choose = partial(_chosen, products)
        key = {"cpu": "CPU", "cuda": "CUDA"}[device.type]
        has = architecture.backend == "cuda" and int(architecture.architecture) >= 90
        self.machine = Target(
            vector_bytes=4,
            blocks=True,
            device=key,
            multiprocessors=architecture.multiprocessors,
            descriptors=has,
        )

    def build(self, runs: Sequence[Run]) -> Code:
        """Raises:
        Unsupported: Triton has no text for something.
        ToolchainError: SM0201 to SM0203, there is no C++ compiler.
        """
        kernels = print_kernels(runs)
        text = module_text(list(kernels.values()))
        errors = _errors(runs, kernels)
        if not kernels:
            return Code(text, PythonLibrary({}), errors, "triton", str(self.device))
        orders = [order_of(each) for each in kernels.values()]
        launches = Launches(text, launcher_text(runs, kernels), orders, sum(len(run.calls) for run in runs))
        return self._code(launches, errors)

    @property
    def identity(self) -> str:
        """What programs in the cache depend on, besides smelt and PyTorch."""
        return f"{self.device} {self.architecture} {self.choose.args}"

    @property
    def records(self) -> bool:
        """Whether calls may be recorded (`smelt.runtime.recorded`)."""
        return self.device.type == "cuda"

    @property
    def measurer(self) -> Sequence[str] | None:
        """The command that measures on this device (`smelt.pipeline.measurer`); None: it is not there."""
        if self.device.type != "cuda":
            return None
        return (sys.executable, "-m", "smelt.pipeline.measurer", str(self.device))

    def measured(self, graph: Graph, config: Config, store: Cache, version: str) -> Measurements:
        """The measurements of a graph's contractions."""
        from smelt.pipeline.measured import measured

        return measured(graph, config, store, version, self)

    def restored(self, stored: bytes) -> Code:
        """The code that another process has built and stored; its errors are in the plan.

        Raises:
            ValueError: the bytes are something else.
        """
        try:
            return self._code(Launches.read(stored), {})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not launches: {error}") from error

    def _code(self, launches: Launches, errors: Errors) -> Code:
        job = LaunchJob(self, launches)
        device, stored = str(self.device), launches.written()
        return Code(launches.text, job, errors, "triton", device, job.assembly, stored)


@dataclass(frozen=True, slots=True)
class Launches:
    """What a launcher is made of: the kernels' ``text`` for people, the C++ of the ``launcher``, the kernels
    to compile, and the number of launches in all runs.
    """

    text: str
    launcher: str
    orders: Sequence[Order]
    calls: int

    def written(self) -> bytes:
        """As JSON."""
        orders = [order.as_data() for order in self.orders]
        about = {"text": self.text, "launcher": self.launcher, "orders": orders, "calls": self.calls}
        return json.dumps(about).encode()

    @classmethod
    def read(cls, stored: bytes) -> Launches:
        """The inverse of `written`."""
        about = json.loads(stored)
        orders = [Order.of_data(order) for order in about["orders"]]
        return cls(about["text"], about["launcher"], orders, about["calls"])


class LaunchJob:
    """Machine code and the launcher, compiled in parallel to Python; ``result()`` waits and loads them."""

    def __init__(self, target: Launched, launches: Launches) -> None:
        self.target, self.launches = target, launches
        self._cubins: Future[list[Cubin]] = Future()
        threading.Thread(target=self._compile, name="smelt-triton", daemon=True).start()

    def _compile(self) -> None:
        try:
            orders = [replace(order, aligned=True) for order in self.launches.orders]
            self._cubins.set_result(compile_orders(orders, self.target.architecture))
        except BaseException as error:
            self._cubins.set_exception(error)

    def assembly(self) -> str:
        """The assembly of all kernels, as Triton's compiler gives it."""
        return "\n".join(each.ptx for each in self._cubins.result())

    def result(self) -> Library:
        """The launcher, bound to the machine code in the current device's context."""
        cubins = self._cubins.result()
        about = key_of(str(self.target.device), *(each.binary for each in cubins))
        text = f"{self.launches.launcher}// for {about}\n"  # a loaded library is bound to this machine code
        tools = toolchain.find()
        key = key_of("launcher", text, tools.identity)
        library = compile_unit(text, tools, open_cache(), key).result()
        with _binding:
            if library.path not in _bound:
                _bound[library.path] = self._bind(library, cubins)
        return library

    def _bind(self, library: Library, cubins: Sequence[Cubin]) -> list[Any]:
        """Gives the launcher its table; returns what has to live as long as the library."""
        driver = self.target.driver()
        with DeviceMemory(self.target.device).current():
            functions = [driver.load(each.binary, each.name, each.shared) for each in cubins]

        def general(position: int) -> int:
            """The code for addresses of all kinds; 0, with the error on standard error, if there is none."""
            try:
                (made,) = compile_orders([self.launches.orders[position]], self.target.architecture)
                return driver.load(made.binary, made.name, made.shared)
            except Exception as error:
                sys.stderr.write(f"smelt: {error}\n")
                return 0

        failed = torch.zeros(self.launches.calls, dtype=torch.int32)
        if self.target.device.type == "cuda":
            failed = failed.pin_memory()  # kernels write to it where it is
        addresses, numbers = ctypes.c_void_p * len(functions), ctypes.c_int * len(functions)
        table = Table(
            driver.launch,
            addresses(*functions),
            addresses(),
            General(general),
            failed.data_ptr(),
            len(failed),
            numbers(*(each.threads for each in cubins)),
            numbers(*(each.shared for each in cubins)),
            numbers(*(each.scratch for each in cubins)),
            driver.allocate,
            driver.release,
        )
        bind = library.function("smelt_bind")
        bind.restype = None
        bind(ctypes.byref(table))
        return [driver, table, failed]


General = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)


class Table(ctypes.Structure):
    """The launcher's ``struct table``."""

    _fields_ = (
        ("launch", ctypes.c_void_p),
        ("aligned", ctypes.POINTER(ctypes.c_void_p)),
        ("general", ctypes.POINTER(ctypes.c_void_p)),
        ("compile", General),
        ("failed", ctypes.c_void_p),
        ("calls", ctypes.c_int),
        ("threads", ctypes.POINTER(ctypes.c_int)),
        ("shared", ctypes.POINTER(ctypes.c_int)),
        ("scratch", ctypes.POINTER(ctypes.c_int)),
        ("allocate", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
    )


_bound: dict[Path, list[Any]] = {}
"""The tables of launchers: loaded libraries stay for the life of the process."""
_binding = threading.Lock()


class AbsentDriver:
    """The driver of a GPU that is not there: programs are compiled for it, to be looked at."""

    launch = allocate = release = 0

    def load(self, binary: bytes, name: str, shared: int) -> int:
        raise ToolchainError("SM0208", f"no GPU runs {name} here")


MULTIPROCESSORS = {80: 108, 86: 84, 89: 142, 90: 132, 100: 148, 120: 188}
"""Of the largest GPU of an architecture."""


def absent_target(architecture: str) -> Launched:
    """The target of a GPU that is not there: ``sm90`` or ``gfx942``.

    Raises:
        SmeltError: SM0102, there is no such architecture.
    """
    found = re.fullmatch(r"sm_?(\d{2,3})|(gfx[0-9a-f]{3,4})", architecture)
    if found is None:
        what = f"no GPU architecture {architecture!r}"
        raise SmeltError("SM0102", what, remedy="sm80, sm90 and sm100 are NVIDIA's, gfx90a and gfx942 AMD's")
    number, name = found.groups()
    if number:
        machine = Machine("cuda", int(number), multiprocessors=MULTIPROCESSORS.get(int(number), 132))
    else:
        machine = Machine("hip", name, 64 if name[3] == "9" else 32, 304)
    return Launched(torch.device("cpu"), machine, AbsentDriver)


@lru_cache(maxsize=64)
def gpu_target(device: torch.device) -> Launched:
    """The target of a CUDA device of this machine.

    Raises:
        Unsupported: Triton is not installed; PyTorch runs the program.
    """
    if find_spec("triton") is None:
        raise Unsupported(f"kernels for {device} need Triton (pip install triton)")
    facts = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        name, lanes = facts.gcnArchName.split(":")[0], facts.warp_size
        machine = Machine("hip", name, lanes, facts.multi_processor_count)
    else:
        machine = Machine("cuda", 10 * facts.major + facts.minor, 32, facts.multi_processor_count)
    return Launched(device, machine, partial(native_driver, machine.backend))


def interpreted(text: str) -> Mapping[str, Any]:
    """The module's functions, as Triton's interpreter has them."""
    try:
        from triton.language import standard
    except ImportError as error:
        raise Unsupported("Triton is not installed") from error
    if not hasattr(standard.sum, "rewrite"):
        raise Unsupported("Triton interprets only where TRITON_INTERPRET=1 is set before it is imported")
    amend_interpreter()
    functions = functions_of(text)
    functions["libdevice"] = Libdevice()
    return functions


def _run(
    run: Run, kernels: Mapping[Kernel, TritonKernel], functions: Mapping[str, Any]
) -> Callable[..., int]:
    """A run as a function of the arena's address, those of buffers, and sizes."""
    launches = [
        partial(_launch, call, kernels[call.kernel], functions[kernels[call.kernel].name])
        for call in run.calls
    ]
    counts = [len(kernels[call.kernel].errors) for call in run.calls]

    def call(arena: int, *args: int) -> int:
        pointers, sizes = args[: len(run.arguments)], args[len(run.arguments) :]
        known = dict(zip(run.sizes, sizes, strict=True))
        before = 0
        for launch, count in zip(launches, counts, strict=True):
            failed = launch(arena, pointers, known)
            if failed:
                return before + failed
            before += count
        return 0

    return call


def _launch(
    call: Call,
    printed: TritonKernel,
    function: Any,
    arena: int,
    pointers: Sequence[int],
    sizes: Mapping[Symbol, int],
) -> int:
    """Run one kernel; returns the number of the check that failed, or 0."""
    args: list[Any] = []
    for param, place in zip(call.kernel.params, call.args, strict=True):
        address = (
            arena + evaluate(place.offset, sizes) if isinstance(place, InArena) else pointers[place.position]
        )
        args.append(element(address, param.dtype))
    args += [sizes[symbol] for symbol in call.kernel.sizes]
    failed = torch.zeros(1, dtype=torch.int32)
    grid = tuple(_count(each, sizes) for each in printed.grid)
    if 0 not in grid:
        function[grid](*args, failed)
    return int(failed)


def _count(programs: Expr | int, sizes: Mapping[Symbol, int]) -> int:
    return programs if isinstance(programs, int) else evaluate(programs, sizes)


def element(address: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose memory begins at an address: Triton takes the address alone. Empty ones have none. All
    have the same bytes: Triton copies one that begins where another does.
    """
    if address == 0:
        return torch.empty(1, dtype=dtype)
    memory = (ctypes.c_char * 8).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)
