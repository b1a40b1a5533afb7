"""The C++ header of a package: a model as a class, its inputs and outputs as structures of views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smelt.packages.callers import words
from smelt.packages.callers.interface import Interface, Tensor, identifiers

ELEMENTS = {
    "bool": "bool",
    **{f"{sign}int{bits}": f"std::{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "float",
    "float64": "double",
    "complex64": "std::complex<float>",
    "complex128": "std::complex<double>",
    **{name: f"smelt::{name}" for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")},
}


def namespace(interface: Interface) -> str:
    """The namespace inside of ``smelt``: the bare name is the C interface's type."""
    return identifiers([interface.name], words.CPP | words.SMELT_CPP, prefix="model")[0]


def field_names(tensors: Sequence[Tensor], prefix: str) -> list[str]:
    return identifiers((tensor.name for tensor in tensors), words.CPP, prefix=prefix)


def header(interface: Interface) -> str:
    """``include/NAME.hpp``."""
    return "\n".join(_lines(interface)) + "\n"


def _lines(interface: Interface) -> Iterator[str]:
    name, states = interface.name, interface.states
    guard = f"SMELT_{name.upper()}_HPP"
    names = {
        "input": field_names(interface.inputs, "input"),
        "state": field_names(states, "state"),
        "output": field_names(interface.outputs, "output"),
    }
    yield f"// {name}.hpp: the model {name} in C++17, over the C interface of {name}.h. Written by smelt."
    yield f"#ifndef {guard}"
    yield f"#define {guard}"
    yield ""
    yield f'#include "{name}.h"'
    yield '#include "smelt_model.hpp"'
    yield ""
    yield f"namespace smelt::{namespace(interface)} {{"
    yield ""
    yield "// What the model reads: memory of the caller's."
    yield from _views("inputs", interface.inputs, names["input"], "const ")
    if states:
        yield "// What the model reads and writes in place: memory of the caller's."
        yield from _views("states", states, names["state"])
    yield "// Where the model writes its results: memory of the caller's, of the shapes of these sizes."
    yield from _views("output_views", interface.outputs, names["output"])
    yield "// Results with memory of their own."
    yield "struct outputs {"
    for tensor, field in zip(interface.outputs, names["output"]):
        yield f"  smelt::tensor<{ELEMENTS[tensor.dtype]}, {tensor.rank}> {field};  // {tensor.shape_text}"
    views = ", ".join(names["output"])
    yield f"  operator output_views() const {{ return {{{views}}}; }}"
    yield "};"
    yield ""
    if states:
        yield "// Memory for the states: their values in the packaged model, zeros for those that have none."
        yield "struct state_tensors {"
        for tensor, field in zip(states, names["state"]):
            yield f"  smelt::tensor<{ELEMENTS[tensor.dtype]}, {tensor.rank}> {field};  // {tensor.shape_text}"
        yield f"  operator states() const {{ return {{{', '.join(names['state'])}}}; }}"
        yield "};"
        yield ""
    yield from _model(interface, names)
    yield f"}}  // namespace smelt::{namespace(interface)}"
    yield ""
    yield f"#endif  // {guard}"


def _views(struct: str, tensors: Sequence[Tensor], fields: Sequence[str], const: str = "") -> Iterator[str]:
    yield f"struct {struct} {{"
    for tensor, field in zip(tensors, fields):
        yield (
            f"  smelt::tensor_view<{const}{ELEMENTS[tensor.dtype]}, {tensor.rank}> {field};  "
            f"// {tensor.shape_text}"
        )
    yield "};"
    yield ""


