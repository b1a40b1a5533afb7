"""The generated C of a package besides its programs: the public header, and the description of the model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from smelt.packages.signature import Signature, Value, renamed
from smelt.packages.sizes import size_text
from smelt.packages.weights import Weight
from smelt.runtime.plan import Size

DLPACK: Mapping[torch.dtype, tuple[int, int]] = {
    torch.bool: (6, 8),
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.uint16: (1, 16),
    torch.uint32: (1, 32),
    torch.uint64: (1, 64),
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
    torch.complex64: (5, 64),
    torch.complex128: (5, 128),
}
"""dtype → code and bits of a DLDataType."""


@dataclass(frozen=True, slots=True)
class Described:
    """The parts of a model's description. ``programs``: for each processor (empty: any other) identifiers of
    smelt_programs, the best level first.
    ``initial``: for each input the number of the weight with its initial value, or -1.
    """

    name: str
    signature: Signature
    weights: Sequence[Weight]
    digest: bytes
    programs: Mapping[str, Sequence[str]]
    errors: Sequence[str]
    initial: Sequence[int]


def header_text(name: str, signature: Signature) -> str:
    """The public header ``NAME.h``."""
    upper = name.upper()
    names = signature.names
    lines = [
        f"/* {name}.h: the model {name}, compiled by smelt. Functions return 0 or an error (SMELT_E_…),",
        f" * whose message {name}_last_error() has.",
        " *",
        " * Inputs:",
        *(f" *   {number}  {_described(each, names)}" for number, each in enumerate(signature.inputs)),
        " * Outputs:",
        *(f" *   {number}  {_described(each, names)}" for number, each in enumerate(signature.outputs)),
        *([" * Sizes:"] if signature.sizes else []),
        *(
            f" *   {number}  {each.name}, from {each.least} to {_most(each.most)}"
            for number, each in enumerate(signature.sizes)
        ),
        " */",
        f"#ifndef SMELT_PACKAGE_{upper}_H",
        f"#define SMELT_PACKAGE_{upper}_H",
        "",
        '#include "smelt_model.h"',
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        "/* A loaded model: read only, so any number of threads may run it at once. */",
        f"typedef struct {name} {name};",
        "",
        f"enum {{ {upper}_INPUTS = {len(signature.inputs)}, {upper}_OUTPUTS = {len(signature.outputs)}, "
        f"{upper}_SIZES = {len(signature.sizes)} }};",
        "",
        f"int {name}_abi_version(void);",
        "/* Maps the weights, checks them, starts threads. `options` may be NULL. */",
        f"int {name}_create(const char* weights_path, const smelt_options* options, {name}** model);",
        "/* The memory is aligned to 64 bytes and outlives the model. */",
        f"int {name}_create_from_memory(",
        f"    const void* weights, size_t bytes, const smelt_options* options, {name}** model);",
        f"void {name}_destroy({name}* model);",
        "/* The calling thread's last error. */",
        f"const char* {name}_last_error(void);",
        f"int32_t {name}_input_count(void);",
        f"int32_t {name}_output_count(void);",
        f"int32_t {name}_size_count(void);",
        "/* NULL where there is none of this number. */",
        f"const smelt_tensor_info* {name}_input(int32_t input);",
        f"const smelt_tensor_info* {name}_output(int32_t output);",
        f"const smelt_size_info* {name}_size(int32_t size);",
        "/* The sizes that these inputs have; checks shapes and dtypes. `sizes` has room for all sizes. */",
        f"int {name}_sizes(const DLTensor* inputs, int64_t* sizes);",
        f"int {name}_output_shape(const int64_t* sizes, int32_t output, int64_t* shape);",
        "/* The initial value of a state, which is an input in the caller's memory that run writes. */",
        f"int {name}_initial(const {name}* model, int32_t input, void* data);",
        "/* Bytes of memory, aligned to 64, that a run needs; -1: an error. */",
        f"int64_t {name}_workspace_bytes(const {name}* model, const int64_t* sizes);",
        "/* Computes the outputs, in the caller's memory. Allocates nothing, keeps nothing. */",
        f"int {name}_run(const {name}* model, const DLTensor* inputs, DLTensor* outputs, void* workspace,",
        "    size_t workspace_bytes);",
        "/* The same for contiguous memory of the right sizes, which is not checked. */",
        f"int {name}_run_pointers(const {name}* model, const int64_t* sizes, void* const* inputs,",
        "    void* const* outputs, void* workspace, size_t workspace_bytes);",
        "/* The instruction set in use. */",
        f"const char* {name}_level(const {name}* model);",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        f"#endif /* SMELT_PACKAGE_{upper}_H */",
        "",
    ]
    return "\n".join(lines)


def _described(value: Value, names: Mapping[str, str]) -> str:
    shape = ", ".join(str(renamed(size, names)) for size in value.shape)
    state = ", a state" if value.state else ""
    return f"{value.name}: {str(value.dtype).removeprefix('torch.')}[{shape}]{state}"


def _most(most: int) -> str:
    return "any" if most == 2**63 - 1 else str(most)


def description_text(described: Described) -> str:
    """The file ``NAME.c``."""
    name, signature = described.name, described.signature
    symbols = {each.symbol: number for number, each in enumerate(signature.sizes)}
    local = [f"const int64_t {symbol} = sizes[{at}]; (void){symbol};" for symbol, at in symbols.items()]
    lines = [
        f"/* {name}.c: the description of the model, and the functions of {name}.h. */",
        f'#include "{name}.h"',
        "",
        '#include "smelt_program.h"',
        "",
        *_infos("input", signature.inputs, symbols),
        *_infos("output", signature.outputs, symbols),
        *_sizes(signature),
        *_derived(signature),
        *_shapes("input", signature.inputs, symbols, local),
        *_shapes("output", signature.outputs, symbols, local),
        *_conditions(signature, local),
        *_strings("error_texts", described.errors),
        *_weights(described.weights),
    ]
    computed = {
        kind: any(_dim(size, symbols) is None for each in values for size in each.shape)
        for kind, values in (("input", signature.inputs), ("output", signature.outputs))
    }
    digest = ", ".join(f"0x{byte:02x}" for byte in described.digest)
    initial = ", ".join(map(str, described.initial)) or "0"
    lines += [
        f"static const int32_t initial_values[] = {{{initial}}};",
        "",
    ]
    lines += [
        *_programs(described.programs),
        "",
        "static const smelt_description description = {",
        f'  SMELT_ABI_VERSION, "{name}", {len(signature.inputs)}, {len(signature.outputs)}, '
        f"{len(signature.sizes)}, {len(described.weights)}, PROGRAMS,",
        "  inputs, outputs, size_infos,",
        f"  {'derived_sizes' if _needs_derived(signature) else 'NULL'},",
        f"  {'input_shape' if computed['input'] else 'NULL'},",
        f"  {'output_shape' if computed['output'] else 'NULL'},",
        f"  {'check_sizes' if signature.conditions else 'NULL'}, condition_texts, error_texts, weights,",
        f"  {{{digest}}},",
        "  programs, initial_values",
        "};",
        "",
        *_functions(name),
    ]
    return "\n".join(lines)


def _programs(programs: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The programs of the processor that the file is compiled for."""
    word = "#if"
    for machine, names in sorted(programs.items(), key=lambda each: not each[0]):
        yield f"{word} defined(__{machine}__)" if machine else "#if 1" if len(programs) == 1 else "#else"
        yield from (f"extern const smelt_program {each};" for each in names)
        yield f"static const smelt_program* const programs[] = {{{', '.join(f'&{each}' for each in names)}}};"
        yield f"enum {{ PROGRAMS = {len(names)} }};"
        word = "#elif"
    if "" not in programs:
        yield "#else"
        yield '#error "the package has no code for this processor"'
    yield "#endif"


