"""C++: loop nests to one header-light translation unit."""

from smelt.codegen.cpp.printer import ERRORS, CppUnit, print_unit
from smelt.codegen.cpp.types import lanes

__all__ = ["ERRORS", "CppUnit", "lanes", "print_unit"]
