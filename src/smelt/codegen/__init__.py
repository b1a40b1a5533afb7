"""Nests to text: the shared parts of targets; each target is a folder here, or a user's own file."""

from smelt.codegen.index import condition_text, flat_offset, index_text
from smelt.codegen.nests import NestText
from smelt.codegen.runs import call_arguments, run_parameters

__all__ = ["NestText", "call_arguments", "condition_text", "flat_offset", "index_text", "run_parameters"]