def _dim(size: Size, symbols: Mapping[str, int]) -> str | None:
    """A dimension of a tensor's info; None if it must be computed."""
    if isinstance(size, int):
        return str(size)
    return f"SMELT_SIZE({symbols[size]})" if size in symbols else None


def _infos(kind: str, values: Sequence[Value], symbols: Mapping[str, int]) -> Iterator[str]:
    for number, each in enumerate(values):
        shape = ", ".join(_dim(size, symbols) or "SMELT_COMPUTED" for size in each.shape) or "0"
        yield f"static const int64_t {kind}{number}_shape[] = {{{shape}}};"
    yield f"static const smelt_tensor_info {kind}s[] = {{"
    for number, each in enumerate(values):
        code, bits = DLPACK[each.dtype]
        flags = "SMELT_STATE" if each.state else "0"
        yield (
            f"  {{{_string(each.name)}, {{{code}, {bits}, 1}}, {len(each.shape)}, {flags}, "
            f"{kind}{number}_shape, NULL}},"
        )
    if not values:
        yield '  {"", {0, 0, 0}, 0, 0, NULL, NULL},'
    yield "};"
    yield ""


def _sizes(signature: Signature) -> Iterator[str]:
    yield "static const smelt_size_info size_infos[] = {"
    for each in signature.sizes:
        yield f"  {{{_string(each.name)}, {_integer(each.least)}, {_integer(each.most)}}},"
    if not signature.sizes:
        yield '  {"", 0, 0},'
    yield "};"
    yield ""


