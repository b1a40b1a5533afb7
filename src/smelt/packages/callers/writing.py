"""All files of a package that call its library, from the data of its ``model.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.packages.callers import cpp, examples, fortran, python, rust
from smelt.packages.callers.interface import interface_of
from smelt.packages.callers.readme import readme
from smelt.packages.callers.texts import fixed


def callers(model: Mapping[str, Any]) -> dict[str, str]:
    """Paths in the package's folder → texts of the files.

    ``model``: the data of ``model.json``: ``name``, ``inputs``, ``outputs``, ``sizes``.
    docs/package-callers.md has an example.
    """
    interface = interface_of(model)
    name, module = interface.name, f"python/{python.package_name(interface)}"

    files = {
        "README.md": readme(interface),
        "pyproject.toml": python.pyproject(interface),
        f"{module}/__init__.py": python.module(interface),
        f"{module}/__main__.py": python.main_module(interface),
        f"{module}/numpy_model.py": fixed("numpy_model.py"),
        f"{module}/library.py": fixed("library.py"),
        f"{module}/loading.py": fixed("loading.py"),
        f"{module}/py.typed": "",
        "python/smelt_wheel.py": fixed("text/smelt_wheel.py"),
        f"include/{name}.hpp": cpp.header(interface),
        "include/smelt_model.hpp": fixed("text/smelt_model.hpp"),
        "rust/Cargo.toml": rust.manifest(interface),
        "rust/build.rs": fixed("text/build.rs", name),
        "rust/src/lib.rs": rust.library(interface),
        "rust/src/model.rs": fixed("text/model.rs", name),
        "rust/src/smelt_model.rs": fixed("text/smelt_model.rs"),
        "rust/examples/example.rs": examples.in_rust(interface),
        "examples/example.py": examples.in_python(interface),
        "examples/example.c": examples.in_c(interface),
        "examples/example.cpp": examples.in_cpp(interface),
    }
    if fortran.supported(interface):
        files[f"fortran/{name}.f90"] = fortran.module(interface)
        files["examples/example.f90"] = examples.in_fortran(interface)
    return files
