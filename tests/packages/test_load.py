"""`smelt.load`: a package as a torch module; and packages that were damaged on purpose."""

from __future__ import annotations

import copy as copying
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import smelt
from smelt.errors import SmeltError
from smelt.packages.manifest import write_manifest
from tests.support.packages import Small, small_arguments, small_package


@pytest.fixture(scope="module")
def model(small):
    return smelt.load(small)


def expected(batch: int) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return Small().eval()(*small_arguments(batch))


def refuses(code: str, said: str, call, *args, **kwargs) -> None:
    with pytest.raises(SmeltError) as raised:
        call(*args, **kwargs)
    assert raised.value.code == code, raised.value
    assert said in str(raised.value)


@pytest.mark.parametrize("batch", [1, 4, 64, 4])
def test_a_loaded_package_computes_what_the_model_does(model, batch):
    found = model(*small_arguments(batch))
    assert found._fields == ("y", "total")
    torch.testing.assert_close(dict(zip(found._fields, found)), expected(batch))


def test_arguments_go_by_name_and_a_call_says_what_it_takes(model):
    x, ids = small_arguments()
    torch.testing.assert_close(model(ids=ids, x=x).y, expected(4)["y"])
    torch.testing.assert_close(model(x, ids=ids).y, expected(4)["y"])
    assert [(each.name, each.dtype, each.shape) for each in model.inputs] == [
        ("x", "float32", ("batch", 8)),
        ("ids", "int64", ("batch",)),
    ]
    assert model.sizes == (("batch", 1, 64),)
    assert "x: float32 [batch, 8]" in str(model)
    refuses("SM1423", "missing: ids", model, x)
    refuses("SM1423", "inputs: x, ids", model, x, ids, z=x)
    refuses("SM1423", "given twice", model, x, ids=ids, x=x)
    refuses("SM1423", "takes 2 inputs (x, ids), not 3", model, x, ids, x)


def test_a_state_is_a_buffer_that_calls_write(small):
    model = smelt.load(small)
    assert list(model.state_dict()) == list(dict(Small().named_buffers()))
    calls = model.calls
    version = calls._version
    for _ in range(3):
        model(*small_arguments())
    assert calls.tolist() == [3, 3] and calls is model.calls
    assert calls._version == version + 3
    model.load_state_dict({"calls": torch.tensor([7.0, 8.0])})
    model(*small_arguments())
    assert model.calls.tolist() == [8, 9]
    model.half()
    refuses("SM1423", "the buffer calls has dtype torch.float16", model, *small_arguments())


def test_copies_have_states_of_their_own(small):
    model = smelt.load(small, threads=1)
    model(*small_arguments())
    for other in (copying.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(*small_arguments())
        assert (model.calls.tolist(), other.calls.tolist()) == ([1, 1], [2, 2])


def test_inputs_are_read_where_they_are_or_copied_where_they_must_be(model):
    x, ids = small_arguments(8)
    wanted = model(x, ids).y
    assert torch.equal(model(x.t().contiguous().t(), ids.repeat_interleave(2)[::2]).y, wanted)
    assert torch.equal(model(torch.nn.Parameter(x, requires_grad=False), ids).y, wanted)
    assert torch.equal(model(x.numpy(), ids.numpy()).y, wanted)
    assert torch.equal(model(torch._neg_view(-x), ids).y, wanted)
    assert torch.equal(model(torch.cat([x, x])[8:], ids).y, wanted)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda x, ids: (x.double(), ids), "x has dtype torch.float64, expected torch.float32"),
        (lambda x, ids: (x, ids.float()), "ids has dtype torch.float32, expected torch.int64"),
        (lambda x, ids: (x[0], ids), "x has shape [8]"),
        (lambda x, ids: (x[:, :7], ids), "x"),
        (lambda x, ids: (x[:3], ids), "ids"),
        (lambda x, ids: (x[:0], ids[:0]), "batch"),
        (lambda x, ids: (x.repeat(33, 1), ids.repeat(33)), "batch"),
        (lambda x, ids: (x.to("meta"), ids), "meta"),
        (lambda x, ids: (x.to_sparse(), ids), "sparse"),
        (lambda x, ids: (None, ids), "NoneType"),
        (lambda x, ids: (x, [0, 1, 2, 3]), "list"),
        (lambda x, ids: (np.ones((4, 8), object), ids), "DLPack"),
    ],
)
def test_what_does_not_fit_is_told(model, change, said):
    refuses("SM1423", said, model, *change(*small_arguments()))


