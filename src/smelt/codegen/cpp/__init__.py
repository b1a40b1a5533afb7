"""C++: loop nests to one header-light translation unit."""

from smelt.codegen.cpp.header import header_text, once_text
from smelt.codegen.cpp.printer import CLOCKS, ERRORS, CppUnit, UnitPrinter, print_unit
from smelt.codegen.cpp.types import lanes

__all__ = ["CLOCKS", "ERRORS", "CppUnit", "UnitPrinter", "header_text", "lanes", "once_text", "print_unit"]
