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
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
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
        with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as code:
            module.operation.write_bytecode(code)
            code.flush()
            self.printed = os.dup(printed.fileno())
            self.link, self.number = _server().fork(printed.fileno(), code.fileno())
        try:
            self.results = self._ask((stages, returned, printing), limit)
        finally:
            if printing:
                sys.stderr.write(os.pread(self.printed, 1 << 30, 0).decode(errors="replace"))

    def call(self, values: Sequence[Any], limit: float) -> list[Any]:
        """The results of the function."""
        return self._ask(_plain(values), limit)

    def _ask(self, message: Sequence[Any], limit: float) -> list[Any]:
        self.link.settimeout(limit)
        try:
            _send(self.link, *message)
            results, error = _receive(self.link)
        except TimeoutError:
            self.close()
            raise EndedError(f"did not end within {limit:.0f} s", late=True) from None
        except (EOFError, OSError):
            text = os.pread(self.printed, 1 << 20, 0).decode(errors="replace").strip()
            status = self.close()
            how = f"({signal.Signals(-status).name})" if status < 0 else f"(status {status})"
            raise EndedError(f"crashed {how}", text[-400:]) from None
        if error is not None:
            raise _raised(*error)
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
        self.link, other = socket.socketpair()
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

    def fork(self, *files: int) -> tuple[socket.socket, int]:
        """A new process: its socket and number. ``files`` are passed to it."""
        here, there = socket.socketpair()
        with self.lock, there:
            socket.send_fds(self.link, [b"f"], [there.fileno(), *files])
            return here, int(self._answer())

    def wait(self, number: int) -> int:
        """End a process; returns its exit status."""
        with self.lock:
            self.link.sendall(b"w" + number.to_bytes(8, "little"))
            return int(self._answer())

    def _answer(self) -> str:
        return b"".join(iter(lambda: self.link.recv(1), b"\n")).decode()

    @property
    def usable(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None


_servers: list[_Server] = []
_starting = threading.Lock()


def _server() -> _Server:
    """The server of this process."""
    with _starting:
        if not _servers or not _servers[0].usable:
            _servers[:] = [_Server()]
        return _servers[0]


# -- messages ---------------------------------------------------------------------------------------


def _send(link: socket.socket, *message: Any) -> None:
    code = pickle.dumps(message)
    link.sendall(len(code).to_bytes(8, "little") + code)


def _receive(link: socket.socket) -> Any:
    """
    Raises:
        EOFError: the other end is closed.
    """
    return pickle.loads(_bytes(link, int.from_bytes(_bytes(link, 8), "little")))


def _bytes(link: socket.socket, count: int) -> bytearray:
    found, done = bytearray(count), 0
    while done < count:
        more = link.recv_into(memoryview(found)[done:])
        if more == 0:
            raise EOFError
        done += more
    return found


def _plain(values: Sequence[Any]) -> list[Any]:
    """Tensors with contiguous memory, and numbers."""
    return [
        each.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        if isinstance(each, torch.Tensor)
        else each
        for each in values
    ]


def _raised(kind: type[Exception], args: tuple[Any, ...], fields: dict[str, Any]) -> Exception:
    """An exception that another process reported."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


# -- in the other processes -------------------------------------------------------------------------


def serve(number: int) -> None:
    """Fork a process for each ``f``, end one for each ``w``, until the other end is closed."""
    bindings.new_context()  # loads the bindings; it has no threads until a pass runs
    load_conversions()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=number) as link:
        while True:
            asked, files, _, _ = socket.recv_fds(link, 1, 3)
            if not asked:
                return
            if asked == b"w":
                link.sendall(b"%d\n" % _end(int.from_bytes(link.recv(8, socket.MSG_WAITALL), "little")))
                continue
            child = os.fork()
            if child == 0:
                link.close()
                with contextlib.suppress(BaseException):
                    _work(*files)
                os._exit(0)
            for file in files:
                os.close(file)
            link.sendall(b"%d\n" % child)


def _end(child: int) -> int:
    """Wait briefly for a process to end, then kill it."""
    for _ in range(50):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _work(link_number: int, printed: int, code: int) -> None:
    """Serve one module: build it first, then answer calls."""
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    run: Callable[..., list[Any]] | None = None
    with socket.socket(fileno=link_number) as link:
        while True:
            message = _receive(link)
            results: list[Any] = []
            failed = None
            try:
                if run is None:
                    stages, returned, printing = message
                    module = _brought(code, stages, printing)
                    if returned:
                        results = [_bytecode(module)]
                    else:
                        run = partial(Executable(module))
                else:
                    results = _plain(run(*message))
            except Exception as error:
                known = type(error).__module__.startswith(("builtins", "smelt."))
                failed = (
                    (type(error), error.args, error.__dict__) if known else (RuntimeError, (str(error),), {})
                )
            _send(link, results, failed)


def _brought(code: int, stages: Sequence[Stage], printing: bool) -> Any:
    """The module in the file ``code`` after the stages have run."""
    with os.fdopen(code, "rb") as file:
        file.seek(0)
        module = ir.Module.parse(file.read(), context=bindings.new_context())
    for pipeline, what in stages:
        run_pipeline_with_repro_report(module, pipeline, what, printing)
    return module


def _bytecode(module: Any) -> bytes:
    file = io.BytesIO()
    module.operation.write_bytecode(file)
    return file.getvalue()
