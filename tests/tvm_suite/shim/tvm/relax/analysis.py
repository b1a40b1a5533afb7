"""TVM's ``relax.analysis``."""

from smelt.relax import Function
from smelt.relax.rewrite import check_scopes
from smelt.relax.types import RelaxError
from smelt.relax.values import parts_of


def check_well_formed(mod) -> bool:
    try:
        well_formed(mod)
    except RelaxError:
        return False
    return True


def post_order_visit(expr, visit) -> None:
    """Every expression, after its parts."""
    for each in parts_of(expr):
        post_order_visit(each, visit)
    visit(expr)


def well_formed(mod) -> None:
    for var, function in mod.functions.items():
        if isinstance(function, Function):
            check_scopes(function, var.name_hint)
            if function.attrs.get("global_symbol", var.name_hint) != var.name_hint:
                raise RelaxError("SM1302", f"{var} has the symbol {function.attrs['global_symbol']}")
