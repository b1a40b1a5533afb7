"""Random programs as data: inputs and steps of Python text, so that they can be run, shrunk and written down.

Sizes have names (A, B, C): a program is the same text for every choice of them. A step is accepted when eager
takes it under all of the `TRIAL_SIZES`, so what fits there fits because of its structure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

Sizes = Mapping[str, int]
TRIAL_SIZES: tuple[Sizes, ...] = (
    {"A": 6, "B": 7, "C": 11},
    {"A": 9, "B": 16, "C": 8},
    {"A": 17, "B": 5, "C": 6},
)
LAYOUTS = ("contiguous", "transposed", "strided", "offset", "expanded", "channels_last")
DTYPES = (
    "float32",
    "float32",
    "float32",
    "float64",
    "bfloat16",
    "float16",
    "int64",
    "int32",
    "bool",
    "uint8",
)


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor argument: dimensions are names of sizes or numbers."""

    name: str
    shape: tuple[str | int, ...]
    dtype: str
    layout: str
    seed: int
    wants_gradient: bool = False

    def make(self, sizes: Sizes) -> torch.Tensor:
        """The tensor for these sizes; the same each time."""
        shape = [sizes[size] if isinstance(size, str) else size for size in self.shape]
        return lay_out(draw(shape, self.dtype, self.seed), self.layout).requires_grad_(self.wants_gradient)


@dataclass(frozen=True, slots=True)
class Step:
    """``name = text``, or the statement ``text`` (a mutation) without a name. ``uses``: names in it."""

    name: str | None
    text: str
    uses: tuple[str, ...]

    def line(self) -> str:
        return self.text if self.name is None else f"{self.name} = {self.text}"


@dataclass(frozen=True, slots=True)
class Program:
    """A function of the inputs. ``sizes`` are those it was drawn with."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...] = tuple(TRIAL_SIZES[0].items())

    def source(self, shaken: bool = False) -> str:
        """Python text of ``def program(…)``; ``shaken``: every step's result goes through ``shake``."""
        lines = [f"    {step.line()}" for step in self.steps]
        if shaken:
            lines = [f"    {s.name} = shake({s.text})" if s.name else f"    {s.text}" for s in self.steps]
        arguments = ", ".join(each.name for each in self.inputs)
        results = "".join(f"{name}, " for name in self.outputs)
        return "\n".join([f"def program({arguments}):", *lines, f"    return ({results})"]) + "\n"

    def function(self, shake: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Any:
        """The function itself; with ``shake`` each step's result is what it makes of it."""
        namespace: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "shake": shake}
        exec(compile(self.source(shake is not None), "<program>", "exec"), namespace)
        return namespace["program"]

    @property
    def mutates(self) -> bool:
        """Whether a step works in place."""
        return any(step.name is None for step in self.steps)

    def arguments(self, sizes: Sizes | None = None) -> list[torch.Tensor]:
        """Fresh input tensors."""
        return [each.make(sizes or dict(self.sizes)) for each in self.inputs]

    def with_steps(self, steps: Sequence[Step], outputs: Sequence[str], inputs: Sequence[Input]) -> Program:
        """The program with other parts, less the inputs that nothing uses."""
        used = {name for step in steps for name in step.uses} | set(outputs)
        kept = tuple(each for each in inputs if each.name in used) or tuple(inputs[:1])
        return replace(self, steps=tuple(steps), outputs=tuple(outputs), inputs=kept)


def draw(shape: Sequence[int], dtype: str, seed: int) -> torch.Tensor:
    """Random numbers of the dtype, small enough that products of a few do not overflow float16."""
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    if kind is torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator).bool()
    if not kind.is_floating_point:
        return torch.randint(0 if dtype == "uint8" else -5, 6, tuple(shape), generator=generator).to(kind)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(kind)


