"""The Rust crate of a package: a safe model whose inputs, states and outputs are structures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smelt.packages.callers import words
from smelt.packages.callers.cpp import state_sizes
from smelt.packages.callers.interface import Interface, Tensor, identifiers

ELEMENTS = {
    "bool": "bool",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "Float8E4M3Fn",
    "float8_e5m2": "Float8E5M2",
    "complex64": "Complex<f32>",
    "complex128": "Complex<f64>",
}


def crate_name(interface: Interface) -> str:
    taken = words.RUST | {"std", "core", "alloc", "test", "proc_macro", "build"}
    return identifiers([interface.name], taken, prefix="model")[0]


def field_names(tensors: Sequence[Tensor], prefix: str) -> list[str]:
    return identifiers((tensor.name for tensor in tensors), words.RUST, prefix=prefix)


def manifest(interface: Interface) -> str:
    """``rust/Cargo.toml``."""
    return f"""\
[package]
name = "{crate_name(interface)}"
version = "0.1.0"
edition = "2021"
rust-version = "1.74"
description = "The model {interface.name}, compiled by smelt"
build = "build.rs"
publish = false

[dependencies]
"""


def library(interface: Interface) -> str:
    """``rust/src/lib.rs``."""
    return "\n".join(_lines(interface)) + "\n"


def _lines(interface: Interface) -> Iterator[str]:
    name, states = interface.name, interface.states
    yield f"//! The model {name}, compiled by smelt. Threads share a [`Model`], not its states."
    yield "//! Wrong shapes are errors of a run, wrong dtypes and ranks are errors of the compiler."
    yield ""
    yield "#![allow(non_snake_case)] // names of the model's"
    yield ""
    yield "mod model;"
    yield "mod smelt_model;"
    yield ""
    yield "pub use model::Model;"
    yield "pub use smelt_model::{"
    yield "    BFloat16, Complex, DataType, Element, Error, Float16, Float8E4M3Fn, Float8E5M2, Options,"
    yield "    Tensor, View, ViewMut,"
    yield "};"
    yield "use model::shape;"
    yield "use smelt_model::{check, with_workspace, DlTensor};"
    yield ""
    yield "/// The weights where they were when this crate was built."
    yield 'pub const WEIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../weights.safetensors");'
    yield ""
    yield "/// What the model reads."
    yield "#[derive(Clone, Copy, Debug)]"
    yield from _struct("Inputs", "View", interface.inputs, "input")
    if states:
        yield "/// What the model reads and writes in place."
        yield "#[derive(Debug)]"
        yield from _struct("States", "ViewMut", states, "state")
        yield "/// Memory for the states; [`Model::new_states`] makes it."
        yield "#[derive(Clone, Debug)]"
        yield from _struct("StateTensors", "Tensor", states, "state")
        yield from _views("StateTensors", "States", states, "state")
    yield "/// Results with memory of their own."
    yield "#[derive(Clone, Debug)]"
    yield from _struct("Outputs", "Tensor", interface.outputs, "output")
    yield from _views("Outputs", "OutputViews", interface.outputs, "output")
    yield "/// Where the model writes its results: the caller's memory."
    yield "#[derive(Debug)]"
    yield from _struct("OutputViews", "ViewMut", interface.outputs, "output")
    yield from _model(interface)


def _struct(name: str, kind: str, tensors: Sequence[Tensor], prefix: str) -> Iterator[str]:
    lifetime = "" if kind == "Tensor" else "'a, "
    generics = "<'a>" if lifetime else ""
    yield f"pub struct {name}{generics} {{"
    for tensor, field in zip(tensors, field_names(tensors, prefix)):
        yield f"    /// `{tensor.shape_text}`"
        yield f"    pub {field}: {kind}<{lifetime}{ELEMENTS[tensor.dtype]}, {tensor.rank}>,"
    if lifetime and not tensors:
        yield "    pub none: std::marker::PhantomData<&'a ()>,"
    yield "}"
    yield ""


def _views(owner: str, views: str, tensors: Sequence[Tensor], prefix: str) -> Iterator[str]:
    fields = ", ".join(f"{field}: self.{field}.view_mut()" for field in field_names(tensors, prefix))
    yield f"impl {owner} {{"
    yield f"    pub fn views(&mut self) -> {views}<'_> {{"
    yield f"        {views} {{ {fields or 'none: std::marker::PhantomData'} }}"
    yield "    }"
    yield "}"
    yield ""


def _model(interface: Interface) -> Iterator[str]:
    name, states, outputs = interface.name, interface.states, interface.outputs
    fields = field_names(outputs, "output")
    state = ", states: &mut States<'_>" if states else ""
    passed = ", states" if states else ""
    yield "impl Model {"
    yield "    /// Runs the model; the results have memory of their own."
    yield f"    pub fn run(&self, inputs: &Inputs<'_>{state}) -> Result<Outputs, Error> {{"
    yield from _given(interface)
    yield "        let mut outputs = Outputs {"
    for number, field in enumerate(fields):
        yield f"            {field}: Tensor::zeros(shape(&sizes, {number})?)?,"
    yield "        };"
    yield f"        self.run_into(inputs{passed}, &mut outputs.views())?;"
    yield "        Ok(outputs)"
    yield "    }"
    yield ""
    yield "    /// Runs the model; the results go to memory of the caller's."
    yield "    pub fn run_into("
    yield "        &self,"
    yield "        inputs: &Inputs<'_>,"
    if states:
        yield "        states: &mut States<'_>,"
    yield "        outputs: &mut OutputViews<'_>,"
    yield "    ) -> Result<(), Error> {"
    yield from _given(interface)
    yield f"        let mut results: [DlTensor; {len(outputs)}] = ["
    for field in fields:
        yield f"            outputs.{field}.dlpack(),"
    yield "        ];"
    yield f"        let bytes = unsafe {{ model::{name}_workspace_bytes(self.handle, sizes.as_ptr()) }};"
    yield f"        check(i32::from(bytes < 0), model::{name}_last_error)?;"
    yield "        let bytes = bytes as usize;"
    yield "        let code = with_workspace(bytes, |workspace| unsafe {"
    arguments = "self.handle, given.as_ptr(), results.as_mut_ptr(), workspace, bytes"
    yield f"            model::{name}_run({arguments})"
    yield "        });"
    yield f"        check(code, model::{name}_last_error)"
    yield "    }"
    if states:
        yield from _new_states(interface)
    yield "}"


def _given(interface: Interface) -> Iterator[str]:
    name = interface.name
    inputs = iter(field_names(interface.inputs, "input"))
    states = iter(field_names(interface.states, "state"))
    yield f"        let given: [DlTensor; {len(interface.tensors)}] = ["
    for tensor in interface.tensors:
        place = f"states.{next(states)}" if tensor.state else f"inputs.{next(inputs)}"
        yield f"            {place}.dlpack(),"
    yield "        ];"
    yield f"        let mut sizes = [0i64; {len(interface.sizes)}];"
    yield f"        let code = unsafe {{ model::{name}_sizes(given.as_ptr(), sizes.as_mut_ptr()) }};"
    yield f"        check(code, model::{name}_last_error)?;"


def _new_states(interface: Interface) -> Iterator[str]:
    sizes = state_sizes(interface)
    if sizes is None:
        return
    names = dict(zip(sizes, identifiers(sizes, words.RUST, prefix="size")))
    arguments = "".join(f", {names[size]}: usize" for size in sizes)
    fields = field_names(interface.states, "state")
    known = [(tensor, field) for tensor, field in zip(interface.states, fields) if tensor.initial]
    yield ""
    yield "    /// The states before the first run: their values in the packaged model, or zeros."
    yield f"    pub fn new_states(&self{arguments}) -> Result<StateTensors, Error> {{"
    yield f"        let {'mut ' if known else ''}states = StateTensors {{"
    for tensor, field in zip(interface.states, fields):
        shape = ", ".join(str(names.get(str(d), d)) for d in tensor.shape)
        yield f"            {field}: Tensor::zeros([{shape}])?,"
    yield "        };"
    for tensor, field in known:
        yield f"        let data = states.{field}.data_mut().as_mut_ptr().cast();"
        initial = f"model::{interface.name}_initial(self.handle, {tensor.number}, data)"
        yield f"        check(unsafe {{ {initial} }}, model::{interface.name}_last_error)?;"
    yield "        Ok(states)"
    yield "    }"
