"""Compilation and execution of a module in a separate process, which may crash or hang.

A server with loaded bindings is started once and forks a process for each module. Messages are pickled, since
both ends are this program. A crash or a timeout of such a process becomes an error here that names the
operation at fault: the last of the shortest prefix that fails.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import torch

from smelt.errors import SmeltError
from smelt.mlir import bindings
from smelt.mlir.bindings import ir
from smelt.mlir.bisection import first_operation
from smelt.mlir.diagnostics import (
    run_pipeline_with_repro_report,
    write_reproducer,
)
from smelt.mlir.execute import Executable, load_conversions

COMPILE_LIMIT, CALL_LIMIT = 300.0, 1800.0
"""Time limits in seconds for compilation, and for each call."""
SEARCH_LIMIT = 10.0
"""Time limit in seconds for each step of the search for the operation that crashes or hangs."""

Stage = tuple[str, str]
"""A pass pipeline, and its purpose for messages."""


class EndedError(Exception):
    """The process of a module has ended. ``how``: ``crashed (SIGSEGV)`` or ``did not end within 300 s``."""

    def __init__(self, how: str, printed: str = "", late: bool = False) -> None:
        super().__init__(how)
        self.how, self.printed, self.late = how, printed, late


class IsolatedExecutable:
    """`smelt.mlir.execute.Executable` in another process, for a module that ``stages`` lower to Linalg.

    Raises:
        PipelineError: SM0712, a pipeline failed.
        SmeltError: SM0740 the process crashed, SM0741 it took too long; SM0743 there is no process.
    """

    def __init__(self, module: Any, stages: Sequence[Stage]) -> None:
        self.module, self.stages = module, tuple(stages)
        try:
            self.process = _Process(module, stages, COMPILE_LIMIT)
        except EndedError as ended:
            raise _error(
                ended, module, stages, "compiling", lambda part: _Process(part, stages, SEARCH_LIMIT)
            ) from None

    def __call__(self, *values: Any) -> list[Any]:
        """The results for these arguments; raises the exceptions of the compiled function."""
        if self.process.ended:
            self.process = _Process(self.module, self.stages, COMPILE_LIMIT)
        try:
            return self.process.call(values, CALL_LIMIT)
        except EndedError as ended:

            def attempt(part: Any) -> None:
                _Process(part, self.stages, SEARCH_LIMIT).call(values, SEARCH_LIMIT)

            raise _error(ended, self.module, self.stages, "running", attempt) from None


def transformed(module: Any, stages: Sequence[Stage], printing: bool = False) -> Any:
    """A module after ``stages``, which run in another process; the result is in the context of ``module``.

    ``printing``: print the module after each pass, on standard error.

    Raises:
        PipelineError: SM0712, a pipeline failed.
        SmeltError: SM0740 the process crashed, SM0741 it took too long; SM0743 there is no process.
    """
    try:
        process = _Process(module, stages, COMPILE_LIMIT, returned=True, printing=printing)
    except EndedError as ended:

        def attempt(part: Any) -> None:
            _Process(part, stages, SEARCH_LIMIT, returned=True)

        raise _error(ended, module, stages, "compiling", attempt) from None
    (code,) = process.results
    return ir.Module.parse(code, context=module.context)


def _error(
    ended: EndedError, module: Any, stages: Sequence[Stage], doing: str, attempt: Callable[[Any], Any]
) -> SmeltError:
    """The error of a process that ended while ``doing`` something; ``attempt`` repeats it with a prefix."""

    def fails(part: Any) -> bool:
        try:
            attempt(part)
        except EndedError:
            return True
        except Exception:  # an error other than the one searched for
            return False
        return False

    name, where = first_operation(module, fails)
    pipeline = stages[0][0] if stages else "builtin.module()"
    path = write_reproducer(module.operation, pipeline)
    return SmeltError(
        "SM0741" if ended.late else "SM0740",
        f"{doing} the module {ended.how}" + ("" if name is None else f" at {name}"),
        where=where,
        why=ended.printed or None,
        remedy=f'export to "linalg"; torch-mlir-opt --run-reproducer {path}',
    )


class _Process:
    """A forked process that builds a module, and then answers calls or returns the module (``returned``)."""

    def __init__(
        self,
        module: Any,
        stages: Sequence[Stage],
        limit: float,
        returned: bool = False,
        printing: bool = False,
    ) -> None:
        self.ended = False
        with tempfile.TemporaryFile() as printed:
            self.printed = os.dup(printed.fileno())
        self.link, self.number = _server().fork(self.printed)
        try:
            self.results = self._ask(limit, pickle.dumps((stages, returned, printing)), _bytecode(module))
        finally:
            if printing:
                sys.stderr.write(os.pread(self.printed, 1 << 30, 0).decode(errors="replace"))

    def call(self, values: Sequence[Any], limit: float) -> list[Any]:
        """The results of the function."""
        return self._ask(limit, pickle.dumps(_plain(values)))

    def _ask(self, limit: float, *messages: bytes) -> list[Any]:
        try:
            for message in messages:
                self.link.send_bytes(message)
            if not self.link.poll(limit):
                self.close()
                raise EndedError(f"did not end within {limit:.0f} s", late=True)
            results, error = pickle.loads(self.link.recv_bytes())
        except (EOFError, OSError):
            text = os.pread(self.printed, 1 << 20, 0).decode(errors="replace").strip()
            status = self.close()
            how = f"({signal.Signals(-status).name})" if status < 0 else f"(status {status})"
            raise EndedError(f"crashed {how}", text[-400:]) from None
        if error is not None:
            raise error
        return results  # type: ignore[no-any-return]

    def close(self) -> int:
        """End the process; returns its exit status."""
        self.ended = True
        self.link.close()
        os.close(self.printed)
        return _server().wait(self.number)

    def __del__(self) -> None:
        if not getattr(self, "ended", True):
            with contextlib.suppress(Exception):  # the interpreter may be shutting down
                self.close()


class _Server:
    """The process that forks; it ends with this process."""

    def __init__(self) -> None:
        self.owner, self.lock = os.getpid(), threading.Lock()
        self.link, other = Pipe()
        start = f"import sys; sys.path[:] = {sys.path!r}; from smelt.mlir.isolated import serve"
        start += f"; serve({other.fileno()})"
        try:
            with other:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", start],
                    pass_fds=[other.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
        except OSError as error:
            what = "no process can be started, and a module of this dialect runs in one of its own"
            raise SmeltError("SM0743", what, why=str(error), remedy='export to "linalg"') from error

    def fork(self, printed: int) -> tuple[Connection, int]:
        """A new process, which prints to a file: the connection to it, and its number."""
        here, there = Pipe()
        with self.lock, there:
            self.link.send(_FORK)
            for file in (there.fileno(), printed):
                send_handle(self.link, file, self.process.pid)
            return here, self.link.recv()

    def wait(self, number: int) -> int:
        """End a process; returns its exit status."""
        with self.lock:
            self.link.send(number)
            return int(self.link.recv())

    @property
    def usable(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None


_FORK = 0
"""The message for a new process; other messages are the numbers of processes to end."""

_servers: list[_Server] = []
_starting = threading.Lock()


def _server() -> _Server:
    """The server of this process."""
    with _starting:
        if not _servers or not _servers[0].usable:
            _servers[:] = [_Server()]
        return _servers[0]


def _plain(values: Sequence[Any]) -> list[Any]:
    """Tensors with contiguous memory, and numbers."""
    return [
        each.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        if isinstance(each, torch.Tensor)
        else each
        for each in values
    ]


def _bytecode(module: Any) -> bytes:
    file = io.BytesIO()
    module.operation.write_bytecode(file)
    return file.getvalue()


# -- in the other processes -------------------------------------------------------------------------


def serve(number: int) -> None:
    """Fork and end processes as asked, until the other end is closed."""
    bindings.new_context()  # loads the bindings; it has no threads until a pass runs
    load_conversions()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Connection(number) as link, contextlib.suppress(EOFError):
        while True:
            asked = link.recv()
            if asked != _FORK:
                link.send(_end(asked))
                continue
            files = recv_handle(link), recv_handle(link)
            child = os.fork()
            if child == 0:
                link.close()
                with contextlib.suppress(BaseException):
                    _work(*files)
                os._exit(0)
            for file in files:
                os.close(file)
            link.send(child)


def _end(child: int) -> int:
    """Wait briefly for a process to end, then kill it."""
    for _ in range(50):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _work(link_number: int, printed: int) -> None:
    """Serve one module: build it first, then answer calls."""
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    run: Callable[..., list[Any]] | None = None
    with Connection(link_number) as link:
        while True:
            message = pickle.loads(link.recv_bytes())
            results: list[Any] = []
            failed = None
            try:
                if run is not None:
                    results = _plain(run(*message))
                    continue
                stages, returned, printing = message
                module = ir.Module.parse(link.recv_bytes(), context=bindings.new_context())
                for pipeline, what in stages:
                    run_pipeline_with_repro_report(module, pipeline, what, printing)
                if returned:
                    results = [_bytecode(module)]
                else:
                    run = Executable(module)
            except Exception as error:
                known = type(error).__module__.startswith(("builtins", "smelt."))
                failed = error if known else RuntimeError(str(error))
            finally:
                link.send_bytes(pickle.dumps((results, failed)))
