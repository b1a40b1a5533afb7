"""The command line: ``smelt bench``, ``smelt explain``, ``smelt doctor``, ``smelt cache``."""

from smelt.cli.app import main

__all__ = ["main"]
