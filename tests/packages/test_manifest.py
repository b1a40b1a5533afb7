"""The manifest of a package, its signature, and files that are not as they should be."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys

import pytest
import torch

from smelt.errors import SmeltError
from smelt.mlir.parameters import save_parameters
from smelt.packages import manifest
from smelt.packages.reading import Every, check, weights_table


def error_of(code: str, call, *args) -> str:
    with pytest.raises(SmeltError) as raised:
        call(*args)
    assert raised.value.code == code, raised.value
    return str(raised.value)


def test_a_manifest_has_every_file_with_its_digest(small):
    found = json.loads((small / "manifest.json").read_text())
    there = {str(path.relative_to(small)) for path in small.rglob("*") if path.is_file()} - {"manifest.json"}
    assert set(found["files"]) == there
    assert {"model.json", "weights.safetensors", "include/small.h", "src/small.c"} <= there
    for path, each in found["files"].items():
        data = (small / path).read_bytes()
        assert each == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    assert manifest.verify(small).name == found["name"] == "small"


def test_differences_are_told_by_file(copy):
    (copy / "src" / "small.c").write_text("int main;")
    weights = copy / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    (copy / "include" / "small.h").unlink()
    (copy / "extra.txt").write_text("")
    header = copy / "include" / "smelt_model.h"
    os.replace(header, copy.parent / "elsewhere.h")
    header.symlink_to(copy.parent / "elsewhere.h")
    (copy / "linked").symlink_to(copy.parent)
    assert set(manifest.differences(manifest.read_manifest(copy))) == {
        "src/small.c has 9 bytes instead of "
        + f"{json.loads((copy / 'manifest.json').read_text())['files']['src/small.c']['bytes']:,}",
        "weights.safetensors has other contents",
        "include/small.h is missing",
        "include/smelt_model.h is a link",
        "extra.txt is not in the manifest",
        "linked is not in the manifest",
    }
    assert "include/small.h is missing" in error_of("SM1425", manifest.verify, copy)


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "no JSON"),
        ("[]", "no dict"),
        ("[" * 100_000, "no JSON"),
        ('{"format": 1, "name": "a", "files": {}, "format": 1}', "twice"),
        ('{"format": 2, "name": "a", "files": {}}', "format 2"),
        ('{"format": true, "name": "a", "files": {}}', "no int"),
        ('{"format": 1, "name": "a"}', "lacks files"),
        ('{"format": 1, "name": "a", "files": {"a": {"sha256": "00", "bytes": 1}}}', "SHA-256"),
        ('{"format": 1, "name": "a", "files": {"a": {"sha256": "%s", "bytes": -1}}}' % ("0" * 64), "number"),
        ('{"format": 1, "name": "a", "files": {"a": {"sha256": "%s", "bytes": 1e9}}}' % ("0" * 64), "number"),
        *((json.dumps({"format": 1, "name": "a", "files": {path: {}}}), "path inside") for path in (
            "../a", "/etc/passwd", "a/../../b", "a//b", "", "a\\b", "C:a", "./a", "a\0b",
        )),
    ],
)  # fmt: skip
def test_a_malformed_manifest_is_refused(copy, text, said):
    (copy / "manifest.json").write_text(text)
    assert said in error_of("SM1420", manifest.verify, copy)


def test_a_package_without_manifest_is_refused(copy):
    (copy / "manifest.json").unlink()
    assert "no such file" in error_of("SM1420", manifest.verify, copy)


def test_a_signature_holds_for_one_key_and_one_manifest(copy, keys):
    (private, public), (_, other) = keys("mine"), keys("other")
    assert "no signature" in error_of("SM1426", manifest.verify, copy, public)
    manifest.sign(copy, private)
    manifest.verify(copy)
    manifest.verify(copy, public)
    assert "was not signed" in error_of("SM1426", manifest.verify, copy, other)
    (copy / "src" / "small.c").write_text("int main;")
    error_of("SM1425", manifest.verify, copy, public)
    manifest.write_manifest(copy, "small")  # the attacker's
    manifest.verify(copy)
    assert "was changed since" in error_of("SM1426", manifest.verify, copy, public)
    for text in ("", "not base64!", "AAAA", "\xff"):
        (copy / "manifest.sig").write_text(text)
        error_of("SM1426", manifest.verify, copy, public)


def test_what_is_no_key_is_refused(copy, keys, monkeypatch):
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    private, public = keys("mine")
    error_of("SM1426", manifest.sign, copy, public)
    error_of("SM1426", manifest.sign, copy, copy / "nowhere.pem")
    other = copy.parent / "x25519.pem"
    other.write_bytes(
        X25519PrivateKey.generate().private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    )
    assert "no key of ed25519" in error_of("SM1426", manifest.sign, copy, other)
    manifest.sign(copy, private)
    error_of("SM1426", manifest.verify, copy, private)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    assert "torch-smelt[sign]" in error_of("SM1426", manifest.verify, copy, public)


def test_the_table_of_weights_is_what_was_written(tmp_path):
    path = tmp_path / "weights"
    save_parameters(
        path, {"a": torch.ones(2, 3), "none": torch.empty(0, 4), "b": torch.ones((), dtype=torch.int8)}
    )
    first, none, last = weights_table(path)
    assert (first.name, first.dtype, first.shape, first.nbytes) == ("a", "F32", (2, 3), 24)
    assert (none.nbytes, last.shape, last.begin) == (0, (), first.begin + 24)


def tensor(begin: int, end: int, dtype: str = "U8", shape: object = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header, said",
    [
        ({"a": tensor(0, 4, "F4")}, "unknown dtype"),
        ({"a": tensor(0, 4, shape=[2**62, 4])}, "do not fit"),
        ({"a": tensor(0, 4, shape=[-4])}, "no number"),
        ({"a": tensor(0, 4, shape=[4.0])}, "no number"),
        ({"a": tensor(0, 8)}, "the file at"),
        ({"a": tensor(0, 3)}, "the file at"),
        ({"a": tensor(1, 4)}, "hole"),
        ({"a": tensor(0, 3), "b": tensor(2, 4)}, "overlaps"),
        ({"a": {"dtype": "U8", "shape": [4]}}, "lacks data_offsets"),
        ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 2, 4]}}, "two offsets"),
        ({"a": 3}, "no dict"),
    ],
)
def test_a_malformed_header_of_weights_is_refused(tmp_path, header, said):
    text = json.dumps(header).encode()
    path = tmp_path / "weights"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    assert said in error_of("SM1420", weights_table, path)


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 1 << 60), struct.pack("<Q", 9) + b"{}"])
def test_weights_that_are_cut_off_are_refused(tmp_path, data):
    path = tmp_path / "weights"
    path.write_bytes(data)
    assert "a header of" in error_of("SM1420", weights_table, path)


def test_schemas_say_where_data_do_not_fit():
    check({"a": {"x": [1]}}, Every(str, {"x": [int], "y?": str}))
    with pytest.raises(ValueError, match=r"it\.a\.y is no str"):
        check({"a": {"x": [1], "y": 2}}, Every(str, {"x": [int], "y?": str}))
    with pytest.raises(ValueError, match="it is none of int, str"):
        check(None, (int, str))


def test_paths_of_a_manifest_stay_inside_of_the_package():
    assert not any(map(manifest.is_path, ("..", "a/..", "../../x", "", "/", "a/")))
    assert manifest.is_path("lib/x86_64-linux/libsmall.so")
