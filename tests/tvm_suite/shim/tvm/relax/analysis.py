"""TVM's ``relax.analysis``."""

from smelt.relax import Function
from smelt.relax.rewrite import check_scopes
from smelt.relax.types import RelaxError


def check_well_formed(mod) -> bool:
    try:
        well_formed(mod)
    except RelaxError:
        return False
    return True


def well_formed(mod) -> None:
    for var, function in mod.functions.items():
        if isinstance(function, Function):
            check_scopes(function, var.name_hint)
            if function.attrs.get("global_symbol", var.name_hint) != var.name_hint:
                raise RelaxError("SM1302", f"{var} has the symbol {function.attrs['global_symbol']}")
