"""Philox4x32-10 against the vectors of its authors and against plain integers; its bits are even."""

from __future__ import annotations

import random

import pytest
import torch

from smelt.loops.philox import block, philox

WORD = 0xFFFFFFFF
VECTORS = [
    # counter, key, result: kat_vectors of Random123, philox4x32 with 10 rounds
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD, WORD, WORD, WORD), (WORD, WORD), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def signed(low: int, high: int) -> int:
    """The int64 of two words."""
    value = low | high << 32
    return value - (1 << 64) if value >> 63 else value


def by_integers(key: int, counter: int, stream: int) -> int:
    """The same in Python's own integers."""
    a, b, c, d = counter & WORD, counter >> 32 & WORD, stream & WORD, stream >> 32 & WORD
    left, right = key & WORD, key >> 32 & WORD
    for _ in range(10):
        one, two = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = two >> 32 ^ b ^ left, two & WORD, one >> 32 ^ d ^ right, one & WORD
        left, right = left + 0x9E3779B9 & WORD, right + 0xBB67AE85 & WORD
    return signed(a, b)


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], result: tuple[int, ...]) -> None:
    words = block(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))  # type: ignore[arg-type]
    assert tuple(word.item() for word in words) == result
    parts = [signed(*key), signed(*counter[:2]), signed(*counter[2:])]
    assert philox(*map(torch.tensor, parts)).item() == signed(*result[:2])


def test_every_element_is_what_python_integers_give() -> None:
    source = random.Random(5)
    rows = [[source.randrange(-(1 << 63), 1 << 63) for _ in range(3)] for _ in range(500)]
    rows += [[0, n, 0] for n in range(20)] + [[-1, -n, n] for n in range(20)]
    columns = torch.tensor(rows).T
    assert philox(*columns).tolist() == [by_integers(*row) for row in rows]


def test_arguments_broadcast() -> None:
    got = philox(torch.tensor(7), torch.arange(5).view(5, 1), torch.arange(3))
    assert got.shape == (5, 3)
    assert got[4, 2] == philox(torch.tensor(7), torch.tensor(4), torch.tensor(2))


@pytest.mark.parametrize("stream", [0, 1])
def test_each_bit_is_even_and_neighbours_have_nothing_in_common(stream: int) -> None:
    bits = philox(torch.tensor(12345), torch.arange(40_000), torch.tensor(stream))
    places = (bits.unsqueeze(1) >> torch.arange(64)) & 1
    assert (places.double().mean(0) - 0.5).abs().max() < 4.5 * 0.5 / 200
    signs = places.double() * 2 - 1
    common = (signs.T @ signs) / len(bits) - torch.eye(64)
    following = (signs[1:].T @ signs[:-1]) / len(bits)
    assert common.abs().max() < 5.5 / 200
    assert following.abs().max() < 5.5 / 200