def _integer(value: int) -> str:
    return f"INT64_C({value})" if value >= 0 else f"-INT64_C({-value})"


def _needs_derived(signature: Signature) -> bool:
    return any(each.source[1] is None or each.value != "dim" for each in signature.sizes)


def _derived(signature: Signature) -> Iterator[str]:
    if not _needs_derived(signature):
        return
    yield "static void derived_sizes(const DLTensor* inputs, int64_t* sizes) {"
    names: dict[str, str] = {}
    for number, each in enumerate(signature.sizes):
        at, dim = each.source
        if dim is None:
            place = f"*(const int64_t*)((const char*)inputs[{at}].data + inputs[{at}].byte_offset)"
        else:
            place = f"inputs[{at}].shape[{dim}]"
        yield f"  sizes[{number}] = {size_text(each.value, {**names, 'dim': place})};"
        names[each.symbol] = f"sizes[{number}]"
    yield "}"
    yield ""


def _shapes(
    kind: str, values: Sequence[Value], symbols: Mapping[str, int], local: Sequence[str]
) -> Iterator[str]:
    if all(_dim(size, symbols) is not None for each in values for size in each.shape):
        return
    yield f"static void {kind}_shape(const int64_t* sizes, int32_t {kind}, int64_t* shape) {{"
    yield from (f"  {line}" for line in local)
    yield f"  switch ({kind}) {{"
    for number, each in enumerate(values):
        yield f"    case {number}:"
        for dim, size in enumerate(each.shape):
            yield f"      shape[{dim}] = {size_text(size)};"
        yield "      break;"
    yield "  }"
    yield "}"
    yield ""


def _conditions(signature: Signature, local: Sequence[str]) -> Iterator[str]:
    if signature.conditions:
        yield "static int check_sizes(const int64_t* sizes) {"
        yield from (f"  {line}" for line in local)
        for number, each in enumerate(signature.conditions, 1):
            yield f"  if (!({size_text(each)})) return {number};"
        yield "  return 0;"
        yield "}"
        yield ""
    texts = [str(renamed(each, signature.names)) for each in signature.conditions]
    yield from _strings("condition_texts", texts)