def test_tensors_of_transforms_are_refused(model):
    x, ids = small_arguments()
    refuses("SM1423", "plain tensors", torch.func.vmap(lambda row: model(row, ids).y), x.expand(2, 4, 8))
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        refuses("SM1423", "FakeTensor", model, mode.from_tensor(x), mode.from_tensor(ids))


def test_there_are_no_gradients(model):
    x, ids = small_arguments()
    x.requires_grad_()
    refuses("SM1424", "x.detach()", model, x, ids)
    with torch.no_grad():
        assert not model(x, ids).y.requires_grad
    assert not model(x.detach(), ids).y.requires_grad


def test_an_error_of_the_model_is_one(model):
    x, ids = small_arguments()
    refuses("SM1427", "", model, x, ids + 3)
    torch.testing.assert_close(model(x, ids).y, expected(4)["y"])


def test_threads_call_models_at_once(small):
    models = [smelt.load(small, threads=count) for count in (1, 2, 3)]
    wrong = []

    def work(number: int) -> None:
        for batch in (1 + number, 64 - number):
            found = models[number % 3](*small_arguments(batch))
            if not torch.allclose(found.y, wanted[batch]["y"], atol=1e-5):
                wrong.append(batch)

    wanted = {batch: expected(batch) for number in range(6) for batch in (1 + number, 64 - number)}
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_levels_are_chosen_by_name(small):
    found = {level: smelt.load(small, level=level) for level in smelt.load(small).levels}
    assert [model.level for model in found.values()] == list(found)
    for model in found.values():
        torch.testing.assert_close(model(*small_arguments()).y, expected(4)["y"])
    refuses("SM1422", "pdp11", smelt.load, small, level="pdp11")


class Cached(torch.nn.Module):
    """Writes to an argument, draws random numbers, takes a number, and gives one tensor."""

    def forward(self, x: torch.Tensor, cache: torch.Tensor, n: int) -> torch.Tensor:
        cache.mul_(0.5).add_(x)
        return cache[:n] + torch.rand(4)


def test_states_of_the_caller_numbers_and_seeds(tmp_path):
    from smelt.packages.api import package
    from tests.support.packages import quick_levels

    x, cache = torch.arange(12.0).reshape(3, 4), torch.ones(3, 4)
    path = package(
        Cached(),
        (x, cache.clone(), 2),
        tmp_path / "cached.smelt",
        dynamic_shapes=(None, None, torch.export.Dim.DYNAMIC),
        levels=quick_levels(),
    )
    model = smelt.load(path)
    assert not list(model.buffers())
    found = model(x, cache, 2, seed=3)
    assert torch.equal(cache, x + 0.5) and found.shape == (2, 4)
    assert bool(((found - cache[:2] >= 0) & (found - cache[:2] < 1)).all())
    numbers = [
        (model(x, cache, 3, **seed) - cache).tolist() for seed in ({"seed": 3}, {"seed": 3}, {"seed": 4})
    ]
    assert np.allclose(numbers[0], numbers[1], atol=1e-5) and not np.allclose(numbers[1], numbers[2])
    torch.manual_seed(0)
    first = model(x, cache, 3) - cache
    torch.manual_seed(0)
    torch.testing.assert_close(model(x, cache, 3) - cache, first)
    refuses("SM1423", "written in place", model, x, torch.ones(4, 3).t(), 2)
    refuses("SM1423", "share memory", model, cache, cache, 2)
    refuses("SM1423", "", model, x, cache, 1)


