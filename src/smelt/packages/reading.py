"""Reading of files that come from elsewhere: every field and size is checked. No torch, no pickle."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from smelt.errors import SmeltError

MOST_JSON_BYTES = 1 << 28
MOST_HEADER_BYTES = 100_000_000
"""As other readers of safetensors have it."""

_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    "C128": 128,
}


def malformed(path: Path, what: str, why: str | None = None) -> NoReturn:
    """
    Raises:
        SmeltError: SM1420.
    """
    raise SmeltError(
        "SM1420",
        f"{path}: {what}",
        why=why,
        remedy="a package is the folder that smelt.package wrote: copy all of it, or make it again",
    )


def read_bytes(path: Path, most: int) -> bytes:
    """All bytes of a regular file that has at most so many.

    Raises:
        SmeltError: SM1420.
    """
    try:
        if not path.is_file():
            malformed(path, "there is no such file")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        malformed(path, "it cannot be read", str(error))
    if len(data) > most:
        malformed(path, f"it has more than {most:,} bytes")
    return data


def read_json(path: Path, schema: Any) -> dict[str, Any]:
    """The data of a JSON file, which fit a schema (`check`).

    Raises:
        SmeltError: SM1420.
    """
    return parsed(path, read_bytes(path, MOST_JSON_BYTES), schema)


def parsed(path: Path, text: bytes, schema: Any) -> dict[str, Any]:
    """As `read_json`, of bytes that have been read. A key that is there twice is refused."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key is there twice")
        return found

    try:
        data = json.loads(text.decode("utf-8"), object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        malformed(path, "it is no JSON", str(error))
    try:
        check(data, schema)
    except ValueError as error:
        malformed(path, str(error))
    found: dict[str, Any] = data
    return found


@dataclass(frozen=True, slots=True)
class Every:
    """A schema: an object whose keys and values all fit."""

    key: Any
    value: Any


def check(value: Any, schema: Any, place: str = "it") -> None:
    """Checks plain data against a schema: a type; a function that says whether a value fits, and whose
    docstring says what does; ``[schema]`` for a list; a dictionary for an object, where a key that ends in
    ``?`` may be missing, and others may be there; `Every`; or a tuple of schemas of which one fits.

    >>> check({"shape": [1, 2]}, {"shape": [int], "order?": [int]})
    >>> check({"shape": [1, "x"]}, {"shape": [int]})
    Traceback (most recent call last):
        ...
    ValueError: it.shape[1] is no int

    Raises:
        ValueError: with the place.
    """
    if isinstance(schema, tuple):
        if not any(_fits(value, each) for each in schema):
            raise ValueError(f"{place} is none of {', '.join(map(_named, schema))}")
    elif isinstance(schema, type):
        if type(value) is not schema:  # True is no number
            raise ValueError(f"{place} is no {_named(schema)}")
    elif isinstance(schema, list):
        check(value, list, place)
        for number, each in enumerate(value):
            check(each, schema[0], f"{place}[{number}]")
    elif isinstance(schema, Every):
        check(value, dict, place)
        for key, each in value.items():
            check(key, schema.key, f"{place}: the key {shown(key)}")
            check(each, schema.value, f"{place}.{shown(key)}")
    elif isinstance(schema, dict):
        check(value, dict, place)
        for key, each in schema.items():
            name = key.removesuffix("?")
            if name in value:
                check(value[name], each, f"{place}.{name}")
            elif name == key:
                raise ValueError(f"{place} lacks {name}")
    elif not schema(value):
        raise ValueError(f"{place} is no {_named(schema)}")


def _fits(value: Any, schema: Any) -> bool:
    try:
        check(value, schema)
    except ValueError:
        return False
    return True


def _named(schema: Any) -> str:
    return schema.__name__ if isinstance(schema, type) else str(schema.__doc__ or "list")


def shown(text: object) -> str:
    """A text of a file for messages: short, and nothing that a terminal acts on.

    >>> shown("a" * 90 + chr(27))
    'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…'
    """
    plain = re.sub(r"[^\x20-\x7e\xa0-\U0010ffff]", "?", str(text))
    return plain if len(plain) <= 60 else plain[:60] + "…"


def is_identifier(value: Any) -> bool:
    """identifier of C"""
    return isinstance(value, str) and len(value) <= 200 and value.isascii() and value.isidentifier()


def is_count(value: Any) -> bool:
    """number from 0 to 2^63 - 1"""
    return type(value) is int and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    """number of 64 bits"""
    return type(value) is int and -(2**63) <= value < 2**63


def is_text(value: Any) -> bool:
    """text of at most 10,000 characters"""
    return isinstance(value, str) and len(value) <= 10_000


@dataclass(frozen=True, slots=True)
class WeightInfo:
    """A tensor of a file of weights; ``begin``: its place in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int

    @property
    def is_padding(self) -> bool:
        return self.name.startswith("padding.")


def weights_table(path: Path) -> tuple[WeightInfo, ...]:
    """The tensors of a safetensors file in order; their data are not read.

    Raises:
        SmeltError: SM1420 a header that is cut off or is no JSON, an unknown dtype, offsets that do not fit a
            shape, overlap, leave a hole, or are outside of the file.
    """
    if not path.is_file():
        malformed(path, "there is no such file")
    try:
        with path.open("rb") as file:
            there = os.fstat(file.fileno()).st_size
            (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
            if not 2 <= length <= min(there - 8, MOST_HEADER_BYTES):
                malformed(path, f"a header of {length:,} bytes in a file of {there:,}")
            text = file.read(length)
    except OSError as error:
        malformed(path, "it cannot be read", str(error))
    header = parsed(path, text, Every(str, dict))
    header.pop("__metadata__", None)
    try:
        return tuple(_placed(header, 8 + length, there))
    except ValueError as error:
        malformed(path, str(error))


_ENTRY = {"dtype": str, "shape": [is_count], "data_offsets": [is_count]}


def _placed(header: Mapping[str, Any], base: int, there: int) -> Sequence[WeightInfo]:
    found = []
    for name, each in header.items():
        check(each, _ENTRY, shown(name))
        bits, count = _BITS.get(each["dtype"]), 1
        for size in each["shape"]:
            count *= size
        if bits is None:
            raise ValueError(f"{shown(name)}: unknown dtype {shown(each['dtype'])}")
        if len(each["data_offsets"]) != 2:
            raise ValueError(f"{shown(name)} has not two offsets")
        begin, end = each["data_offsets"]
        if end - begin != count * bits // 8:
            raise ValueError(f"{shown(name)}: offsets {begin} and {end} do not fit its shape and dtype")
        found.append(WeightInfo(name, each["dtype"], tuple(each["shape"]), base + begin, end - begin))
    found.sort(key=lambda info: (info.begin, info.nbytes))
    place = base
    for info in found:
        if info.begin != place:
            raise ValueError(
                f"{shown(info.name)} {'overlaps another' if info.begin < place else 'follows a hole'}"
            )
        place += info.nbytes
    if place != there:
        raise ValueError(f"its tensors end at byte {place}, the file at {there}")
    return found
