"""The README of a package: what the model takes, and a program that calls it in each language."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smelt.packages.callers import cpp, examples, fortran, python
from smelt.packages.callers.interface import Interface, Tensor


def readme(interface: Interface) -> str:
    return "\n".join(_lines(interface)) + "\n"


def _lines(interface: Interface) -> Iterator[str]:
    name = interface.name
    target = interface.targets[0] if interface.targets else "x86_64-linux"
    yield f"# {name}"
    yield ""
    yield "A model that smelt has compiled: a library, which needs the C library only, its weights, and its"
    yield "sources. A package is code that runs on your machine: use those of people whom you trust."
    yield ""
    yield from _table("Inputs", interface.inputs)
    yield from _table("States: memory of the caller's that a run reads and writes", interface.states)
    yield from _table("Outputs", interface.outputs)
    if interface.sizes:
        yield "| Size | from | to |"
        yield "|---|---|---|"
        for size in interface.sizes:
            yield f"| `{size.name}` | {size.least} | {size.most if size.most < 2**62 else 'any'} |"
        yield ""
    yield "The commands below are given in this folder. Any number of threads may run a loaded model at once,"
    yield "each with states and a workspace of its own (Python, C++ and Rust keep a workspace a thread)."
    yield ""
    yield "## Python"
    yield ""
    yield "```sh"
    yield f"pip install .            # or: PYTHONPATH={'python'}"
    yield f"python -m {python.package_name(interface)}"
    yield "```"
    yield ""
    yield from _code("python", examples.in_python(interface))
    yield "It needs NumPy only. Inputs are arrays, or anything in the CPU's memory with `__dlpack__`; `out=`"
    yield "takes memory for the results."
    yield ""
    yield "## C"
    yield ""
    yield from _code("c", examples.in_c(interface))
    library = f"lib/{target}/lib{name}.a -lm -lpthread"
    yield from _code("sh", f"cc -std=c11 -Iinclude examples/example.c {library} -o example && ./example\n")
    yield "## C++17"
    yield ""
    yield from _code("cpp", examples.in_cpp(interface))
    yield from _code(
        "sh", f"c++ -std=c++17 -Iinclude examples/example.cpp {library} -o example && ./example\n"
    )
    yield f"The fields of `smelt::{cpp.namespace(interface)}::inputs` are views: `{{pointer, {{2, 16}}}}`,"
    yield "`{vector, {2, 16}}`, a `std::mdspan`, or a `smelt::tensor`, which has memory of its own."
    yield ""
    yield "## Rust"
    yield ""
    yield f'The crate is `rust/`: `{name} = {{ path = "{name}.smelt/rust" }}`. It depends on no other.'
    yield ""
    yield from _code("rust", examples.in_rust(interface))
    yield from _code("sh", "cargo run --manifest-path rust/Cargo.toml --example example\n")
    if fortran.supported(interface):
        yield "## Fortran 2008"
        yield ""
        yield "Arrays have their dimensions in reversed order, as Fortran lays them out."
        yield ""
        yield from _code("fortran", examples.in_fortran(interface))
        yield from _code(
            "sh", f"gfortran fortran/{name}.f90 examples/example.f90 {library} -o example && ./example\n"
        )
    yield "## Others"
    yield ""
    yield f"Whatever calls C can call [`include/{name}.h`](include/{name}.h): Go, Swift, Julia, Zig, …"
    yield "[`model.json`](model.json) says the same as the tables above to programs."


def _table(title: str, tensors: Sequence[Tensor]) -> Iterator[str]:
    if tensors:
        yield f"| {title} | | |"
        yield "|---|---|---|"
        for tensor in tensors:
            yield f"| `{tensor.plain}` | {tensor.dtype} | `{tensor.shape_text}` |"
        yield ""


def _code(language: str, text: str) -> Iterator[str]:
    yield f"```{language}"
    yield text.rstrip("\n")
    yield "```"
    yield ""
