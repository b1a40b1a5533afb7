"""C++: loop nests to one header-light translation unit."""

from smelt.codegen.cpp.printer import CLOCKS, ERRORS, CppUnit, UnitPrinter, print_unit
from smelt.codegen.cpp.types import lanes

__all__ = ["CLOCKS", "ERRORS", "CppUnit", "UnitPrinter", "lanes", "print_unit"]
