"""Sphinx: Markdown pages (MyST), the API from docstrings, one theme. `make docs`."""

from __future__ import annotations

import runpy
from pathlib import Path

import smelt

runpy.run_path(str(Path(__file__).with_name("primitives.py")), run_name="__main__")

project = "smelt"
author = "the smelt authors"
release = smelt.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_ambiguous"]

default_role = "code"  # docstrings have names in single backquotes
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

html_theme = "furo"
html_title = f"smelt {release}"
html_copy_source = False
html_show_sphinx = False