def lay_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same elements in another place or order of memory."""
    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided" and tensor.dim() >= 1:
        room = tensor.new_zeros((*tensor.shape[:-1], tensor.shape[-1] * 2))
        room[..., ::2] = tensor
        return room[..., ::2]
    if layout == "offset":
        room = tensor.new_zeros(tensor.numel() + 3)
        room[3:] = tensor.flatten()
        return room[3:].view(tensor.shape)
    if layout == "expanded" and tensor.dim() >= 2:
        return tensor[:1].expand(tensor.shape)
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


class Pool:
    """The values of a program under construction, for all trial sizes at once."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.values: dict[str, list[torch.Tensor]] = {}
        self.count = 0

    def pick(self, test: Any = None) -> str | None:
        """A random name whose value (of the first trial) passes the test; recent ones more often."""
        names = [name for name, value in self.values.items() if test is None or test(value[0])]
        if not names:
            return None
        return names[max(self.rng.randrange(len(names)), self.rng.randrange(len(names)))]

    def partner(self, name: str, test: Any = None) -> str:
        """Another value that broadcasts with ``name`` under all sizes; else ``name`` itself."""
        names = [
            other
            for other in self.values
            if all(_broadcasts(a, b) for a, b in zip(self.values[name], self.values[other]))
            and (test is None or test(self.values[other][0]))
        ]
        return self.rng.choice(names) if names else name

    def fitting(self, name: str, test: Callable[[torch.Tensor], bool]) -> str:
        """Another value of the dtype of ``name`` that passes the test; else ``name`` itself."""
        kind = self.first(name).dtype
        names = [n for n, v in self.values.items() if n != name and v[0].dtype == kind and test(v[0])]
        return self.rng.choice(names) if names else name

    def first(self, name: str) -> torch.Tensor:
        """The value under the first trial sizes."""
        return self.values[name][0]

    def run(self, text: str) -> list[Any] | None:
        """The expression under all trial sizes; None where eager refuses it or the result is too much."""
        results = []
        for trial in range(len(TRIAL_SIZES)):
            scope = {name: value[trial] for name, value in self.values.items()}
            scope |= {"torch": torch, "F": torch.nn.functional}
            try:
                result = eval(text, scope)
            except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
                return None
            if not isinstance(result, torch.Tensor) or result.numel() > 20_000 or result.is_complex():
                return None
            results.append(result)
        return results

    def add(self, values: list[torch.Tensor], prefix: str = "v") -> str:
        """A new name for values."""
        name = f"{prefix}{self.count}"
        self.count += 1
        self.values[name] = values
        return name


def _broadcasts(a: torch.Tensor, b: torch.Tensor) -> bool:
    return all(x == y or x == 1 or y == 1 for x, y in zip(reversed(a.shape), reversed(b.shape)))


def generate(seed: int, steps: int = 10, gradients: bool | None = None) -> Program:
    """A random program: the same for the same seed."""
    from tests.conformance.steps import random_step

    rng = random.Random(seed)
    pool = Pool(rng)
    wants = rng.random() < 0.3 if gradients is None else gradients
    inputs = []
    for number in range(rng.randint(1, 4)):
        rank = rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
        shape = tuple(rng.choice(("A", "B", "C", "A", "B", 1, 3)) for _ in range(rank))
        dtype = "float32" if wants and number == 0 else rng.choice(DTYPES)
        layout = rng.choice(LAYOUTS) if rng.random() < 0.5 else "contiguous"
        differentiable = wants and getattr(torch, dtype).is_floating_point and layout != "expanded"
        each = Input(f"x{number}", shape, dtype, layout, rng.randrange(2**31), differentiable)
        inputs.append(each)
    inputs += _factors(rng, wants)
    for each in inputs:
        pool.values[each.name] = [each.make(sizes).detach() for sizes in TRIAL_SIZES]
    made: list[Step] = []
    protected = {each.name for each in inputs if each.wants_gradient or each.layout == "expanded"}
    for _ in range(60 * steps):
        if len(made) >= steps:
            break
        step = random_step(pool, protected, mutate=not wants)
        if step is not None:
            made.append(step)
    results = [step.name for step in made if step.name is not None]
    kept = results[-1:] + [name for name in results[:-1] if rng.random() < 0.3]
    return Program(tuple(inputs), tuple(made), tuple(kept) or (inputs[0].name,))


def _factors(rng: random.Random, wants: bool) -> list[Input]:
    """For half of the programs: what products and convolutions need, whose sizes fit together by chance only
    rarely. A picture, a line or rows; weights that take these, and weights that take what the former give.
    """
    if rng.random() < 0.5:
        return []
    rank = rng.choice((0, 0, 1, 2, 2))
    widths = [rng.choice((1, 3, 4, 8, 16, 20)) for _ in range(3)]
    window = rng.choice((1, 1, 2, 3))
    dtype = rng.choice(("float32", "float32", "float32", "float64", "bfloat16", "float16"))
    if rank:
        shapes: list[tuple[str | int, ...]] = [(rng.choice((1, 2, "A")), widths[0], *"BC"[:rank])]
    else:
        shapes = [(*rng.choice(((), ("A",), (2, "B"))), rng.choice("BC"), widths[0])]
    shapes += [(after, before, *[window] * rank) for before, after in pairwise(widths)]
    inputs = []
    for number, shape in enumerate(shapes):
        layout = rng.choice(LAYOUTS) if rng.random() < 0.3 else "contiguous"
        inputs.append(
            Input(f"f{number}", shape, dtype, layout, rng.randrange(2**31), wants and layout != "expanded")
        )
    return inputs
