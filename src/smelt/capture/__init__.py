"""Graph capture: Dynamo and AOTAutograd, ``torch.export``, tracing of functions. Each gives a `Program`."""

from smelt.capture.aot import Compiled, CompileProgram, by_pytorch, capture_aot, tell_orders
from smelt.capture.compare import compare, tee
from smelt.capture.floats import floats_settled
from smelt.capture.function import capture_function
from smelt.capture.program import Input, Program, shape_env_of
from smelt.capture.regions import Regions
from smelt.capture.torch_export import capture_export, export
from smelt.capture.torchscript import analyze, from_torchscript, is_torchscript

__all__ = [
    "CompileProgram",
    "Compiled",
    "Input",
    "Program",
    "Regions",
    "analyze",
    "by_pytorch",
    "capture_aot",
    "capture_export",
    "capture_function",
    "compare",
    "export",
    "floats_settled",
    "from_torchscript",
    "is_torchscript",
    "shape_env_of",
    "tee",
    "tell_orders",
]
