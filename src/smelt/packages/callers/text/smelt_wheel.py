"""Builds a package's wheel: `pip install ./NAME.smelt`. A build backend (PEP 517) that needs only Python.

The wheel has the model's Python, model.json, the weights and the library of the machine that it is built on.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib import util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def build_wheel(
    wheel_directory: str, config_settings: object = None, metadata_directory: object = None
) -> str:
    """The wheel's file name."""
    folder = _package()
    project, version, needs = folder.name, "0.1.0", ["numpy>=1.23"]  # as in pyproject.toml
    tag = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
    name = f"{project}-{version}-{tag}.whl"
    about = f"{project}-{version}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\nSummary: A model compiled by smelt\n"
    )
    metadata += "".join(f"Requires-Dist: {each}\n" for each in needs)
    texts = {
        f"{about}/METADATA": metadata,
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nGenerator: smelt\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    record = []
    to = Path(wheel_directory) / name
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as wheel:
        for path, place in _files(folder):
            stored = zipfile.ZIP_STORED if path.suffix == ".safetensors" else zipfile.ZIP_DEFLATED
            wheel.write(path, place, stored)
            record.append(f"{place},sha256={_digest(path)},{path.stat().st_size}")
        for place, text in texts.items():
            wheel.writestr(place, text)
            data = text.encode()
            record.append(f"{place},sha256={_base64(hashlib.sha256(data).digest())},{len(data)}")
        wheel.writestr(f"{about}/RECORD", "\n".join([*record, f"{about}/RECORD,,"]) + "\n")
    return name


def _package() -> Path:
    """The folder of the model's Python."""
    return next(path.parent for path in (ROOT / "python").glob("*/__init__.py"))


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """The wheel's files and their places in it."""
    package = folder.name
    for path in sorted(folder.iterdir()):
        if path.is_file():
            yield path, f"{package}/{path.name}"
    for name in ("model.json", "weights.safetensors"):
        yield ROOT / name, f"{package}/package/{name}"
    spec = util.spec_from_file_location("loading", folder / "loading.py")
    assert spec is not None and spec.loader is not None
    loading = util.module_from_spec(spec)
    spec.loader.exec_module(loading)
    library = loading.library_path(ROOT, json.loads((ROOT / "model.json").read_text("utf-8"))["name"])
    yield library, f"{package}/package/{library.relative_to(ROOT).as_posix()}"


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return _base64(digest.digest())


def _base64(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
