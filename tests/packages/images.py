"""Readers of libraries of other systems: the processor, the exported functions, the libraries they need."""

from __future__ import annotations

import struct


def _text(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode()


class Portable:
    """A DLL for Windows (PE32+)."""

    def __init__(self, image: bytes) -> None:
        (header,) = struct.unpack_from("<I", image, 0x3C)
        assert image[:2] == b"MZ" and image[header : header + 4] == b"PE\0\0"
        number, sections, _, _, _, optional, _ = struct.unpack_from("<HHIIIHH", image, header + 4)
        self.machine = {0x8664: "x86_64", 0xAA64: "aarch64"}[number]
        start = header + 24
        assert struct.unpack_from("<H", image, start) == (0x20B,)
        exports, _, imports, _ = struct.unpack_from("<IIII", image, start + 112)
        table = [struct.unpack_from("<8sIIII", image, start + optional + 40 * k) for k in range(sections)]

        def at(address: int) -> int:
            inside = (each for each in table if each[2] <= address < each[2] + each[1])
            return next(file + address - place for _, _, place, _, file in inside)

        (count,) = struct.unpack_from("<I", image, at(exports) + 24)
        (names,) = struct.unpack_from("<I", image, at(exports) + 32)
        found = struct.unpack_from(f"<{count}I", image, at(names))
        self.exports = {_text(image, at(each)) for each in found}
        self.libraries: set[str] = set()
        place = at(imports)
        while name := struct.unpack_from("<5I", image, place)[3]:
            self.libraries.add(_text(image, at(name)))
            place += 20


class MachO:
    """A library for macOS."""

    def __init__(self, image: bytes) -> None:
        magic, number, _, kind, count, _, _, _ = struct.unpack_from("<8I", image, 0)
        assert (magic, kind) == (0xFEEDFACF, 6)
        self.machine = {0x01000007: "x86_64", 0x0100000C: "aarch64"}[number]
        self.libraries: set[str] = set()
        self.exports: set[str] = set()
        self.name = ""
        at = 32
        for _ in range(count):
            command, size = struct.unpack_from("<II", image, at)
            if command in (0xC, 0xD):
                (name,) = struct.unpack_from("<I", image, at + 8)
                if command == 0xC:
                    self.libraries.add(_text(image, at + name))
                else:
                    self.name = _text(image, at + name)
            if command == 2:
                symbols, length, strings, _ = struct.unpack_from("<IIII", image, at + 8)
                for each in range(length):
                    name, flags, section, _, _ = struct.unpack_from("<IBBHQ", image, symbols + 16 * each)
                    external, private, debugging = flags & 1, flags & 0x10, flags & 0xE0
                    if external and not private and not debugging and section:
                        self.exports.add(_text(image, strings + name).removeprefix("_"))
            at += size
