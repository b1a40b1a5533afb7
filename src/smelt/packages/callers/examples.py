"""Programs that call a package, one for each language: files of the package, which its README shows."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.packages.callers import cpp, fortran, python, rust
from smelt.packages.callers.interface import Interface, Tensor
from smelt.packages.callers.library import CODES

_TAKEN = ("model", "inputs", "outputs", "states", "sizes", "shape", "bytes", "workspace", "np", "error")
C_ELEMENTS = {
    **{name: kind.removeprefix("std::") for name, kind in cpp.ELEMENTS.items()},
    "bool": "uint8_t",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "float8_e4m3fn": "uint8_t",
    "float8_e5m2": "uint8_t",
    "complex64": "float",
    "complex128": "double",
}


def _locals(names: Sequence[str]) -> list[str]:
    """Names for an example's variables: those that examples have already get a ``_``."""
    taken = {"check", "i", "info", "main", "zeros", *_TAKEN}
    return [f"{name}_" if name in taken else name for name in names]


def _value(interface: Interface, tensor: Tensor) -> int | float | None:
    """What an example fills an input with; None: zeros."""
    if tensor.rank == 0 and tensor.dtype == "int64":  # a number that is a size
        return next((size.example for size in interface.sizes if size.name == tensor.name), 1)
    code = CODES[tensor.dtype][0]
    if code in (0, 1, 6):
        return 1
    return 0.5 if tensor.dtype in ("float32", "float64") else None


def _shape(interface: Interface, tensor: Tensor) -> str:
    return ", ".join(map(str, interface.example_shape(tensor)))


def _comment(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tensor.shape_text}"


def _state_sizes(interface: Interface) -> list[int]:
    examples = {size.name: size.example for size in interface.sizes}
    return [examples[size] for size in cpp.state_sizes(interface) or []]


def in_python(interface: Interface) -> str:
    module = python.package_name(interface)
    inputs = _locals([*python.argument_names(interface)[0]])
    lines = ["import numpy as np", "", f"import {module}", "", f"model = {module}.load()"]
    for tensor, name in zip(interface.inputs, inputs):
        shape = tuple(interface.example_shape(tensor))
        container = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}.get(tensor.dtype)
        dtype = f"np.{container or tensor.dtype}" if tensor.dtype != "bool" else "bool"
        value = _value(interface, tensor)
        lines.append(f"{name} = np.full({shape}, {value or 0}, {dtype})  # {_comment(tensor)}")
    sizes = cpp.state_sizes(interface)
    if interface.states and sizes:
        given = ", ".join(f"{size}={value}" for size, value in zip(sizes, _state_sizes(interface)))
        text = f"**{{{', '.join(f'{s!r}: {v}' for s, v in zip(sizes, _state_sizes(interface)))}}}"
        given = given if all(size.isidentifier() for size in sizes) else text
        lines.append(f"model.states.update(model.new_states({given}))  # kept from call to call")
    lines += [f"outputs = model({', '.join(inputs)})", ""]
    for tensor, name in zip(interface.outputs, python.output_names(interface)):
        first = f"outputs.{name}.ravel()[:1]"
        lines.append(f'print("{tensor.plain}", outputs.{name}.shape, {first})')
    return "\n".join(lines) + "\n"


