"""A package that is made once, and copies of it to damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import smelt_command as smelt_command
from tests.support.packages import quick_levels, small_package


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of `tests.support.packages.Small`: not to be changed (`copy`)."""
    path = tmp_path_factory.mktemp("package") / "small.smelt"
    return small_package(path, levels=quick_levels("x86-64-v3"))


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    """A copy of the package, to be changed."""
    return Path(shutil.copytree(small, tmp_path / "small.smelt"))


Keys = Callable[[str], tuple[Path, Path]]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """Makes a pair of ed25519 keys: the paths of the private and of the public one."""
    pytest.importorskip("cryptography", reason="needs the extra [sign]")
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    def made(name: str) -> tuple[Path, Path]:
        private, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub.pem"
        key = Ed25519PrivateKey.generate()
        private.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
        public.write_bytes(key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))
        return private, public

    return made
