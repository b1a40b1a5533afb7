"""The user's program: functions of loops, and modules of functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol

from smelt.nest.ir import Kernel
from smelt.records import dataclass, field, replace
from smelt.script.nest_text import INDENT, attrs_text, function_lines, module_head


@dataclass(frozen=True, slots=True)
class PrimFunc:
    """A function of loops and stages over buffers passed by the caller; it returns nothing.

    ``kernel.params`` are its parameters in order; it fills those that are ``written``. ``attrs``: the user's
    annotations. ``private``: nothing outside of its module calls it. ``unscheduled``: the kernel from which a
    schedule has made this one; both compute the same.
    """

    kernel: Kernel
    attrs: Mapping[str, Any] = field(default_factory=dict)
    private: bool = False
    unscheduled: Kernel | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def __name__(self) -> str:
        return self.kernel.name

    def script_lines(self, name: str, dialect: str) -> list[str]:
        """The lines of its text, under this name, not indented."""
        return function_lines(self.kernel, self.attrs, self.private, dialect, name)

    def script(self, *, dialect: str = "tvm", **ignored: Any) -> str:
        """The function's text, which ``from_source`` reads.

        ``dialect``: a version of TVM's words (``tvm``, the current one, or ``tvm-0.17``). Other options of
        TVM's are ignored.
        """
        del ignored
        return "\n".join([*module_head(), "", *self.script_lines(self.name, dialect)]) + "\n"

    def show(self, **options: Any) -> None:
        """Print the text, in colours on a terminal."""
        show(self.script(**options))

    def __str__(self) -> str:
        return self.script()

    def with_name(self, name: str) -> PrimFunc:
        return replace(self, kernel=replace(self.kernel, name=name))

    def with_attr(self, key: str | Mapping[str, Any], value: Any = None) -> PrimFunc:
        """The function with one more attribute, or several from a mapping."""
        added = {key: value} if isinstance(key, str) else dict(key)
        return replace(self, attrs={**self.attrs, **added})


class Function(Protocol):
    """A function in a module: a PrimFunc, or a function of `smelt.relax`."""

    @property
    def attrs(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class GlobalVar:
    """The name of a function in a module."""

    name_hint: str

    def __str__(self) -> str:
        return self.name_hint


def _order(function: Any, name: str) -> tuple[bool, str]:
    """Functions of loops before others, in alphabetical order."""
    return not isinstance(function, PrimFunc), name


def show(text: str) -> None:
    """Print a script, in colours on a terminal."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console
    from rich.syntax import Syntax

    Console().print(Syntax(text, "python", background_color="default"))


class IRModule(MutableMapping[GlobalVar, Any]):
    """Functions by their names: ``mod["main"]``, ``mod[var]``, ``mod["main"] = func``."""

    def __init__(self, functions: Mapping[Any, Any] | None = None, attrs: Mapping[str, Any] | None = None):
        self._functions: dict[GlobalVar, Any] = {}
        self.attrs: dict[str, Any] = dict(attrs or {})
        for name, function in (functions or {}).items():
            self[name] = function

    @property
    def functions(self) -> dict[GlobalVar, Any]:
        return dict(self._functions)

    def get_global_var(self, name: str) -> GlobalVar:
        """The variable of the function with this name.

        Raises:
            KeyError: there is none.
        """
        for var in self._functions:
            if var.name_hint == name:
                return var
        raise KeyError(f"no function {name!r}; there are: {', '.join(map(str, self._functions))}")

    def get_global_vars(self) -> list[GlobalVar]:
        return list(self._functions)

    def script(self, *, dialect: str = "tvm", **ignored: Any) -> str:
        """The text of the module: ``from_source`` reads it."""
        del ignored
        functions = sorted(self._functions.items(), key=lambda item: _order(item[1], item[0].name_hint))
        lines = [*module_head(), "", "@I.ir_module", "class Module:"]
        if self.attrs:
            lines += [f"{INDENT}I.module_attrs({attrs_text(self.attrs)})", ""]
        for number, (var, function) in enumerate(functions):
            lines += [""] if number else []
            lines += [INDENT + line for line in function.script_lines(var.name_hint, dialect)]
        return "\n".join(lines if functions else [*lines, f"{INDENT}pass"]) + "\n"

    def show(self, **options: Any) -> None:
        """Print the text, in colours on a terminal."""
        show(self.script(**options))

    def __str__(self) -> str:
        return self.script()

    def __getitem__(self, name: GlobalVar | str) -> Any:
        return self._functions[name if isinstance(name, GlobalVar) else self.get_global_var(name)]

    def __setitem__(self, name: GlobalVar | str, function: Any) -> None:
        self._functions[name if isinstance(name, GlobalVar) else GlobalVar(name)] = function

    def __delitem__(self, name: GlobalVar | str) -> None:
        del self._functions[name if isinstance(name, GlobalVar) else self.get_global_var(name)]

    def __iter__(self) -> Iterator[GlobalVar]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)
