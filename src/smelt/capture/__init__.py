"""How a graph is got: Dynamo and AOTAutograd, ``torch.export``, tracing a function. One result: `Program`."""

from smelt.capture.aot import Compiled, CompileProgram, by_pytorch, capture_aot, tell_orders
from smelt.capture.compare import compare, tee
from smelt.capture.direct import mark_whole, past_dynamo
from smelt.capture.export import capture_export, export
from smelt.capture.floats import floats_settled
from smelt.capture.function import capture_function
from smelt.capture.guards import ask_modules_at_once
from smelt.capture.program import Input, Program, shape_env_of
from smelt.capture.replaced import state_is_no_constant
from smelt.capture.torchscript import analyze, from_torchscript, is_torchscript

__all__ = [
    "CompileProgram",
    "Compiled",
    "Input",
    "Program",
    "analyze",
    "ask_modules_at_once",
    "by_pytorch",
    "capture_aot",
    "capture_export",
    "capture_function",
    "compare",
    "export",
    "floats_settled",
    "from_torchscript",
    "is_torchscript",
    "mark_whole",
    "past_dynamo",
    "shape_env_of",
    "state_is_no_constant",
    "tee",
    "tell_orders",
]
