"""Programs for TorchScript, which wants a file with their source, and `typing`'s names of types."""

# ruff: noqa: UP006, UP007, UP035, UP045, SIM108, SIM905
import math
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn


class Pair(NamedTuple):
    first: Tensor
    second: int


@torch.jit.script
class Counter:
    def __init__(self, start: int):
        self.n = start

    def add(self, k: int) -> int:
        self.n += k
        return self.n


def lists(x: Tensor, n: int) -> List[Tensor]:
    found: List[Tensor] = []
    for i in range(n):
        found.append(x * i)
    found.insert(0, x)
    last = found.pop()
    found.extend([last, last + 1])
    found[0] = found[1] + found[-1]
    del found[1]
    found.reverse()
    return found[::2]


def dicts(x: Tensor) -> Tuple[Dict[str, Tensor], List[str], bool]:
    d = {"a": x, "b": x + 1}
    d["c"] = d["a"] * 2
    d.update({"e": x})
    d.pop("a")
    return d, list(d.keys()), "b" in d


def strings(x: Tensor, name: str) -> Tuple[str, List[str], int]:
    s = f"{name}-{x.size(0)}".upper()
    return s[1:3] + s[0], "a,b".split(","), s.find("-") + ord("a")


def numbers(a: int, b: int, c: float) -> Tuple[int, int, float, float, float, int, bool]:
    return a // b, a % b, a / b, math.sqrt(c), c**2, math.floor(c), a < b and c > 1.0


def named(x: Tensor) -> Pair:
    return Pair(x + 1, x.size(0))


def use_named(p: Pair) -> Tensor:
    return p.first * p.second


def optional(x: Tensor, y: Optional[Tensor] = None, scale: float = 2.0) -> Tensor:
    if y is not None:
        x = x + y
    return x * scale


def factory(x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    return (
        torch.tensor([1, 2, 3]),
        torch.zeros(x.size(0), 2, dtype=x.dtype, device=x.device),
        torch.full([2], 3.5, dtype=torch.float64),
    )


def dtypes(x: Tensor, d: Optional[int] = None) -> Tensor:
    if x.dtype == torch.float16:
        return x.float()
    return x.to(torch.int64 if x.is_floating_point() else torch.float32)


def nograd(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return y + x


def forked(x: Tensor) -> Tensor:
    f = torch.jit.fork(torch.sin, x)
    return torch.jit.wait(f) + x


def inplace(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = 1.0
    y[:, 1] += 2
    y.mul_(3)
    return y


def early(x: Tensor, n: int) -> Tensor:
    for i in range(n):
        if i == 3:
            return x * i
        if i % 2 == 0:
            continue
        x = x + i
    return x - 1


def collatz(x: Tensor) -> Tuple[int, Tensor]:
    n = int(x.sum().item())
    steps = 0
    acc = x * 1
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        acc = (acc.sin() + acc.cos()) / n
        steps += 1
    return steps, acc


def newton(x: Tensor) -> Tensor:
    y = x / 2
    z = y.exp().log()
    while bool((y * y - x).abs().max() > 1e-4):
        y = 0.5 * (y + x / y)
        z = z + y.sin() * y.cos()
    return y + z


def shadow(max: int, len: float, x: Tensor) -> Tensor:
    pair = [x, x]
    return x * max + len + min(3, 4) + torch.stack(pair).sum()


def counted(x: Tensor) -> int:
    c = Counter(3)
    c.add(x.size(0))
    return c.add(2)


def isinst(x: Union[int, List[int]]) -> int:
    if isinstance(x, int):
        return x
    return len(x)


def tolist(x: Tensor) -> List[float]:
    y: List[float] = x.tolist()
    return y


def interp(x: Tensor) -> Tensor:
    return nn.functional.interpolate(x[None, None], scale_factor=2.0, mode="bilinear", align_corners=False)


def raising(x: Tensor) -> Tensor:
    if x.size(0) > 3:
        raise ValueError("too long")
    return x


def aliased(x: Tensor) -> Tensor:
    a = [x]
    b = a
    b.append(x + 1)
    return torch.cat(a)


def add_to(given: List[int], n: int) -> List[int]:
    given += [n]
    given.append(4)
    return given


def comprehension(x: Tensor) -> Tensor:
    return torch.stack([x * i for i in range(3)] + [t.sum() * x for t in x])


def devices(x: Tensor) -> Tuple[bool, Tensor]:
    d = x.device
    return d == torch.device("cpu"), torch.ones(2, device=d).to("cpu")


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        y, (h, _) = self.lstm(x)
        return self.head(self.drop(self.norm(y[:, -1]))), h


class Stateful(nn.Module):
    calls: int

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(3))
        self.last = torch.zeros(3)
        self.history: List[int] = [0]
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x):
        self.calls += 1
        self.history.append(self.calls)
        for layer in self.layers:
            x = layer(x)
        self.seen += x.detach().sum(0)
        self.last = x.detach()[0]
        return x + self.calls + self.last

    @torch.jit.export
    def reset(self, to: int = 0):
        self.calls = to
        self.seen.zero_()


class Branching(nn.Module):
    """A layer, then what its mean decides."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        y = self.layer(x).tanh()
        if bool(y.mean() > 0):
            y = (y * 2).sin()
        else:
            y = (y - 1).cos()
        return y + x


class Deciding(nn.Module):
    """The same as functions of tensors alone, and a loop."""

    def forward(self, x):
        y = x.sin()
        if not bool(y.sum() > 0):
            y = y - 1
        while bool(y.abs().sum() > 0.5):
            y = y / 2
        return y.cos()


def counts_its_turns(x: Tensor) -> Tensor:
    for i in range(int(x.sum())):
        x = x + i
    return x


def stops(x: Tensor) -> Tensor:
    if bool(x.sum() > 100):
        raise ValueError("too much")
    return x * 2


class Holder(nn.Module):
    """Its counter is an object of a script class."""

    def __init__(self):
        super().__init__()
        self.counter = Counter(1)

    def forward(self, x):
        return x * self.counter.add(1)


class Making(nn.Module):
    """It makes such an object, and uses a layer before it is done with it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        counter = Counter(x.size(0))
        y = self.layer(x).exp().sin()
        return y * counter.add(1)


class Entangled(nn.Module):
    """It sets an attribute to what such an object says."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        counter = Counter(x.size(0))
        self.calls = counter.add(1)
        return x * counter.add(1)
