"""Compiles scheduled functions for the tests, and looks at their C++."""

from __future__ import annotations

from typing import Any

import torch

import smelt
from smelt.codegen.cpp.kernel import print_kernel
from smelt.nest.finish import finish
from smelt.nest.ir import Kernel, Param
from smelt.tir import PrimFunc


def cpp_of(kernel: Kernel, lanes: int = 8) -> str:
    """The body of the function that a scheduled kernel becomes."""
    return print_kernel(finish(kernel, lanes)).body


def given_for(params: tuple[Param, ...], seed: int = 0) -> list[torch.Tensor]:
    """Random inputs, and results full of what nobody writes."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for param in params:
        shape = [int(size) for size in param.shape]
        if param.written:
            made.append(torch.full(shape, 77).to(param.dtype))
        elif param.dtype.is_floating_point:
            made.append(torch.randn(shape, generator=generator).to(param.dtype))
        else:
            made.append(torch.randint(-100, 100, shape, generator=generator).to(param.dtype))
    return made


def compiled(thing: Any, *given: torch.Tensor) -> list[torch.Tensor]:
    """The buffers of a function or a schedule after one compiled call."""
    func = thing if isinstance(thing, PrimFunc) else thing.func
    buffers = [each.clone() for each in given or given_for(func.kernel.params)]
    smelt.build(thing)(*buffers)
    return buffers
