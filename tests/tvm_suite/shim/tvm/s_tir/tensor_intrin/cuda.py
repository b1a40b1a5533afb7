"""``tvm.s_tir.tensor_intrin.cuda``: names; there is no GPU here."""


def __getattr__(name: str) -> str:
    if not name.endswith(("_INTRIN", "_intrin")):
        raise AttributeError(name)
    return name