def in_c(interface: Interface) -> str:
    name, upper = interface.name, interface.name.upper()
    lines = [
        f'#include "{name}.h"',
        "",
        "#include <stdio.h>",
        "#include <stdlib.h>",
        "",
        "static void check(int code) {",
        "  if (code == 0) return;",
        f'  fprintf(stderr, "%s\\n", {name}_last_error());',
        "  exit(1);",
        "}",
        "",
        "static DLTensor zeros(const smelt_tensor_info* info, const int64_t* shape) {",
        "  DLTensor made = {NULL, {kDLCPU, 0}, info->rank, info->dtype, NULL, NULL, 0};",
        "  size_t bytes = info->dtype.bits / 8;",
        "  made.shape = malloc(((size_t)info->rank + 1) * sizeof(int64_t));",
        "  for (int32_t d = 0; d < info->rank; d++) bytes *= (size_t)(made.shape[d] = shape[d]);",
        "  made.data = calloc(bytes + 16, 1);",
        "  return made;",
        "}",
        "",
        "int main(void) {",
        f"  {name}* model;",
        f'  check({name}_create("weights.safetensors", NULL, &model));',
        "",
        f"  DLTensor inputs[{max(1, len(interface.tensors))}], outputs[{max(1, len(interface.outputs))}];",
    ]
    if not interface.tensors:
        lines.append("  (void)inputs;")
    tensors = interface.inputs + interface.outputs
    variables = iter(_locals(cpp.field_names(tensors, "tensor")))
    for tensor, field in zip(interface.inputs, variables):
        shape = f"(int64_t[]){{{_shape(interface, tensor)}}}" if tensor.rank else "NULL"
        count = " * ".join(map(str, interface.example_shape(tensor))) or "1"
        element, value = C_ELEMENTS[tensor.dtype], _value(interface, tensor)
        lines.append(f"  inputs[{tensor.number}] = zeros({name}_input({tensor.number}), {shape});")
        if value is None:
            lines.append(f"  /* {field}: {_comment(tensor)} */")
        else:
            lines += [
                f"  {element}* {field} = inputs[{tensor.number}].data; /* {_comment(tensor)} */",
                f"  for (int64_t i = 0; i < {count}; i++) {field}[i] = {_literal(tensor, value)};",
            ]
    for tensor in interface.states:
        number = tensor.number
        shape = f"(int64_t[]){{{_shape(interface, tensor)}}}" if tensor.rank else "NULL"
        lines.append(
            f"  inputs[{number}] = zeros({name}_input({number}), {shape}); "
            f"/* {tensor.plain}: {_comment(tensor)}, a state */"
        )
        if tensor.initial:
            lines.append(f"  check({name}_initial(model, {number}, inputs[{number}].data));")
    most = max([1, *(tensor.rank for tensor in interface.outputs)])
    lines += [
        "",
        f"  int64_t sizes[{max(1, len(interface.sizes))}], shape[{most}];",
        f"  check({name}_sizes(inputs, sizes));",
        f"  for (int32_t i = 0; i < {upper}_OUTPUTS; i++) {{",
        f"    check({name}_output_shape(sizes, i, shape));",
        f"    outputs[i] = zeros({name}_output(i), shape);",
        "  }",
        f"  int64_t bytes = {name}_workspace_bytes(model, sizes);",
        "  check(bytes < 0);",
        "  void* workspace = aligned_alloc(SMELT_ALIGNMENT, (size_t)bytes / 64 * 64 + 64);",
        f"  check({name}_run(model, inputs, outputs, workspace, (size_t)bytes));",
        "",
    ]
    for number, (tensor, field) in enumerate(zip(interface.outputs, variables)):
        element = C_ELEMENTS[tensor.dtype]
        lines += [
            f"  const {element}* {field} = outputs[{number}].data; /* {_comment(tensor)} */",
            f'  printf("{tensor.plain} %.9g\\n", (double){field}[0]);',
        ]
    lines += [f"  {name}_destroy(model);", "  return 0;", "}"]
    return "\n".join(lines) + "\n"


def _literal(tensor: Tensor, value: float) -> str:
    return f"{value}f" if tensor.dtype == "float32" else str(value)


