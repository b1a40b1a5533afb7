"""The commands of packages and their options; the adjacent modules implement them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from smelt.cli.arguments import SPEC_HELP, Activations, Quantized, Train, options_of
from smelt.errors import SmeltError

_PACKAGE_EXAMPLE = "Example: smelt package benchmarks/zoo.py:tiny -o tiny.smelt --dynamic x=0:batch"
_RUN_EXAMPLE = "Example: smelt run tiny.smelt --input x.npy --output y.npz, or smelt run tiny.smelt --random"
_INSPECT_EXAMPLE = "Example: smelt inspect tiny.smelt"
_VERIFY_EXAMPLE = "Example: smelt verify tiny.smelt --key pub.pem"

app = typer.Typer()

PackagePath = Annotated[
    str, typer.Argument(metavar="PACKAGE", help="The folder of a package.", show_default=False)
]
Key = Annotated[
    str | None, typer.Option("--key", metavar="PEM", help="Check its signature with this public key first.")
]
Sizes = Annotated[
    list[str] | None, typer.Option("--size", metavar="NAME=N", help="A size, such as batch=8; repeatable.")
]


@app.command(epilog=_PACKAGE_EXAMPLE)
def package(
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help=f"{SPEC_HELP} Or a .pt2 file of torch.export.save.")
    ],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FOLDER", help="Unset: NAME.smelt.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The prefix of its C functions; unset: from the folder.")
    ] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            "--dynamic", metavar="ARG=DIM:NAME", help="A size that is not fixed, x=0:batch; repeatable."
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="native, aarch64-linux, x86_64-windows …; repeatable."),
    ] = None,
    level: Annotated[
        list[str] | None,
        typer.Option("--level", help="An instruction set, such as x86-64-v3; repeatable."),
    ] = None,
    train: Train = False,
    quantize: Annotated[
        Quantized | None, typer.Option("--quantize", help="Round the weights; unset: as they are.")
    ] = None,
    activations: Annotated[
        Activations | None, typer.Option("--activations", help="Round inputs of products too.")
    ] = None,
    sign: Annotated[
        str | None, typer.Option("--sign", metavar="PEM", help="Sign it with this private ed25519 key.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="A compile option, such as fusion=false; repeatable."
        ),
    ] = None,
) -> None:
    """Make a package: a library, weights and sources that run without torch, Python and a compiler."""
    from smelt.cli.package import Request
    from smelt.cli.package import package as make

    make(
        Request(
            spec=spec,
            output=output,
            name=name,
            dynamic=dynamic or (),
            targets=target or (),
            levels=level or (),
            train=train,
            quantize=None if quantize is None else quantize.value,
            activations=None if activations is None else activations.value,
            sign=sign,
            options=options_of(option),
        )
    )


@app.command(epilog=_RUN_EXAMPLE)
def run(
    path: PackagePath,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="[NAME=]FILE", help=".npy of an input, or .npz of several; repeatable."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write outputs: .npz, or .npy of one."),
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Random values for the other inputs.")] = False,
    size: Sizes = None,
    states: Annotated[
        bool, typer.Option("--states", help="States, as the run leaves them, are outputs too.")
    ] = False,
    threads: Annotated[int, typer.Option("--threads", min=0, help="0: as many as processors.")] = 0,
    level: Annotated[
        str | None, typer.Option("--level", help="An instruction set; unset: the best that is here.")
    ] = None,
    key: Key = None,
) -> None:
    """Run a package once on arrays of NumPy, without torch.

    A package is machine code: run only those of people that you trust.
    """
    from smelt.cli.package_run import Request
    from smelt.cli.package_run import run as start

    start(
        Request(
            path=path,
            inputs=inputs or (),
            output=output,
            random=random,
            sizes=size or (),
            threads=threads,
            level=level,
            states=states,
            key=key,
        )
    )


@app.command(epilog=_INSPECT_EXAMPLE)
def inspect(
    path: PackagePath,
    as_json: Annotated[bool, typer.Option("--json", help="Print plain data instead of tables.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="All kernels with their lines.")] = False,
) -> None:
    """Tell what a package takes, gives and holds, and whether its files are as its manifest says."""
    from smelt.cli.package_inspect import inspect as show

    raise typer.Exit(show(path, as_json=as_json, all_kernels=kernels))


@app.command(epilog=_VERIFY_EXAMPLE)
def verify(path: PackagePath, key: Key = None) -> None:
    """Check every file of a package against its manifest, and with a public key who signed it."""
    from smelt.cli.package_inspect import verify as check

    check(path, key)


def bench(
    path: str,
    vs: list[str] | None,
    sizes: list[str] | None,
    threads: int | None,
    seconds: float,
    options: Mapping[str, Any],
    json_to: str | None,
    others: Mapping[str, object],
) -> None:
    """``smelt bench`` of a package. ``others``: options that only programs have.

    Raises:
        SmeltError: SM1428, one of those is given.
    """
    from smelt.cli.package_bench import Request
    from smelt.cli.package_bench import bench as run

    for name, given in others.items():
        if given:
            raise SmeltError("SM1428", f"{name} is not for a package", remedy="smelt bench SPEC has it")
    if len(vs or ()) > 1:
        raise SmeltError("SM1428", "a package is measured against one SPEC: give --vs once")
    run(Request(path, vs[0] if vs else None, sizes or (), threads, seconds, options), json_to)
