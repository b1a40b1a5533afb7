"""One table: ATen overload → loop functions. `smelt.lowering.registry.TABLE` is it; each module fills in a family."""


