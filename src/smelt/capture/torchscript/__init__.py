"""TorchScript's graphs as Python functions, for all other capture methods."""

from smelt.capture.torchscript.analysis import Analysis, Fact, analyze
from smelt.capture.torchscript.modules import FromTorchScript, from_torchscript, is_torchscript, origin

__all__ = ["Analysis", "Fact", "FromTorchScript", "analyze", "from_torchscript", "is_torchscript", "origin"]
