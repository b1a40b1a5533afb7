"""The backend of ``torch.compile(model, backend="smelt")`` (entry point ``torch_dynamo_backends``)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.fx import GraphModule

from smelt import config as configuration
from smelt import logs
from smelt.capture import (
    Compiled,
    CompileProgram,
    Program,
    by_pytorch,
    capture_aot,
    floats_settled,
)
from smelt.capture.bugs import (
    Blamed,
    blamed_call,
    bug_of_graph,
    bug_of_program,
    is_bug,
    is_bug_of_run,
    or_by_pytorch,
)
from smelt.capture.memory import with_plain_gradients, without_memory
from smelt.clusters import is_in_clusters
from smelt.config import Config
from smelt.contract import Denied, decompositions, whole_attention
from smelt.errors import InternalError, SmeltError, Unsupported
from smelt.pipeline import Instead, compile_program
from smelt.pipeline.targets import CodeTarget
from smelt.reporting import LOG, CompileReport
from smelt.runtime import probe, trampoline
from smelt.runtime.garbage import garbage_waits
from smelt.schedule.graph.ordered import not_strict

MACHINE = ("SM0201", "SM0205", "SM0208", "SM0209", "SM0507", "SM0508")
"""Errors of the machine, not of a program: no compiler, or one that hangs, no writable directory, no
executable one, a GPU's driver or Triton. PyTorch can run the program all the same.
"""

_MOST_REFUSED = 8
"""Limit on the calls of one program that are left to PyTorch, one after another, because each broke
compilation.
"""

_numbers = itertools.count()


def smelt(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, object] | None = None,
    **more: object,
) -> Callable[..., Any]:
    """Compiles one Dynamo graph; returns its replacement.

    Options are the fields of `smelt.config.Config`. If the machine cannot compile (`MACHINE`), or smelt does
    not support the graph (another device …), PyTorch runs the graph: that is logged once and reported in
    `smelt.reports()`.

    The same happens after a bug of smelt, with a reproducer file (`smelt.capture.bugs`).

    Raises:
        SmeltError: SM0101, SM0102 a wrong option, SM0103 a wrong ``SMELT_LOG``, SM0202, SM0203, SM0301 to
            SM0303 a compiler or a cache that cannot be used; with ``SMELT_STRICT=1`` SM0505, SM0506 a bug.
    """
    config = config_from(mode, {**(options or {}), **more})
    trampoline.start()  # the first time on a machine these compile while AOTAutograd traces
    probe.start()
    with garbage_waits():
        instead = None if config.ordered else _instead
        compile_next = partial(compile_program, called_next=True, instead=instead)
        return compile_graph(graph_module, example_inputs, config, compile_next)


def backend_for(target: CodeTarget, instead: Instead | None = None) -> Callable[..., Callable[..., Any]]:
    """A backend for ``torch.compile`` with kernels of another target than C++; its options are `smelt`'s.

    PyTorch runs all calls that the target does not support. ``instead``: gets the error of a program whose
    kernels cannot be made, and gives what runs it; None: PyTorch does.
    """

    def backend(
        graph_module: GraphModule, example_inputs: Sequence[Any], *, options: dict[str, object] | None = None
    ) -> Callable[..., Any]:
        compile_next = partial(compile_program, target=target, instead=instead or _instead)
        return compile_graph(graph_module, example_inputs, config_from(None, options or {}), compile_next)

    return backend


def config_from(mode: str | None, options: dict[str, object]) -> Config:
    """The configuration of one compilation; also applies ``SMELT_LOG``."""
    logs.configure()
    return configuration.from_options(options if mode is None else {"mode": mode, **options})


def compile_graph(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    config: Config,
    compile_program: Callable[[Program, Config], Compiled],
) -> Callable[..., Any]:
    """`smelt` with the pipeline as an argument."""
    name = f"graph {next(_numbers)}"
    denied = Denied.of(config)
    denied.mark(graph_module)
    reason = without_memory(graph_module, example_inputs)
    if reason is not None:
        _record_eager(Program(graph_module, "inference", (), (), name), reason)
        return graph_module.forward
    try:
        LOG.entered = time.perf_counter()
        with (
            floats_settled(graph_module, example_inputs) as inputs,
            whole_attention(graph_module.graph, config),
        ):
            table = denied.table(decompositions())
            compile_or_leave = guarded(compile_program, config, _leave)
            return capture_aot(graph_module, inputs, compile_or_leave, table, name)
    except _RunEagerly as left:
        # The whole of Dynamo's graph, not AOTAutograd's: eager PyTorch as the user knows it.
        _record_eager(left.program, left.reason)
        return graph_module.forward
    except InternalError:
        raise
    except Exception as error:
        if not is_bug_of_run(error):
            raise  # PyTorch's, or an error of eager too
        found = bug_of_graph(error, graph_module, example_inputs, config)
        _record_eager(Program(graph_module, "inference", (), (), name), str(found))
        return graph_module.forward


class _RunEagerly(Exception):  # noqa: N818  (no error: the way out of AOTAutograd, to where Dynamo's graph is)
    def __init__(self, program: Program, reason: str) -> None:
        self.program, self.reason = program, reason
        super().__init__(reason)


def compile_alone(program: Program, config: Config) -> Compiled:
    """Compiles a program that no AOTAutograd waits for (an exported one); PyTorch runs unsupported ones."""
    instead = None if config.ordered else _instead
    return guarded(partial(compile_program, instead=instead), config, _by_pytorch)(program)


def guarded(
    compile_program: Callable[..., Compiled], config: Config, leave: Callable[[Program, str], Compiled]
) -> CompileProgram:
    """``compile_program`` that never fails because of a program, a machine (`MACHINE`) or a bug of smelt.

    A call that breaks it is left to PyTorch, and the rest compiled; ``leave`` makes the executor of a program
    of which nothing is compiled, given the reason.
    """

    def compile_or_leave(program: Program) -> Compiled:
        left: dict[Blamed, str] = {}
        while True:
            try:
                compiled = compile_program(program, config, **({"refused": left} if left else {}))
            except Unsupported as error:
                reason, blamed = error.reason, blamed_call(error)
            except Exception as error:
                if isinstance(error, SmeltError) and error.code in MACHINE:
                    reason, blamed = str(error), None
                elif is_bug(error):
                    reason, blamed = str(bug_of_program(error, program, config)), blamed_call(error)
                else:
                    raise
            else:
                break
            if blamed is None or blamed in left or len(left) == _MOST_REFUSED:
                if config.ordered:
                    raise not_strict(program.name, f"PyTorch would run it: {reason}")
                return leave(program, reason)
            left[blamed] = reason  # the rest is compiled without this call
            LOG.forget(program.name)
        guarded = is_in_clusters(compiled)
        if program.kind == "backward":
            compiled = with_plain_gradients(compiled, program)
        if guarded:
            return compiled
        record = partial(_record_eager, program)
        return or_by_pytorch(compiled, program, config, by_pytorch(program), record)

    return compile_or_leave


def _leave(program: Program, reason: str) -> Compiled:
    """The executor of a program of which nothing is compiled.

    Raises:
        _RunEagerly: PyTorch has to run the whole of Dynamo's graph.
    """
    if program.kind != "backward":
        raise _RunEagerly(program, reason)
    # The forward is compiled already and passes its saved values: PyTorch runs this one graph.
    return _by_pytorch(program, reason)


def _by_pytorch(program: Program, reason: str) -> Compiled:
    _record_eager(program, reason)
    return by_pytorch(program)


def _instead(program: Program, error: SmeltError) -> Compiled:
    """The executor of a program whose compilation failed at its first call: AOTAutograd has its graph."""
    if error.code not in MACHINE:
        raise error
    return _by_pytorch(program, str(error))


def _record_eager(program: Program, reason: str) -> None:
    first_line = reason.splitlines()[0]
    report = LOG.last(program.name)
    if report is None:
        report = CompileReport("eager", program.name)
        LOG.add(report)
    report.kind = "eager"
    report.fallbacks.clear()
    report.regions.clear()
    report.add_fallback("graph", first_line)
    if "fx" not in report.stages():
        report.keep_text("fx", lambda: program.graph_module.print_readable(print_output=False))
    text = reason if reason.startswith("SM") else f"SM0602: smelt cannot compile this graph: {reason}"
    if LOG.first_time(text.splitlines()[0]):
        logs.logger.warning("smelt: %s\n  PyTorch runs it instead (said once; see smelt.reports())", text)
