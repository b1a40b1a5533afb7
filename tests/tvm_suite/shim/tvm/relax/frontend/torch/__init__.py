"""TVM's importers of PyTorch programs; what they give remembers the model (see ``tvm.relax.running``)."""

import functools

import torch
from torch.export import exported_program

from smelt.relax.frontend import torch as ours
from tvm.relax.running import detach_params as detach_params
from tvm.relax.running import random_tensor, remember


def from_fx(model, input_info, **options):
    mod = ours.from_fx(model, input_info, **options)
    examples = [random_tensor([_number(size) for size in shape], dtype) for shape, dtype in input_info]
    return remember(mod, model, examples)


def _number(size):
    return size if isinstance(size, int) else 6


def from_exported_program(program, **options):
    mod = ours.from_exported_program(program, **options)
    if options.get("custom_convert_map"):  # whose functions may import something else
        return mod
    return remember(mod, program.module(), program.example_inputs[0])


# Once, before tests are forked. PyTorch lists its composite operators anew at each import of a program.
exported_program._collect_all_valid_cia_ops = functools.lru_cache(exported_program._collect_all_valid_cia_ops)
ours.from_exported_program(torch.export.export(torch.nn.ReLU(), (torch.ones(1),)))
