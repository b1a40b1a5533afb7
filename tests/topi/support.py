"""Runs functions of topi on torch tensors, by the interpreter of nests."""

import torch

from smelt import te
from tests.te.support import run


def topi_of(function, *tensors):
    """What ``function`` gives of placeholders, filled from the tensors; a tuple where it gives several."""
    given = [
        te.placeholder(tuple(x.shape), str(x.dtype).removeprefix("torch."), f"x{n}")
        for n, x in enumerate(tensors)
    ]
    results = function(*given)
    several = isinstance(results, (tuple, list))
    found = run([*given, *(results if several else [results])], *tensors)
    return found if isinstance(found, tuple) or not several else (found,)


def check(function, reference, *tensors, tolerance=4):
    """The interpreter's numbers of topi against torch's, both beside those of float64."""
    ours, theirs = topi_of(function, *tensors), reference(*tensors)
    if not isinstance(ours, tuple):
        ours, theirs = (ours,), (theirs,)
    for got, want in zip(ours, theirs, strict=True):
        assert got.shape == want.shape, (got.shape, want.shape)
        if want.dtype.is_floating_point:
            eps = 8 * tolerance * torch.finfo(want.dtype).eps
            torch.testing.assert_close(got, want, rtol=eps, atol=eps, equal_nan=True)
        else:
            assert torch.equal(got.to(want.dtype), want), (got, want)