def _strings(name: str, texts: Sequence[str]) -> Iterator[str]:
    listed = ", ".join(map(_string, texts)) or "NULL"
    yield f"static const char* const {name}[] = {{{listed}}};"
    yield ""


def _string(text: str) -> str:
    """A C string; JSON's escapes are C's for ASCII texts without control characters."""
    return json.dumps(text.encode("ascii", "replace").decode().replace("??", "? ?"))


def _weights(weights: Sequence[Weight]) -> Iterator[str]:
    for number, each in enumerate(weights):
        shape = ", ".join(map(str, each.tensor.shape)) or "0"
        yield f"static const int64_t weight{number}_shape[] = {{{shape}}};"
    yield "static const smelt_weight weights[] = {"
    for number, each in enumerate(weights):
        yield (
            f"  {{{_string(each.name)}, {_string(each.format)}, {each.tensor.dim()}, weight{number}_shape}},"
        )
    if not weights:
        yield '  {"", "", 0, NULL},'
    yield "};"
    yield ""


def _functions(name: str) -> Iterator[str]:
    """The exported functions."""
    runtime, model = "(smelt_runtime**)model", "(const smelt_runtime*)model"
    made = [
        ("int", "abi_version", "void", "SMELT_ABI_VERSION"),
        (
            "int",
            "create",
            f"const char* weights_path, const smelt_options* options, {name}** model",
            f"smelt_runtime_create(&description, weights_path, options, {runtime})",
        ),
        (
            "int",
            "create_from_memory",
            f"const void* data, size_t bytes, const smelt_options* options, {name}** model",
            f"smelt_runtime_create_from_memory(&description, data, bytes, options, {runtime})",
        ),
        ("const char*", "last_error", "void", "smelt_runtime_last_error()"),
        ("int32_t", "input_count", "void", "description.input_count"),
        ("int32_t", "output_count", "void", "description.output_count"),
        ("int32_t", "size_count", "void", "description.size_count"),
        (
            "const smelt_tensor_info*",
            "input",
            "int32_t input",
            "smelt_runtime_input(&description, input)",
        ),
        (
            "const smelt_tensor_info*",
            "output",
            "int32_t output",
            "smelt_runtime_output(&description, output)",
        ),
        ("const smelt_size_info*", "size", "int32_t size", "smelt_runtime_size(&description, size)"),
        (
            "int",
            "sizes",
            "const DLTensor* tensors, int64_t* sizes",
            "smelt_runtime_sizes(&description, tensors, sizes)",
        ),
        (
            "int",
            "output_shape",
            "const int64_t* sizes, int32_t output, int64_t* shape",
            "smelt_runtime_output_shape(&description, sizes, output, shape)",
        ),
        (
            "int",
            "initial",
            f"const {name}* model, int32_t input, void* data",
            f"smelt_runtime_initial({model}, input, data)",
        ),
        (
            "int64_t",
            "workspace_bytes",
            f"const {name}* model, const int64_t* sizes",
            f"smelt_runtime_workspace_bytes({model}, sizes)",
        ),
        (
            "int",
            "run",
            f"const {name}* model, const DLTensor* tensors, DLTensor* results, void* workspace, size_t bytes",
            f"smelt_runtime_run({model}, tensors, results, workspace, bytes)",
        ),
        (
            "int",
            "run_pointers",
            f"const {name}* model, const int64_t* sizes, void* const* tensors, void* const* results, "
            "void* workspace, size_t bytes",
            f"smelt_runtime_run_pointers({model}, sizes, tensors, results, workspace, bytes)",
        ),
        ("const char*", "level", f"const {name}* model", f"smelt_runtime_level({model})"),
    ]
    for kind, function, parameters, body in made:
        yield f"SMELT_EXPORT {kind} {name}_{function}({parameters}) {{ return {body}; }}"
    yield (
        f"SMELT_EXPORT void {name}_destroy({name}* model) {{ smelt_runtime_destroy((smelt_runtime*)model); }}"
    )
    yield ""
