"""Nests to text: what targets share; each target is a folder, or a file of somebody else's."""

from smelt.codegen.index import condition_text, flat_offset, index_text
from smelt.codegen.nests import NestText
from smelt.codegen.runs import call_arguments, run_parameters

__all__ = ["NestText", "call_arguments", "condition_text", "flat_offset", "index_text", "run_parameters"]