def in_cpp(interface: Interface) -> str:
    scope = f"smelt::{cpp.namespace(interface)}"
    lines = [f'#include "{interface.name}.hpp"', "", "#include <iostream>", "", "int main() try {"]
    lines.append(f'  const {scope}::model model("weights.safetensors");')
    fields = _locals(cpp.field_names(interface.inputs, "input"))
    for tensor, field in zip(interface.inputs, fields):
        kind = f"smelt::tensor<{cpp.ELEMENTS[tensor.dtype]}, {tensor.rank}>"
        shape = f"({{{_shape(interface, tensor)}}})" if tensor.rank else ""
        lines.append(f"  {kind} {field}{shape};  // {tensor.shape_text}")
        value = _value(interface, tensor)
        if value is not None:
            text = ("true" if value else "false") if tensor.dtype == "bool" else _literal(tensor, value)
            lines.append(f"  for (auto& element : {field}) element = {text};")
    given = f"{{{', '.join(fields)}}}"
    if interface.states:
        lines.append(
            f"  const auto states = model.new_states({', '.join(map(str, _state_sizes(interface)))});"
        )
        given += ", states"
    lines += ["", f"  const auto outputs = model({given});"]
    for tensor, field in zip(interface.outputs, cpp.field_names(interface.outputs, "output")):
        element = f"outputs.{field}.data()[0]"
        if tensor.dtype in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
            element += ".bits"
        elif CODES[tensor.dtype][1] == 8:
            element = f"int({element})"
        lines.append(f'  std::cout << "{tensor.plain} " << {element} << "\\n";')
    lines += [
        "} catch (const smelt::error& error) {",
        '  std::cerr << error.what() << "\\n";',
        "  return 1;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def in_rust(interface: Interface) -> str:
    crate = rust.crate_name(interface)
    elements = {rust.ELEMENTS[tensor.dtype].split("<")[0] for tensor in interface.inputs}
    tensors = {"Tensor", *(element for element in elements if element[0].isupper())}
    used = sorted({"Error", "Inputs", "Model", "WEIGHTS"} | (tensors if interface.inputs else set()))
    lines = [
        f"use {crate}::{{{', '.join(used)}}};",
        "",
        "fn main() -> Result<(), Error> {",
        "    let model = Model::load(WEIGHTS)?;",
    ]
    fields = rust.field_names(interface.inputs, "input")
    given = []
    for tensor, argument, field in zip(interface.inputs, fields, _locals(fields)):
        kind = f"Tensor<{rust.ELEMENTS[tensor.dtype]}, {tensor.rank}>"
        value = _value(interface, tensor)
        mutable = "" if value is None else "mut "
        lines.append(
            f"    let {mutable}{field}: {kind} = Tensor::zeros([{_shape(interface, tensor)}])?; "
            f"// {tensor.shape_text}"
        )
        if value is not None:
            text = "true" if tensor.dtype == "bool" else str(value)
            lines.append(f"    {field}.data_mut().fill({text});")
        given.append(f"{argument}: {field}.view()")
    if interface.states:
        lines.append(
            f"    let mut states = model.new_states({', '.join(map(str, _state_sizes(interface)))})?;"
        )
    passed = ", &mut states.views()" if interface.states else ""
    lines += [
        "",
        f"    let inputs = Inputs {{ {', '.join(given) or 'none: std::marker::PhantomData'} }};",
        f"    let outputs = model.run(&inputs{passed})?;",
    ]
    for tensor, field in zip(interface.outputs, rust.field_names(interface.outputs, "output")):
        place = f"outputs.{field}"
        lines.append(
            f'    println!("{tensor.plain} {{:?}} {{:?}}", {place}.shape(), {place}.data().first());'
        )
    lines += ["    Ok(())", "}"]
    return "\n".join(lines) + "\n"


def in_fortran(interface: Interface) -> str:
    module = fortran.module_name(interface)
    inputs, outputs, _ = fortran.argument_names(interface)
    lines = [
        "program example",
        "  use iso_c_binding",
        f"  use {module}",
        "  implicit none",
        "  type(model_t) :: model",
    ]
    fills = []
    for tensor, name in zip(interface.inputs, inputs):
        kind = fortran.ELEMENTS[tensor.dtype]
        value = _value(interface, tensor)
        text = ".true." if tensor.dtype == "bool" else str(value or 0)
        if tensor.rank:
            extents = interface.example_shape(tensor)
            reversed_shape = ", ".join(map(str, reversed(extents)))
            dimensions = ", ".join(map(str, fortran.in_memory(tensor)))
            colons = ", ".join(":" * tensor.rank)
            lines.append(f"  {kind}, allocatable :: {name}({colons})  ! ({dimensions})")
            fills.append(f"  allocate ({name}({reversed_shape}))")
        else:
            lines.append(f"  {kind} :: {name}")
        fills.append(f"  {name} = {text}")
    if interface.states:
        lines.append("  type(states_t) :: states")
    for tensor, name in zip(interface.outputs, outputs):
        colons = ", ".join(":" * tensor.rank)
        array = f", allocatable :: {name}({colons})" if tensor.rank else f" :: {name}"
        dimensions = ", ".join(map(str, fortran.in_memory(tensor)))
        lines.append(
            f"  {fortran.ELEMENTS[tensor.dtype]}{array}{f'  ! ({dimensions})' if tensor.rank else ''}"
        )
    lines += ["", "  call model%load('weights.safetensors')", *fills]
    if interface.states:
        sizes = "".join(f", {size}" for size in _state_sizes(interface))
        lines.append(f"  call model%new_states(states{sizes})")
    arguments = [*inputs, *(["states"] if interface.states else []), *outputs]
    lines += fortran.wrapped(f"call model%run({', '.join(arguments)})", 2)
    for tensor, name in zip(interface.outputs, outputs):
        first = f"{name}({', '.join(['1'] * tensor.rank)})" if tensor.rank else name
        first = "''" if 0 in tensor.shape else first
        lines.append(f"  print *, '{tensor.plain}', {f'shape({name}), ' if tensor.rank else ''}{first}")
    lines.append("end program")
    return "\n".join(lines) + "\n"
