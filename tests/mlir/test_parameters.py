"""Parameter files: what is written is read, and nothing else is."""

from __future__ import annotations

import json
import struct

import pytest
import torch

from smelt.errors import SmeltError
from smelt.mlir.parameters import load_parameters, save_parameters

TENSORS = {
    "layer.0.weight": torch.randn(3, 5).t(),
    "half": torch.randn(4).to(torch.bfloat16),
    "steps": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "empty": torch.zeros(0, 3),
    "wave": torch.tensor([1 + 2j]).conj(),
}


def test_what_is_written_is_read(tmp_path):
    save_parameters(tmp_path / "w", TENSORS)
    found = load_parameters(tmp_path / "w")
    assert list(found) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor.resolve_conj())


def test_the_format_is_safetensors(tmp_path):
    save_parameters(tmp_path / "w", {"x": torch.tensor([1.0, 2.0])})
    data = (tmp_path / "w").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    assert json.loads(data[8 : 8 + length]) == {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    assert data[8 + length :] == struct.pack("<2f", 1.0, 2.0)


def test_a_dtype_that_the_format_lacks(tmp_path):
    with pytest.raises(SmeltError) as caught:
        save_parameters(tmp_path / "w", {"x": torch.zeros(1, dtype=torch.complex128)})
    assert caught.value.code == "SM0716"


@pytest.mark.parametrize("keep", [0, 4, 20, -1])
def test_a_file_that_was_cut_off(tmp_path, keep):
    save_parameters(tmp_path / "w", TENSORS)
    data = (tmp_path / "w").read_bytes()
    (tmp_path / "w").write_bytes(data[:keep])
    with pytest.raises(SmeltError) as caught:
        load_parameters(tmp_path / "w")
    assert caught.value.code == "SM0717"
