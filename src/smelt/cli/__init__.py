"""The command line: ``smelt bench``, ``explain``, ``export``, ``schema``, ``doctor``, ``cache``."""

from smelt.cli.app import main

__all__ = ["main"]
