"""The command line: ``smelt bench``, ``explain``, ``export``, ``chat``, ``schema``, ``doctor``, ``cache``."""

from smelt.cli.app import main

__all__ = ["main"]