def test_names_of_states_that_the_module_has_taken(tmp_path):
    class Level(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.level = torch.nn.BatchNorm1d(4)
            self.register_buffer("name", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.name.add_(1)
            return self.level(x)

    path = small_package(
        tmp_path / "level.smelt",
        model=Level().train(),
        args=(torch.randn(6, 4),),
        dynamic_shapes=None,
    )
    model = smelt.load(path)
    x = torch.randn(6, 4)
    eager = Level().train()
    torch.testing.assert_close(model(x), eager(x).detach())
    state = model.state_dict()
    assert {"level_.running_mean", "level_.num_batches_tracked", "name_"} < set(state)
    for name, value in state.items():
        torch.testing.assert_close(value, eager.state_dict()[name.replace("_.", ".").removesuffix("_")])


def test_what_is_no_package_is_told(copy, tmp_path):
    refuses("SM1420", "no such folder", smelt.load, tmp_path / "nowhere.smelt")
    refuses("SM1420", "it is a file", smelt.load, copy / "model.json")
    refuses("SM1420", "no model.json", smelt.load, tmp_path)
    library = next(copy.glob("lib/*/*small.*[!a]"))
    library.write_bytes(library.read_bytes()[:5000])
    refuses("SM1425", "5,000 bytes", smelt.load, copy)
    library.write_bytes(b"no library")
    write_manifest(copy, "small")
    refuses("SM1421", "cannot be loaded", smelt.load, copy)
    library.unlink()
    refuses("SM1421", "no library for this machine", smelt.load, copy)


def test_weights_are_checked_by_the_library(copy):
    weights = copy / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    refuses("SM1422", "", smelt.load, copy)
    smelt.load(copy, trust_weights=True)
    weights.unlink()
    refuses("SM1422", "", smelt.load, copy)


def test_a_key_checks_everything_first(copy, keys):
    from smelt.packages.manifest import sign

    (private, public), (_, other) = keys("mine"), keys("other")
    refuses("SM1426", "no signature", smelt.load, copy, key=public)
    sign(copy, private)
    smelt.load(copy, key=public)(*small_arguments())
    refuses("SM1426", "was not signed", smelt.load, copy, key=other)
    (copy / "extra.txt").write_text("")
    refuses("SM1425", "extra.txt", smelt.load, copy, key=public)


FUZZ = """
import random, shutil, sys
from pathlib import Path
import torch
import smelt
from smelt.errors import SmeltError
from smelt.packages.manifest import write_manifest
from smelt.packages.opened import open_package
from tests.support.packages import small_arguments

source, folder, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
library = next(source.glob("lib/*/*small.*[!a]")).relative_to(source).as_posix()
files = ["model.json", "manifest.json", "weights.safetensors", library]
whole = {name: (source / name).read_bytes() for name in files}
(header,) = __import__("struct").unpack("<Q", whole["weights.safetensors"][:8])
outcomes = {}


def damaged(chance, name):
    data = bytearray(whole[name])
    end = 8 + header if name == "weights.safetensors" else len(data)
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(end)
        kind = chance.randrange(6)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[at] = chance.randrange(256)
        elif kind == 2:
            del data[at : at + chance.choice([1, 7, 300])]
        elif kind == 3:
            data[at:at] = chance.choice([b"9" * 30, b"[" * 2000, b"-1", b"\\0", b'"x":', data[:40]])
        elif kind == 4:
            del data[at:]
        else:
            number = chance.choice([b"-1", b"0", b"18446744073709551616", b"1e400", b"null", b"[]", b"{}"])
            data = bytearray(data.replace(chance.choice([b"8", b"1", b"4"]), number, 1))
        end = max(1, min(end, len(data)))
        if not data:
            break
    return bytes(data)


for seed in range(count):
    chance = random.Random(seed)
    name = chance.choice(files)
    (folder / name).unlink()  # a loaded library stays as it is
    (folder / name).write_bytes(damaged(chance, name))
    if name != library and name != "manifest.json" and chance.random() < 0.8:
        write_manifest(folder, "small")
    try:
        if chance.random() < 0.5:
            assert all(each.nbytes >= 0 for each in open_package(folder).weights)
        smelt.load(folder, trust_weights=True)(*small_arguments())
        outcome = "runs"
    except SmeltError as error:
        outcome = error.code
    outcomes[outcome] = outcomes.get(outcome, 0) + 1
    for each in (name, "manifest.json"):
        (folder / each).unlink()
        (folder / each).write_bytes(whole[each])
print(outcomes)
assert {"runs", "SM1420", "SM1422", "SM1425"} <= set(outcomes) <= {
    "runs", "SM1420", "SM1421", "SM1422", "SM1423", "SM1425", "SM1427"
}
"""


def test_damaged_packages_give_errors_and_never_crash(small, copy):
    """Model, manifest, header of weights and library, changed at random, mostly with digests that fit."""
    command = [sys.executable, "-c", FUZZ, str(small), str(copy), "150"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
