"""The manifest of a package: the size and SHA-256 of every file; and its signature (ed25519).

Digests find what was damaged or forgotten on the way. Whoever can change a file can change the manifest too:
against that there is the signature, for those who have the public key from the package's maker.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.errors import SmeltError
from smelt.packages.reading import Every, is_count, is_text, malformed, parsed, read_bytes, shown

FORMAT = 1
MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
_MOST_BYTES = 1 << 26
_INSTALL = 'pip install "torch-smelt[sign]"'


@dataclass(frozen=True, slots=True)
class Manifest:
    """``files``: path in the folder → SHA-256 and bytes."""

    folder: Path
    name: str
    files: Mapping[str, tuple[str, int]]


def is_path(value: Any) -> bool:
    """path inside of the package"""
    if not is_text(value) or "\\" in value or ":" in value or "\0" in value:
        return False
    return all(part not in ("", ".", "..") for part in value.split("/"))


def is_digest(value: Any) -> bool:
    """SHA-256 in small hexadecimal digits"""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


_SCHEMA = {
    "format": int,
    "name": is_text,
    "files": Every(is_path, {"sha256": is_digest, "bytes": is_count}),
}


def write_manifest(folder: Path, name: str) -> None:
    """Writes the manifest of a package that is complete otherwise."""
    files = {
        path: {"sha256": digest_of(folder / path), "bytes": (folder / path).stat().st_size}
        for path in sorted(_files(folder))
    }
    text = json.dumps({"format": FORMAT, "name": name, "files": files}, indent=1)
    (folder / MANIFEST).write_text(text + "\n")


def read_manifest(folder: Path) -> Manifest:
    """
    Raises:
        SmeltError: SM1420, there is none, or it is malformed.
    """
    path = folder / MANIFEST
    return _manifest(folder, read_bytes(path, _MOST_BYTES))


def _manifest(folder: Path, text: bytes) -> Manifest:
    data = parsed(folder / MANIFEST, text, _SCHEMA)
    if data["format"] != FORMAT:
        malformed(folder / MANIFEST, f"it has the format {data['format']}, and this smelt reads {FORMAT}")
    files = {path: (each["sha256"], each["bytes"]) for path, each in data["files"].items()}
    return Manifest(folder, data["name"], files)


def check_files(manifest: Manifest, paths: Iterable[str]) -> None:
    """Checks some files, before they are used. Those that the manifest does not know are not checked: people
    build libraries of their own.

    Raises:
        SmeltError: SM1425, one is missing or differs.
    """
    wrong = [found for path in paths if path in manifest.files and (found := _difference(manifest, path))]
    if wrong:
        raise differs(manifest.folder, wrong)


def differences(manifest: Manifest) -> list[str]:
    """What is not as the manifest says, a line for each file: changed, missing, or not in it."""
    found = [each for path in manifest.files if (each := _difference(manifest, path))]
    return found + [f"{shown(path)} is not in the manifest" for path in _added(manifest)]


def _added(manifest: Manifest) -> list[str]:
    return sorted(path for path in _files(manifest.folder) if path not in manifest.files)


def differs(folder: Path, wrong: list[str]) -> SmeltError:
    """The error for files that are not as the manifest says."""
    return SmeltError(
        "SM1425",
        f"{folder} is not as its manifest says: {'; '.join(wrong[:8])}"
        + (f"; and {len(wrong) - 8} more" if len(wrong) > 8 else ""),
        remedy="copy the package again, or make it again if you have changed it yourself",
    )


def verify(folder: Path, key: Path | None = None) -> Manifest:
    """Checks every file, and with a public key the signature first.

    Raises:
        SmeltError: SM1420 no manifest, SM1425 files differ, SM1426 the signature or the key is wrong.
    """
    text = read_bytes(folder / MANIFEST, _MOST_BYTES)
    if key is not None:
        _check_signature(folder, text, key)
    manifest = _manifest(folder, text)
    if wrong := differences(manifest):
        raise differs(folder, wrong)
    return manifest


def _difference(manifest: Manifest, path: str) -> str | None:
    digest, nbytes = manifest.files[path]
    file = manifest.folder / path
    try:
        if file.is_symlink() or not file.is_file():
            return f"{shown(path)} is {'a link' if file.is_symlink() else 'missing'}"
        there = file.stat().st_size
        if there != nbytes:
            return f"{shown(path)} has {there:,} bytes instead of {nbytes:,}"
        return None if digest_of(file) == digest else f"{shown(path)} has other contents"
    except OSError as error:
        return f"{shown(path)} cannot be read: {error.strerror}"


def digest_of(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while piece := data.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[str]:
    """The files of a package (and links, which it has none of) but the manifest and its signature."""
    for parent, folders, names in os.walk(folder):
        linked = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in names + linked:
            path = Path(parent, name).relative_to(folder).as_posix()
            if path not in (MANIFEST, SIGNATURE):
                yield path


def sign(folder: Path, key: Path) -> None:
    """Signs the manifest with a private ed25519 key (PEM, without a password).

    Raises:
        SmeltError: SM1426, no such key, or `cryptography` is not installed.
    """
    private = read_key(key, private=True)
    signature = private.sign(read_bytes(folder / MANIFEST, _MOST_BYTES))
    (folder / SIGNATURE).write_text(base64.b64encode(signature).decode() + "\n")


def _check_signature(folder: Path, manifest: bytes, key: Path) -> None:
    public = read_key(key, private=False)
    path = folder / SIGNATURE
    if not path.is_file():
        raise _refused(f"{folder} has no signature, and a key was given")
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(base64.b64decode(read_bytes(path, 1000).strip(), validate=True), manifest)
    except (InvalidSignature, ValueError) as error:
        raise _refused(f"{folder} was not signed with the key of {key}, or was changed since") from error


def read_key(path: Path, *, private: bool) -> Any:
    """An ed25519 key of `cryptography`, from a PEM file.

    Raises:
        SmeltError: SM1426.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise _refused("signatures need the package cryptography", _INSTALL) from error
    kind = ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey
    try:
        data = path.read_bytes()
        if private:
            key: Any = serialization.load_pem_private_key(data, None)
        else:
            key = serialization.load_pem_public_key(data)
    except OSError as error:
        raise _refused(f"no key {path}: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = str(error).splitlines()[0] if str(error) else None
        raise _refused(f"{path} is no {'private' if private else 'public'} key in PEM", why) from error
    if not isinstance(key, kind):
        raise _refused(f"{path} is no key of ed25519")
    return key


def _refused(what: str, why: str | None = None) -> SmeltError:
    return SmeltError(
        "SM1426",
        what,
        why=why,
        remedy="keys: openssl genpkey -algorithm ed25519 -out key.pem; "
        "openssl pkey -in key.pem -pubout -out pub.pem",
    )
