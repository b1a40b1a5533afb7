"""The steps that random programs are made of: families of operators, as text over names of a pool."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.conformance.programs import Pool, Step

UNARY = [
    "abs",
    "neg",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sigmoid",
    "erf",
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "sign",
    "reciprocal",
    "square",
    "relu",
    "expm1",
    "log1p",
    "isnan",
    "isfinite",
    "logical_not",
    "atan",
    "asinh",
    "sinh",
    "cosh",
    "exp2",
    "log2",
    "sgn",
    "nan_to_num",
    "erfc",
]
FUNCTIONAL = [
    "relu6",
    "gelu",
    "silu",
    "softplus",
    "elu",
    "selu",
    "leaky_relu",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "mish",
    "logsigmoid",
    "softsign",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "atan2",
    "remainder",
    "fmod",
    "logical_and",
    "logical_or",
    "logical_xor",
    "hypot",
    "copysign",
    "fmax",
    "fmin",
    "logaddexp",
]
INTEGER_BINARY = ["bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide"]
REDUCTIONS = [
    "sum",
    "mean",
    "amax",
    "amin",
    "prod",
    "argmax",
    "argmin",
    "any",
    "all",
    "var",
    "std",
    "logsumexp",
    "count_nonzero",
    "nansum",
]
IN_PLACE = ["add_", "mul_", "sub_", "copy_", "clamp_min_"]
CASTS = ["float32", "float32", "float64", "bfloat16", "float16", "int64", "int32", "bool", "uint8"]

Expression = tuple[str, tuple[str, ...]]
Family = Callable[[Pool], Expression | None]


def _float(value: torch.Tensor) -> bool:
    return value.is_floating_point()


def _ranked(rank: int) -> Callable[[torch.Tensor], bool]:
    return lambda value: value.dim() >= rank


def _dim(pool: Pool, name: str) -> int:
    rank = pool.first(name).dim()
    return pool.rng.randrange(-rank, rank) if rank else 0


def unary(pool: Pool) -> Expression | None:
    name = pool.pick()
    return (f"torch.{pool.rng.choice(UNARY)}({name})", (name,)) if name else None


def functional(pool: Pool) -> Expression | None:
    name = pool.pick(_float)
    return (f"F.{pool.rng.choice(FUNCTIONAL)}({name})", (name,)) if name else None


def binary(pool: Pool) -> Expression | None:
    name = pool.pick()
    if name is None:
        return None
    other = pool.partner(name)
    return f"torch.{pool.rng.choice(BINARY + INTEGER_BINARY)}({name}, {other})", (name, other)


def with_number(pool: Pool) -> Expression | None:
    name = pool.pick()
    if name is None:
        return None
    number = pool.rng.choice(("2", "3", "0.5", "-1", "1.25", "7"))
    form = pool.rng.choice(
        ("{} + {}", "{} * {}", "{1} - {0}", "{} / {}", "{} % {}", "{} // {}", "{} ** 2", "{} > {}")
    )
    return f"({form.format(name, number)})", (name,)


def selection(pool: Pool) -> Expression | None:
    name = pool.pick()
    if name is None:
        return None
    other = pool.partner(name)
    form = pool.rng.choice(
        ("torch.where({0} > 0, {0}, {1})", "{0}.masked_fill({1} > 0, 1)", "torch.clamp({0}, -1, 2)")
    )
    return form.format(name, other), (name, other)


def reduction(pool: Pool) -> Expression | None:
    name = pool.pick()
    if name is None:
        return None
    kind, value = pool.rng.choice(REDUCTIONS), pool.first(name)
    if value.dim() == 0 or (pool.rng.random() < 0.2 and kind not in ("logsumexp", "var", "std")):
        return f"torch.{kind}({name})", (name,)
    if kind in ("sum", "mean", "amax", "amin", "var", "std", "logsumexp") and pool.rng.random() < 0.3:
        chosen = sorted(pool.rng.sample(range(value.dim()), pool.rng.randint(1, value.dim())))
        return f"torch.{kind}({name}, dim={tuple(chosen)})", (name,)
    keep = "" if kind == "count_nonzero" or pool.rng.random() < 0.5 else ", keepdim=True"
    return f"torch.{kind}({name}, dim={_dim(pool, name)}{keep})", (name,)


def normalization(pool: Pool) -> Expression | None:
    name = pool.pick(lambda v: _float(v) and v.dim() >= 1)
    if name is None:
        return None
    form = pool.rng.choice(
        (
            "torch.softmax({0}, {1})",
            "torch.log_softmax({0}, {1})",
            "F.layer_norm({0}, {0}.shape[-1:])",
            "F.normalize({0}, dim={1})",
            "torch.cumsum({0}, {1})",
            "F.softmin({0}, {1})",
        )
    )
    return form.format(name, _dim(pool, name)), (name,)


def view(pool: Pool) -> Expression | None:
    name = pool.pick(_ranked(1))
    if name is None:
        return None
    rank, rng = pool.first(name).dim(), pool.rng
    order = list(range(rank))
    rng.shuffle(order)
    dim = _dim(pool, name)
    forms = [
        f"{name}.permute({tuple(order)})",
        f"{name}.unsqueeze({rng.randint(0, rank)})",
        f"{name}.squeeze()",
        f"{name}.flatten()",
        f"{name}.flip({dim})",
        f"{name}.narrow({dim}, 1, 2)",
        f"{name}.select({dim}, {rng.choice((0, 1, -1))})",
        f"{name}[..., 1:]",
        f"{name}[::2]",
        f"{name}[..., :-1]",
        f"{name}.roll({rng.choice((1, 2, -1))}, {dim})",
        f"{name}.contiguous()",
        f"{name}.clone()",
        f"{name}.unfold({dim}, 2, 1)",
        f"{name}.repeat_interleave(2, {dim})",
        f"torch.chunk({name}, 2, {dim})[0]",
        f"F.pad({name}, (1, 2))",
        f"{name}.movedim(0, -1)",
        f"{name}.reshape(-1, {name}.shape[-1])",
        f"{name}.expand(2, {', '.join(['-1'] * rank)})",
        f"{name}.repeat({', '.join(['2'] + ['1'] * rank)})",
    ]
    if rank >= 2:
        forms += [
            f"{name}.diagonal()",
            f"torch.tril({name})",
            f"torch.triu({name}, 1)",
            f"{name}.flatten(0, 1)",
            f"{name}.mT",
        ]
    return rng.choice(forms), (name,)


def joining(pool: Pool) -> Expression | None:
    name = pool.pick(_ranked(1))
    if name is None:
        return None
    shapes = [value.shape for value in pool.values[name]]
    same = [n for n, values in pool.values.items() if [v.shape for v in values] == shapes]
    other, dim = pool.rng.choice(same), _dim(pool, name)
    form = pool.rng.choice(("torch.cat(({0}, {1}), {2})", "torch.stack(({1}, {0}), {2})"))
    return form.format(name, other, dim), (name, other)


def indexing(pool: Pool) -> Expression | None:
    name = pool.pick(_ranked(1))
    if name is None:
        return None
    dim = _dim(pool, name)
    positions = f"(torch.arange({name}.shape[{dim}]) * 3 % {name}.shape[{dim}])"
    within = f"(torch.zeros_like({name}, dtype=torch.int64) + {name}.shape[{dim}] - 1)"
    form = pool.rng.choice(
        (
            f"{name}.index_select({dim}, {positions})",
            f"{name}.gather({dim}, {within})",
            f"{name}[torch.tensor([0, 2, -1, 2])]",
            f"{name}[..., torch.tensor([1, 0])]",
            f"torch.zeros_like({name}).scatter_add({dim}, {within}, {name})",
            f"{name}.index_add({dim}, {positions}, {name})",
            f"{name}.index_fill({dim}, torch.tensor([0, 1]), 3)",
            f"{name}.select_scatter({name}.select({dim}, 0) * 2, {dim}, 1)",
            f"{name}.take_along_dim({within}, {dim})",
            f"torch.sort({name}, dim={dim}).values",
            f"torch.argsort({name}, dim={dim}, stable=True)",
            f"torch.topk({name}, 2, dim={dim}).values",
            f"{name}.cumprod({dim})",
            f"torch.cummax({name}, {dim}).values",
        )
    )
    return form, (name,)


def contraction(pool: Pool) -> Expression | None:
    name = pool.pick(lambda v: _float(v) and v.dim() >= 2)
    if name is None:
        return None
    value = pool.first(name)
    rows = pool.fitting(name, lambda v: v.dim() == 2 and v.shape[1] == value.shape[-1])
    heads = pool.fitting(name, lambda v: v.dim() == value.dim() and v.shape[-1] == value.shape[-1])
    form = pool.rng.choice(
        (
            "{0} @ {0}.mT",
            "torch.matmul({0}.mT, {0})",
            "{0} @ {1}.mT",
            "F.linear({0}, {1})",
            "F.linear({0}, {1}, {1}[:, 0])",
            "torch.einsum('...i,oi->o...', {0}, {1})",
            "F.scaled_dot_product_attention({0}, {2}, {2})",
            "F.scaled_dot_product_attention({0}, {2}, {2}, is_causal=True)",
        )
    )
    return form.format(name, rows, heads), (name, *([rows] * ("{1}" in form)), *([heads] * ("{2}" in form)))


def convolution(pool: Pool) -> Expression | None:
    name = pool.pick(lambda v: _float(v) and v.dim() in (3, 4))
    if name is None:
        return None
    value, rng = pool.first(name), pool.rng
    rank = value.dim() - 2
    turned = rng.random() < 0.2
    weight = pool.fitting(
        name, lambda v: v.dim() == rank + 2 and v.shape[0 if turned else 1] == value.shape[1]
    )
    stride, padding, dilation = (rng.choice(each) for each in ((1, 1, 2, 3), (0, 0, 1, 2), (1, 1, 2)))
    settings = f"stride={stride}, padding={padding}, dilation={dilation}"
    if turned:
        return f"F.conv_transpose{rank}d({name}, {weight}, {settings})", (name, weight)
    if rng.random() < 0.2:
        each = f"{weight}[:1, :1].expand({value.shape[1]}, 1, *{weight}.shape[2:])"
        return f"F.conv{rank}d({name}, {each}, {settings}, groups={value.shape[1]})", (name, weight)
    return f"F.conv{rank}d({name}, {weight}, {settings})", (name, weight)


def window(pool: Pool) -> Expression | None:
    name = pool.pick(lambda v: _float(v) and v.dim() in (3, 4) and min(v.shape[2:]) >= 2)
    if name is None:
        return None
    rank = pool.first(name).dim() - 2
    form = pool.rng.choice(
        (
            f"F.avg_pool{rank}d({name}, 2)",
            f"F.max_pool{rank}d({name}, 2, stride=1)",
            f"F.interpolate({name}, scale_factor=2.0, mode='nearest')",
            f"F.pad({name}, {(1, 1) * rank}, mode='reflect')",
            f"F.adaptive_avg_pool{rank}d({name}, 1)",
        )
    )
    return form, (name,)


def cast(pool: Pool) -> Expression | None:
    name = pool.pick()
    return (f"{name}.to(torch.{pool.rng.choice(CASTS)})", (name,)) if name else None


def creation(pool: Pool) -> Expression | None:
    name = pool.pick(_ranked(1))
    if name is None:
        return None
    form = pool.rng.choice(
        (
            "torch.arange({0}.shape[0])",
            "torch.ones_like({0})",
            "torch.full({0}.shape, 2.5)",
            "torch.linspace(0, 1, {0}.shape[-1])",
            "torch.eye({0}.shape[0])",
        )
    )
    return form.format(name), (name,)


FAMILIES: tuple[tuple[int, Family], ...] = (
    (6, unary),
    (3, functional),
    (8, binary),
    (4, with_number),
    (3, selection),
    (6, reduction),
    (3, normalization),
    (9, view),
    (3, joining),
    (4, indexing),
    (6, contraction),
    (8, convolution),
    (2, window),
    (3, cast),
    (1, creation),
)
_WEIGHTS = [weight for weight, _ in FAMILIES]


def random_step(pool: Pool, protected: set[str], mutate: bool) -> Step | None:
    """A step that eager takes under all trial sizes, applied to the pool; None where a draw does not fit."""
    if mutate and pool.rng.random() < 0.08:
        return _mutation(pool, protected)
    family = pool.rng.choices([family for _, family in FAMILIES], _WEIGHTS)[0]
    drawn = family(pool)
    if drawn is None:
        return None
    text, uses = drawn
    results = pool.run(text)
    if results is None:
        return None
    return Step(pool.add(results), text, tuple(dict.fromkeys(uses)))


def _mutation(pool: Pool, protected: set[str]) -> Step | None:
    """An in-place operator on a value (or a part of it) with another that broadcasts into it."""
    name = pool.pick(lambda value: value.is_floating_point())
    if name is None or name in protected:
        return None
    rng = pool.rng
    target = rng.choice((name, f"{name}[..., 1:]", f"{name}[0]")) if pool.first(name).dim() else name
    kind = rng.choice(IN_PLACE)
    source = rng.choice(("0.5", f"{target} * 2", f"{target}.flip(-1)")) if pool.first(name).dim() else "0.5"
    if kind == "copy_" and source == "0.5":
        source = f"{target} + 1"
    text = f"{target}.{kind}({source})"
    before = {key: [value.clone() for value in values] for key, values in pool.values.items()}
    if pool.run(text) is None:
        pool.values.update(before)
        return None
    return Step(None, text, (name,))
