"""A GPU's driver: loads machine code and launches it; and the memory and streams that plans use there.

NVIDIA's and AMD's drivers have the same functions under other names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, Protocol

import torch

from smelt.errors import ToolchainError
from smelt.runtime.arena import Key, Tensors

Strides = tuple[int, ...]

_SHARED = 48 * 1024
"""Bytes of shared memory that a block may have without asking."""
_MOST_SHARED = 8
"""The number of the attribute of a function that asks for more."""


LAUNCH_ERRORS = {
    -1000000: "its grid has more blocks than a GPU takes",
    -1000001: "its code for addresses that are no multiples of 16 cannot be compiled",
}
"""Negative statuses of native calls that are not the driver's (`smelt.codegen.triton.launcher`)."""


class Driver(Protocol):
    """What launches need: the addresses of C functions with the parameters of ``cuLaunchKernel``,
    ``cuMemAllocAsync`` and ``cuMemFreeAsync``.
    """

    @property
    def launch(self) -> int: ...

    @property
    def allocate(self) -> int: ...

    @property
    def release(self) -> int: ...

    def load(self, binary: bytes, name: str, shared: int) -> int:
        """The address of a function of machine code, in the current device's context."""


class NativeDriver:
    """The driver's library, by the names of its functions."""

    def __init__(self, library: str, prefix: str, launch: str) -> None:
        try:
            self.library = ctypes.CDLL(library)
        except OSError as error:
            raise ToolchainError(
                "SM0208", f"the GPU's driver {library} does not load", why=str(error)
            ) from error
        self.prefix = prefix
        self.launch = self._address(launch)
        asynchronous = ("MallocAsync", "FreeAsync") if prefix == "hip" else ("MemAllocAsync", "MemFreeAsync")
        self.allocate, self.release = map(self._address, asynchronous)

    def _address(self, name: str) -> int:
        return ctypes.cast(self.library[self.prefix + name], ctypes.c_void_p).value or 0

    def load(self, binary: bytes, name: str, shared: int) -> int:
        """Raises:
        ToolchainError: SM0208, the driver refused the code.
        """
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("ModuleLoadData", ctypes.byref(module), binary)
        self._call("ModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared > _SHARED:
            self._call("FuncSetAttribute", function, _MOST_SHARED, shared)
        return function.value or 0

    def _call(self, name: str, *args: Any) -> None:
        status = self.library[self.prefix + name](*args)
        if status != 0:
            raise ToolchainError("SM0208", f"the GPU's driver refused {self.prefix}{name}: error {status}")


@lru_cache(maxsize=2)
def native_driver(backend: str) -> NativeDriver:
    """The driver of NVIDIA's GPUs (``cuda``) or AMD's (``hip``).

    Raises:
        ToolchainError: SM0208, it does not load.
    """
    if backend == "hip":
        return NativeDriver("libamdhip64.so", "hip", "ModuleLaunchKernel")
    return NativeDriver("libcuda.so.1", "cu", "LaunchKernel")


class DeviceArena:
    """Memory of one call, from PyTorch's allocator."""

    __slots__ = ("address", "storage")

    def __init__(self, size: int, device: torch.device) -> None:
        self.storage = torch.empty(max(size, 1), dtype=torch.uint8, device=device).untyped_storage()
        self.address = self.storage.data_ptr()


_pools: dict[tuple[torch.device, int], Any] = {}
"""The memory of CUDA graphs, by device and stream."""


class DeviceMemory:
    """The allocations of a plan on a device.

    PyTorch's allocator knows streams: memory that is released is reused by later work of its stream alone. So
    each call takes an arena anew; that is a look-up in a list.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def empty(self, shape: Sequence[int], strides: Strides, dtype: torch.dtype) -> torch.Tensor:
        """A tensor for an output."""
        return torch.empty_strided(shape, strides, dtype=dtype, device=self.device)

    def stream(self) -> int:
        """The handle of PyTorch's current stream."""
        return int(torch.cuda.current_stream(self.device).cuda_stream) if self.device.type == "cuda" else 0

    def wait(self) -> None:
        """Waits for all work on the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def is_recording(self) -> bool:
        """Whether the current stream is being recorded as a CUDA graph."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def record(self, call: Callable[[], Sequence[Any]]) -> tuple[Callable[[], None], Sequence[Any]]:
        """A call's launches as a CUDA graph, in the memory of all graphs of the current stream: its replay,
        and the call's results. PyTorch's generator of the device is part of it.
        """
        with torch.cuda.device(self.device):
            key = (self.device, self.stream())
            if key not in _pools:
                _pools[key] = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=_pools[key], capture_error_mode="thread_local"):
                results = call()
        return graph.replay, results

    def current(self) -> AbstractContextManager[None]:
        """Makes the device the current one."""
        if self.device.type != "cuda" or torch.cuda.current_device() == self.device.index:
            return nullcontext()
        return torch.cuda.device(self.device)

    def pool(self, size: Callable[[Key], int], make: Tensors | None) -> DevicePool:
        """The arenas of a plan."""
        return DevicePool(self.device, size, make)


class DevicePool:
    """Provides arenas to one executor, as `smelt.runtime.arena.ArenaPool` does on the CPU."""

    def __init__(self, device: torch.device, size: Callable[[Key], int], make: Tensors | None) -> None:
        self._device, self._size, self._make = device, size, make

    def acquire(self, key: Key = ()) -> DeviceArena:
        """Fresh memory, large enough for the symbols' values ``key``."""
        return DeviceArena(self._size(key), self._device)

    def tensors(self, arena: DeviceArena, key: Key = ()) -> tuple[torch.Tensor, ...]:
        """The tensors over an arena."""
        assert self._make is not None
        with torch.no_grad():
            return self._make(arena.storage, 0, key)

    def release(self, arena: DeviceArena) -> None:
        """The memory goes back with the last reference."""
