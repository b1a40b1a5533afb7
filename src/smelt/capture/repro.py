"""A graph as a readable and runnable file: FX code, and the construction of its inputs. Plain Python, no
pickle.

`smelt repro FILE` runs it (`smelt.cli.repro`); input values are not the user's but random numbers with a
fixed seed.
"""

from __future__ import annotations

import platform
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.fx import GraphModule

_HEAD = '''\
"""{title}

Compile it, compare with eager, make it smaller: smelt repro FILE (smelt repro --help).
{versions}
"""

from math import inf, nan

import torch
from torch import device
{imports}

def drawn(shape, strides, dtype, seed):
    """A tensor of numbers without a pattern, the same each time."""
    draw, kind = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    count = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, strides))
    if kind.is_floating_point or kind.is_complex:
        wide = torch.complex128 if kind.is_complex else torch.float64
        memory = torch.randn(count, generator=draw, dtype=wide)
    else:
        memory = torch.randint(0, 2, (count,), generator=draw)
    return memory.to(kind).as_strided(shape, strides)

'''

_TAIL = '''

def inputs():
    """The arguments of `Program`, new ones at each call."""
    return [
{inputs}    ]


DYNAMIC = {dynamic}
OPTIONS = {options}

if __name__ == "__main__":
    from smelt.cli.app import main

    raise SystemExit(main(["repro", __file__]))
'''

_GIVEN = {"torch", "device", "inf", "nan", "NoneType"}


def repro_text(
    graph_module: GraphModule,
    inputs: Sequence[Any],
    title: str,
    options: Mapping[str, object],
    dynamic: bool | None = None,
) -> str:
    """The text of the file. ``inputs``: tensors (also fake ones) and numbers; ``options``: of the
    compilation.

    Raises:
        ValueError: the graph holds a value without a text form.

    >>> from smelt.capture import capture_function
    >>> program = capture_function(lambda x: x.sin(), [torch.ones(3)])
    >>> text = repro_text(program.graph_module, program.example_inputs, "a title", {})
    >>> print(text[text.index("class Program") :].split("def inputs")[0].strip())
    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
    <BLANKLINE>
        def forward(self, arg0_1):
            sin = torch.ops.aten.sin.default(arg0_1);  arg0_1 = None
            return (sin,)
    """
    imports: dict[str, str] = {}
    classes: list[str] = []
    _write_class(graph_module, "Program", classes, imports)
    if dynamic is None:
        dynamic = any(_is_symbolic(each) for each in inputs)
    own, python = getattr(sys.modules.get("smelt"), "__version__", "?"), platform.python_version()
    versions = f"Made by smelt {own}, torch {torch.__version__}, Python {python}."
    lines = [f"        {_made(each, seed)},\n" for seed, each in enumerate(inputs)]
    plain = {key: value for key, value in options.items() if isinstance(value, (bool, int, float, str))}
    safe = title.replace("\\", "/").replace('"""', "'''")
    head = _HEAD.format(title=safe, versions=versions, imports="".join(sorted(imports.values())))
    tail = _TAIL.format(inputs="".join(lines), dynamic=dynamic, options=plain)
    return head + "".join(classes) + tail


def _write_class(module: GraphModule, name: str, classes: list[str], imports: dict[str, str]) -> None:
    """The class of a graph, after those of the graphs that it calls."""
    made: list[str] = []
    for node in module.graph.nodes:
        if node.op == "call_module":
            raise ValueError(f"the graph calls the module {node.target}")
        target = str(node.target)
        if node.op != "get_attr" or any(target == line.split("'")[1] for line in made):
            continue
        value: Any = module
        for part in target.split("."):
            value = getattr(value, part)
        if "." in target:
            raise ValueError(f"the constant {target} belongs to another module")
        if isinstance(value, GraphModule):
            inner = f"{name}_{target}"
            _write_class(value, inner, classes, imports)
            made.append(f"self.add_module({target!r}, {inner}())")
        elif isinstance(value, torch.Tensor):
            made.append(f"self.register_buffer({target!r}, {_constant(value)})")
        else:
            raise ValueError(f"the constant {target} is a {type(value).__name__}")
    code = module.graph.python_code("self")
    for known, value in code.globals.items():
        if known not in _GIVEN and re.search(rf"\b{known}\b", code.src):
            imports[known] = _import(known, value)
    body = ["super().__init__()", *made]
    init = textwrap.indent("def __init__(self):\n" + textwrap.indent("\n".join(body), "    "), "    ")
    forward = textwrap.indent("\n".join(line.rstrip() for line in code.src.strip().splitlines()), "    ")
    classes.append(f"\nclass {name}(torch.nn.Module):\n{init}\n\n{_plain(forward)}\n")


def _plain(code: str) -> str:
    """The code without FX's blank lines and notes."""
    return "\n".join(line for line in code.splitlines() if line.strip() and "# No stacktrace" not in line)


def _import(name: str, value: Any) -> str:
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}\n" if value.__name__ != name else f"import {name}\n"
    own, module = getattr(value, "__qualname__", None), getattr(value, "__module__", None)
    if not own or not module or "." in own:
        raise ValueError(f"the graph names {value!r}")
    return f"from {module} import {own} as {name}\n"


def _constant(value: torch.Tensor) -> str:
    """A constant with its values if they are few, else with random ones."""
    dtype = str(value.dtype).removeprefix("torch.")
    if value.numel() <= 64 and value.layout is torch.strided and not value.dtype.is_complex:
        return f"torch.tensor({value.tolist()}, dtype=torch.{dtype})"
    return _made(value, 1000)


def _made(value: Any, seed: int) -> str:
    if not isinstance(value, torch.Tensor):
        found = _number(value)
        if not isinstance(found, (bool, int, float, str, type(None))):
            raise ValueError(f"an input is a {type(value).__name__}")
        return str(found) if isinstance(found, float) else repr(found)
    shape, strides = (tuple(map(_number, each)) for each in (value.shape, value.stride()))
    return f"drawn({shape}, {strides}, {str(value.dtype).removeprefix('torch.')!r}, {seed})"


def _number(value: Any) -> Any:
    """A size at capture; 2 if unknown."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
        return kind(value.node.hint) if value.node.has_hint() else kind(2)
    return value


def _is_symbolic(value: Any) -> bool:
    sizes = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(each, (torch.SymInt, torch.SymFloat, torch.SymBool)) for each in sizes)
