"""The callers of a package: Python on NumPy, C++, Rust and Fortran, and the page that says how to call it."""

from smelt.packages.callers.writing import callers

__all__ = ["callers"]
