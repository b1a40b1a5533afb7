"""The parameter file of a program that was exported with external weights.

The file is in the safetensors format, which many tools read: eight bytes with the length of a header, the
header (JSON: name → dtype, shape, offsets), then the tensors' bytes. Reading it executes no code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from smelt.errors import SmeltError
from smelt.mlir.signature import Signature

NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_DTYPES = {name: dtype for dtype, name in NAMES.items()}
_ALIGNMENT = 64


def held_tensors(signature: Signature) -> dict[str, torch.Tensor]:
    """The tensors that a caller passes after the user's inputs, by name, in order (`Signature.held`)."""
    return {each.name: each.value for each in signature.held if each.value is not None}


def save_parameters(path: str | Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors to a file in order, without gaps.

    Raises:
        SmeltError: SM0716, a dtype that the format lacks.
    """
    header: dict[str, Any] = {}
    place = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise SmeltError("SM0716", f"a parameter file holds no {tensor.dtype} ({name})")
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + size],
        }
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    with Path(path).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)


def load_parameters(path: str | Path) -> dict[str, torch.Tensor]:
    """The tensors of a parameter file, by name, in order.

    Raises:
        SmeltError: SM0717, the file is no parameter file, or is truncated.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_parameters(f"{folder}/weights", {"bias": torch.tensor([1.0, 2.0])})
    ...     load_parameters(f"{folder}/weights")
    {'bias': tensor([1., 2.])}
    """
    data = Path(path).read_bytes()
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        found = {}
        for name, each in header.items():
            begin, end = each["data_offsets"]
            dtype = _DTYPES[each["dtype"]]
            piece = bytearray(data[8 + length + begin : 8 + length + end])
            flat = torch.frombuffer(piece, dtype=torch.uint8) if piece else torch.empty(0, dtype=torch.uint8)
            found[name] = flat.view(dtype).reshape(each["shape"])
    except (struct.error, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise SmeltError("SM0717", f"{path} is no parameter file, or was cut off") from error
    return found
