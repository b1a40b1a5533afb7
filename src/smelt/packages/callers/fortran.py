"""The Fortran module of a package: iso_c_binding over the C interface, arrays with reversed dimensions."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from smelt.packages.callers import words
from smelt.packages.callers.cpp import state_sizes
from smelt.packages.callers.interface import Interface, Tensor, identifiers
from smelt.packages.callers.library import CODES
from smelt.packages.callers.texts import fixed

ELEMENTS = {
    "bool": "logical(c_bool)",
    **{f"{sign}int{bits}": f"integer(c_int{bits}_t)" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "integer(c_int16_t)",
    "bfloat16": "integer(c_int16_t)",
    "float8_e4m3fn": "integer(c_int8_t)",
    "float8_e5m2": "integer(c_int8_t)",
    "float32": "real(c_float)",
    "float64": "real(c_double)",
    "complex64": "complex(c_float_complex)",
    "complex128": "complex(c_double_complex)",
}
MOST_DIMENSIONS = 15
"""Of a Fortran array."""


def module_name(interface: Interface) -> str:
    return identifiers([interface.name], words.FORTRAN, prefix="model", fold=True, longest=60)[0]


def argument_names(interface: Interface) -> tuple[list[str], list[str], list[str]]:
    """Of inputs, outputs and states; inputs and outputs are arguments of one procedure."""
    reserved = {*words.FORTRAN, interface.name.lower()}
    inputs, outputs = interface.inputs, interface.outputs
    names = identifiers(
        [tensor.name for tensor in inputs + outputs], reserved, prefix="tensor", fold=True, longest=60
    )
    states = identifiers(
        [tensor.name for tensor in interface.states], (), prefix="state", fold=True, longest=60
    )
    return names[: len(inputs)], names[len(inputs) :], states


def in_memory(tensor: Tensor) -> list[int | str]:
    """A tensor's dimensions as Fortran has them: the first one is the innermost in memory.

    >>> in_memory(Tensor("x", 0, "float32", ("batch", 3)))
    [3, 'batch']
    """
    return list(reversed(tensor.shape))


def supported(interface: Interface) -> bool:
    return all(tensor.rank <= MOST_DIMENSIONS for tensor in interface.tensors + interface.outputs)


def module(interface: Interface) -> str:
    """``fortran/NAME.f90``."""
    return "\n".join(_lines(interface)) + "\n"


def _lines(interface: Interface) -> Iterator[str]:
    name, states = interface.name, interface.states
    module = module_name(interface)
    new_states = states and state_sizes(interface) is not None
    yield f"! {name}.f90: the model {name} for Fortran 2008, over the C interface. Written by smelt."
    yield "! Arrays have the model's dimensions in reversed order, as Fortran lays them out: what the model"
    yield "! calls [batch, length] is x(length, batch). Unsigned integers and floats that Fortran lacks are"
    yield "! integers of the same bits. Each thread runs a copy: `mine = model` shares what is loaded."
    yield f"module {module}"
    yield "  use, intrinsic :: iso_c_binding"
    yield "  implicit none"
    yield "  private"
    yield f"  public :: model_t{', states_t' if states else ''}"
    yield ""
    yield "  type :: model_t"
    yield "    private"
    yield "    type(c_ptr) :: handle = c_null_ptr"
    yield "    logical :: owner = .false."
    yield "    integer(c_int8_t), allocatable :: workspace(:)"
    yield "  contains"
    yield "    procedure :: load, run, run_pointers, level"
    if new_states:
        yield "    procedure :: new_states"
    yield "    procedure, private :: share, reserve"
    yield "    generic :: assignment(=) => share"
    yield "    final :: destroy"
    yield "  end type"
    yield ""
    if states:
        yield "  ! What the model reads and writes in place."
        yield "  type :: states_t"
        for tensor, field in zip(states, argument_names(interface)[2]):
            if tensor.rank:
                colons = _colons(tensor)
                yield f"    {ELEMENTS[tensor.dtype]}, allocatable :: {field}({colons}){_comment(tensor)}"
            else:
                yield f"    {ELEMENTS[tensor.dtype]} :: {field} = {_zero(tensor)}"
        yield "  end type"
        yield ""
    yield from fixed("text/types.f90").splitlines()
    yield ""
    yield from fixed("text/interfaces.f90", name).splitlines()
    yield ""
    yield "contains"
    yield ""
    yield from fixed("text/procedures.f90", name).splitlines()
    yield ""
    yield from _run(interface)
    if new_states:
        yield from _new_states(interface)
    yield f"end module {module}"


def _colons(tensor: Tensor) -> str:
    return ", ".join(":" * tensor.rank)


def _comment(tensor: Tensor) -> str:
    return f"  ! ({', '.join(map(str, in_memory(tensor)))})" if tensor.rank else ""


def wrapped(text: str, indent: int = 2) -> Iterator[str]:
    lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
    for at, line in enumerate(lines):
        space = " " * (indent if at == 0 else indent + 4)
        yield f"{space}{line}{' &' if at < len(lines) - 1 else ''}"


def _run(interface: Interface) -> Iterator[str]:
    inputs, outputs, fields = argument_names(interface)
    state = ["states"] if interface.states else []
    tensors, count = interface.tensors, max(1, len(interface.tensors))
    rank = max([1, *(tensor.rank for tensor in tensors + interface.outputs)])
    yield "  ! Runs the model. Results are allocated, or used as they are where their shapes are right."
    arguments = ["self", *inputs, *state, *outputs, "status", "message"]
    yield from wrapped(f"subroutine run({', '.join(arguments)})")
    yield "    class(model_t), intent(inout), target :: self"
    for tensor, name in zip(interface.inputs, inputs):
        contiguous = f", contiguous :: {name}({_colons(tensor)})" if tensor.rank else f" :: {name}"
        yield f"    {ELEMENTS[tensor.dtype]}, intent(in), target{contiguous}{_comment(tensor)}"
    if state:
        yield "    type(states_t), intent(inout), target :: states"
    for tensor, name in zip(interface.outputs, outputs):
        array = f", allocatable :: {name}({_colons(tensor)})" if tensor.rank else f" :: {name}"
        yield f"    {ELEMENTS[tensor.dtype]}, intent(inout), target{array}{_comment(tensor)}"
    yield "    integer, intent(out), optional :: status"
    yield "    character(*), intent(out), optional :: message"
    yield f"    type(dl_tensor) :: tensors({count}), results({max(1, len(outputs))})"
    yield f"    integer(c_int64_t), target :: shapes({rank}, {len(tensors) + len(outputs)})"
    yield f"    integer(c_int64_t) :: extents({rank}), sizes({max(1, len(interface.sizes))}), bytes"
    yield "    integer(c_int) :: code"
    yield ""
    numbered = enumerate(zip(_in_order(interface, inputs, fields), tensors), 1)
    for number, (name, tensor) in numbered:
        if tensor.state and tensor.rank:
            # An array that was never allocated is an empty one, which the library refuses.
            extents = ", ".join(["0"] * tensor.rank)
            yield f"    if (.not. allocated({name})) allocate ({name}({extents}))"
        yield from _described(f"tensors({number})", name, tensor, number)
    yield "    code = c_sizes(tensors, sizes)"
    yield "    if (failed(code, status, message)) return"
    for number, (name, tensor) in enumerate(zip(outputs, interface.outputs)):
        if tensor.rank:
            yield f"    code = c_output_shape(sizes, {number}_c_int32_t, extents)"
            yield "    if (failed(code, status, message)) return"
            order = list(range(tensor.rank, 0, -1))
            yield f"    if (allocated({name})) then"
            yield f"      if (any(shape({name}, c_int64_t) /= extents({order}))) deallocate ({name})"
            yield "    end if"
            dimensions = ", ".join(f"extents({d})" for d in order)
            yield from wrapped(f"if (.not. allocated({name})) allocate ({name}({dimensions}))", 4)
        yield from _described(f"results({number + 1})", name, tensor, len(tensors) + number + 1)
    yield "    bytes = c_workspace_bytes(self%handle, sizes)"
    yield "    if (failed(merge(1_c_int, 0_c_int, bytes < 0), status, message)) return"
    yield "    code = c_run(self%handle, tensors, results, self%reserve(bytes), int(bytes, c_size_t))"
    yield "    if (failed(code, status, message)) return"
    yield "  end subroutine"
    yield ""


def _in_order(interface: Interface, inputs: Sequence[str], fields: Sequence[str]) -> Iterator[str]:
    """Arguments and components in the order of the C interface."""
    given, states = iter(inputs), iter(fields)
    for tensor in interface.tensors:
        yield f"states%{next(states)}" if tensor.state else next(given)


def _described(target: str, name: str, tensor: Tensor, number: int) -> Iterator[str]:
    code, bits = CODES[tensor.dtype]
    extents = f"shape({name})" if tensor.rank else "[integer ::]"
    yield from wrapped(
        f"call describe({target}, c_loc({name}), {code}, {bits}, {extents}, shapes(:, {number}))",
        4,
    )


def _zero(tensor: Tensor) -> str:
    return ".false._c_bool" if tensor.dtype == "bool" else "0"


def _new_states(interface: Interface) -> Iterator[str]:
    sizes = state_sizes(interface) or []
    fields = argument_names(interface)[2]
    names = dict(zip(sizes, identifiers(sizes, words.FORTRAN, prefix="size", fold=True, longest=60)))
    yield "  ! The states before the first run: their values in the packaged model, or zeros."
    yield from wrapped(
        f"subroutine new_states(self, states{''.join(f', {n}' for n in names.values())}, status, message)"
    )
    yield "    class(model_t), intent(in) :: self"
    yield "    type(states_t), intent(inout), target :: states"
    if names:
        yield from wrapped(f"integer, intent(in) :: {', '.join(names.values())}", 4)
    yield "    integer, intent(out), optional :: status"
    yield "    character(*), intent(out), optional :: message"
    yield "    if (failed(0_c_int, status, message)) return"
    for tensor, field in zip(interface.states, fields):
        place = f"states%{field}"
        if tensor.rank:
            extents = ", ".join(str(names.get(str(d), d)) for d in in_memory(tensor))
            yield f"    if (allocated({place})) deallocate ({place})"
            yield from wrapped(f"allocate ({place}({extents}))", 4)
        yield f"    {place} = {_zero(tensor)}"
        if tensor.initial:
            call = f"c_initial(self%handle, {tensor.number}_c_int32_t, c_loc({place}))"
            yield from wrapped(f"if (failed({call}, status, message)) return", 4)
    yield "  end subroutine"
    yield ""