def _model(interface: Interface, names: dict[str, list[str]]) -> Iterator[str]:
    name, states, outputs = interface.name, interface.states, interface.outputs
    given = "const inputs& in," + (" const states& state," if states else "")
    passed = "in, " + ("state, " if states else "")
    scratch = "      smelt::workspace& scratch = smelt::workspace::of_thread()) const {"
    yield "// A loaded model. Any number of threads may run it at once, each with states of its own."
    yield "class model {"
    yield " public:"
    yield "  // `weights`: the path of the package's weights.safetensors."
    yield "  explicit model(const std::string& weights, const smelt_options* options = nullptr) {"
    yield "    check_abi();"
    yield f"    check({name}_create(weights.c_str(), options, &handle_));"
    yield "  }"
    yield "  // Weights in memory that is aligned to 64 bytes and outlives the model."
    yield "  model(const void* weights, std::size_t bytes, const smelt_options* options = nullptr) {"
    yield "    check_abi();"
    yield f"    check({name}_create_from_memory(weights, bytes, options, &handle_));"
    yield "  }"
    yield f"  ~model() {{ {name}_destroy(handle_); }}"
    yield "  model(model&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}"
    yield "  model& operator=(model&& other) noexcept {"
    yield "    std::swap(handle_, other.handle_);"
    yield "    return *this;"
    yield "  }"
    yield ""
    yield "  // Runs the model; the results have memory of their own."
    yield f"  outputs operator()({given}"
    yield scratch
    yield from _given(interface, names)
    yield "    outputs out{"
    for number, tensor in enumerate(outputs):
        element = ELEMENTS[tensor.dtype]
        yield f"        smelt::tensor<{element}, {tensor.rank}>(shape<{tensor.rank}>(sizes, {number})),"
    yield "    };"
    yield f"    (*this)({passed}static_cast<output_views>(out), scratch);"
    yield "    return out;"
    yield "  }"
    yield "  // Runs the model; the results go to memory of the caller's. Allocates the workspace only, once."
    yield f"  void operator()({given} const output_views& out,"
    yield scratch
    yield from _given(interface, names)
    yield from _listed("DLTensor results", [f"out.{field}" for field in names["output"]])
    yield f"    const std::int64_t bytes = {name}_workspace_bytes(handle_, sizes);"
    yield "    check(bytes < 0 ? SMELT_E_ARGUMENT : SMELT_OK);"
    yield "    void* memory = scratch.reserve(static_cast<std::size_t>(bytes));"
    yield f"    check({name}_run(handle_, given, results, memory, static_cast<std::size_t>(bytes)));"
    yield "  }"
    if states:
        yield from _new_states(interface)
    yield f'  // The instruction set in use, as "x86-64-v4".'  # noqa: F541
    yield f"  std::string level() const {{ return {name}_level(handle_); }}"
    yield f"  const ::{name}* handle() const noexcept {{ return handle_; }}"
    yield ""
    yield " private:"
    yield "  static void check(int code) {"
    yield f"    if (code) throw smelt::error(code, {name}_last_error());"
    yield "  }"
    yield "  static void check_abi() {"
    yield f"    if ({name}_abi_version() != SMELT_ABI_VERSION)"
    said = f"the library of {name} is of another version than {name}.hpp"
    yield f'      throw smelt::error(SMELT_E_ABI, "{said}");'
    yield "  }"
    yield "  template <std::size_t Rank>"
    yield "  static smelt::extents<Rank> shape(const std::int64_t* sizes, std::int32_t output) {"
    yield "    std::int64_t found[Rank + 1];"
    yield f"    check({name}_output_shape(sizes, output, found));"
    yield "    smelt::extents<Rank> made{};"
    yield "    for (std::size_t d = 0; d < Rank; ++d) made[d] = found[d];"
    yield "    return made;"
    yield "  }"
    yield f"  ::{name}* handle_ = nullptr;"
    yield "};"
    yield ""


def _listed(array: str, views: Sequence[str]) -> Iterator[str]:
    yield f"    {array}[] = {{"
    for view in views or ["smelt::tensor_view<char, 0>()"]:
        yield f"        {view}.dlpack(),"
    yield "    };"


def _given(interface: Interface, names: dict[str, list[str]]) -> Iterator[str]:
    inputs, states = iter(names["input"]), iter(names["state"])
    fields = [
        f"state.{next(states)}" if tensor.state else f"in.{next(inputs)}" for tensor in interface.tensors
    ]
    yield from _listed("const DLTensor given", fields)
    yield f"    std::int64_t sizes[{max(1, len(interface.sizes))}];"
    yield f"    check({interface.name}_sizes(given, sizes));"


def _new_states(interface: Interface) -> Iterator[str]:
    """A method that makes the states; it takes the sizes that their shapes have."""
    sizes = state_sizes(interface)
    if sizes is None:
        return
    names = dict(zip(sizes, identifiers(sizes, words.CPP, prefix="size")))
    arguments = ", ".join(f"std::int64_t {names[size]}" for size in sizes)
    yield "  // The states before the first run."
    yield f"  state_tensors new_states({arguments}) const {{"
    yield "    state_tensors made{"
    fields = field_names(interface.states, "state")
    for tensor in interface.states:
        shape = ", ".join(str(names.get(str(d), d)) for d in tensor.shape)
        extents = f"smelt::extents<{tensor.rank}>{{{shape}}}"
        yield f"        smelt::tensor<{ELEMENTS[tensor.dtype]}, {tensor.rank}>({extents}),"
    yield "    };"
    for tensor, field in zip(interface.states, fields):
        if tensor.initial:
            yield f"    check({interface.name}_initial(handle_, {tensor.number}, made.{field}.data()));"
    yield "    return made;"
    yield "  }"


def state_sizes(interface: Interface) -> list[str] | None:
    """The names of the sizes that the states' shapes have; None where a dimension is computed from sizes."""
    known = {size.name for size in interface.sizes}
    used = dict.fromkeys(d for tensor in interface.states for d in tensor.shape if isinstance(d, str))
    return list(used) if known.issuperset(used) else None
