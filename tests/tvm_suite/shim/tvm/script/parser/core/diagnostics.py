"""``tvm.script.parser.core.diagnostics``: the marked lines of an error, as smelt writes them."""

from __future__ import annotations

import ast

from smelt.script.parse import Source


def _format_source_snippet(
    source_lines: list[str], lineno: int, col_offset: int, end_lineno: int, end_col_offset: int
) -> str:
    place = ast.Pass(lineno=lineno, col_offset=col_offset - 1)
    place.end_lineno, place.end_col_offset = end_lineno, end_col_offset - 1
    return "\n".join(Source("".join(source_lines)).excerpt(place))
