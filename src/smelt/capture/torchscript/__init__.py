"""TorchScript in: its graphs as Python functions, which all other ways of capture can look into."""

from smelt.capture.torchscript.analysis import Analysis, Fact, analyze
from smelt.capture.torchscript.modules import FromTorchScript, from_torchscript, is_torchscript, origin

__all__ = ["Analysis", "Fact", "FromTorchScript", "analyze", "from_torchscript", "is_torchscript", "origin"]
