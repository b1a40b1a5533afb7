"""Runs tensors of te by the interpreter of nests."""

import torch

from smelt import te
from smelt.nest.interpreter import run_kernel
from smelt.nest.verify import verify
from smelt.te.dtypes import kind_of


def run(tensors, *given, sizes=None):
    """The computed ones of ``tensors``, as the function of them fills them from ``given``, in order."""
    func = te.create_prim_func(tensors)
    verify(func.kernel)
    numbers = dict(sizes or {})
    inputs = iter(given)
    memory, results = {}, []
    for tensor, param in zip(tensors, func.kernel.params):
        if param.written:
            shape = [int(size.subs({s: numbers[s.name] for s in size.free_symbols})) for size in param.shape]
            empty = torch.full(shape, 77).to(kind_of(tensor.dtype))
            results.append(empty)
            memory[param.name] = empty.view(-1)
        else:
            memory[param.name] = next(inputs).reshape(-1).clone()
    run_kernel(func.kernel, memory, {size: numbers[size.name] for size in func.kernel.sizes})
    return results[0] if len(results) == 1 else tuple(results)
