"""smelt package, run, inspect, bench, verify."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.support.packages import Small, quick_levels, small_arguments

FACTORY = """
import torch
from tests.support.packages import Small, small_arguments

def made():
    return Small().eval(), small_arguments(), {}

def other():
    return torch.nn.Linear(8, 8), (torch.randn(4, 8),), {}

def raises():
    return Small().eval(), (torch.randn(4, 7), torch.arange(4)), {}
"""
LEVELS = [word for level in quick_levels() or () for word in ("--level", level)]


@pytest.fixture(scope="module")
def factory(tmp_path_factory):
    path = tmp_path_factory.mktemp("factory") / "factory_of_packages.py"
    path.write_text(FACTORY)
    return path


@pytest.fixture
def files(tmp_path):
    x, ids = small_arguments(3)
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "ids.npy", ids.numpy())
    np.savez(tmp_path / "both.npz", x=x.numpy(), ids=ids.numpy())
    return tmp_path


def wanted(batch: int = 3) -> dict[str, np.ndarray]:
    with torch.no_grad():
        return {name: value.numpy() for name, value in Small().eval()(*small_arguments(batch)).items()}


def test_a_spec_becomes_a_signed_package_that_runs(smelt_command, factory, tmp_path, keys, files):
    private, public = keys("mine")
    path = str(tmp_path / "made.smelt")
    words = ("--dynamic", "x=0:batch", "--dynamic", "ids=0:batch", "--sign", str(private), *LEVELS)
    code, out, err = smelt_command("package", f"{factory}:made", "-o", path, "--name", "mine", *words)
    assert code == 0, err
    for said in ("libmine.so", "weights", "levels", "kernels", "packaged in"):
        assert said in out
    assert "compiling for" in err
    code, out, err = smelt_command("verify", path, "--key", str(public))
    assert code == 0 and "signed with the key" in out, err
    code, out, err = smelt_command("run", path, "--key", str(public), "--input", str(files / "both.npz"))
    assert code == 0 and "y " in out and "total" in out, err
    code, out, err = smelt_command("verify", path, "--key", str(keys("other")[1]))
    assert code == 2 and "SM1426" in err


def test_an_exported_program_becomes_a_package(smelt_command, tmp_path, files):
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = {"x": {0: batch}, "ids": {0: batch}}
    exported = torch.export.export(Small().eval(), small_arguments(), dynamic_shapes=shapes)
    torch.export.save(exported, tmp_path / "small.pt2")
    path = str(tmp_path / "out.smelt")
    code, _, err = smelt_command("package", str(tmp_path / "small.pt2"), "-o", path, *LEVELS)
    assert code == 0, err
    code, _, err = smelt_command(
        "run", path, "-i", str(files / "x.npy"), "-i", str(files / "ids.npy"), "-o", str(tmp_path / "out.npz")
    )
    assert code == 0, err
    with np.load(tmp_path / "out.npz") as found:
        for name, value in wanted().items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
    code, _, err = smelt_command("package", str(tmp_path / "small.pt2"), "--dynamic", "x=0")
    assert code == 2 and "SM0918" in err


@pytest.mark.parametrize(
    "words, code, said",
    [
        (("{f}:nothing",), "SM0903", "nothing"),
        (("{f}:raises",), "SM0906", "raises in eager"),
        (("nowhere.pt2",), "SM0902", "nowhere.pt2"),
        (("{f}.pt2",), "SM0918", "no exported program"),
        (("{f}:made", "-o", "no/such/folder/a.smelt"), "SM0907", "no/such/folder"),
        (("{f}:made", "--sign", "no.pem"), "SM1426", "no.pem"),
        (("{f}:made", "--target", "pdp11"), "SM1410", "pdp11"),
        (("{f}:made", "--dynamic", "z=0"), "SM0909", "one of x, ids"),
    ],
)
def test_what_cannot_be_packaged_is_told_in_a_line(
    smelt_command, factory, tmp_path, monkeypatch, words, code, said
):
    monkeypatch.chdir(tmp_path)
    (factory.parent / f"{factory.name}.pt2").write_bytes(b"no archive")
    exit_code, _, err = smelt_command("package", *(word.format(f=factory) for word in words))
    assert exit_code == 2 and code in err and said in err.splitlines()[-1], err


def test_files_go_to_inputs_by_name_or_in_order(smelt_command, small, files):
    x, ids = str(files / "x.npy"), str(files / "ids.npy")
    for words in (
        ("--input", x, "--input", ids),
        ("--input", f"ids={ids}", "--input", x),
        ("--input", f"ids={ids}", "--input", f"x={x}"),
        ("--input", str(files / "both.npz")),
    ):
        code, _, err = smelt_command("run", str(small), *words, "--states", "-o", str(files / "out.npz"))
        assert code == 0, err
        with np.load(files / "out.npz") as found:
            np.testing.assert_allclose(found["y"], wanted()["y"], rtol=1e-5, atol=1e-6)
            assert found["calls"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "words, code, said",
    [
        ((), "SM1428", "no values for x (float32 [batch, 8]), ids (int64 [batch])"),
        (("-i", "z=x.npy"), "SM1428", "one of x, ids"),
        (("-i", "nowhere.npy"), "SM1428", "nowhere.npy"),
        (("-i", "bad.npy"), "SM1428", "bad.npy"),
        (("-i", "pickled.npy"), "SM1428", "pickle"),
        (("-i", "bad.npz"), "SM1428", "bad.npz"),
        (("-i", "x.npy", "-i", "x.npy", "-i", "x.npy", "-i", "x.npy"), "SM1428", "4 files for 3 inputs"),
        (("-i", "x=x.npy", "-i", "ids=x.npy"), "SM1423", "ids"),
        (("-i", "x.npy", "--random", "--size", "batch=4"), "SM1423", "ids"),
        (("--random", "--size", "batch=65"), "SM1428", "from 1 to 64"),
        (("--random", "--size", "length=4"), "SM1428", "one of batch"),
        (("--random", "--level", "pdp11"), "SM1422", "pdp11"),
        (("--random", "-o", "out.txt"), "SM1428", "FILE.npz"),
        (("--random", "-o", "out.npy"), "SM1428", "there are 2"),
        (("--random", "-o", "no/folder/out.npy"), "SM0907", "no/folder"),
        (("--random", "--key", "pub.pem"), "SM1426", "pub.pem"),
    ],
)
def test_a_run_that_cannot_be_is_told_in_a_line(smelt_command, small, files, monkeypatch, words, code, said):
    monkeypatch.chdir(files)
    (files / "bad.npy").write_bytes(b"\x93NUMPY\1")
    (files / "bad.npz").write_bytes(b"PK\3\4")
    np.save(files / "pickled.npy", np.array([None]), allow_pickle=True)
    exit_code, _, err = smelt_command("run", str(small), *words)
    assert exit_code == 2 and code in err and said in err, err


def test_random_inputs_have_the_sizes_that_are_given(smelt_command, small):
    code, out, err = smelt_command("run", str(small), "--random", "--size", "batch=7")
    assert code == 0 and "[7, 8]" in out, err


def test_a_run_imports_no_torch(small):
    script = (
        "import sys; from smelt.cli import main; code = main(['run', sys.argv[1], '--random']);"
        "assert code == 0 and 'numpy' in sys.modules and 'torch' not in sys.modules, code"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(small)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_inspect_tells_what_a_package_is(smelt_command, small):
    code, out, _ = smelt_command("inspect", str(small))
    assert code == 0
    for said in (
        "float32 [batch, 8]",
        "calls",
        "1 … 64",
        "libsmall",
        "aten.relu",
        "packages.py",
        "not signed",
    ):
        assert said in out, said
    code, out, _ = smelt_command("inspect", str(small), "--json")
    data = json.loads(out)
    assert code == 0 and data["name"] == "small" and data["differences"] == []
    names = [each["name"] for each in data["weights"]]
    assert "table.weight" in names and any("linear.weight" in name for name in names)


def test_inspect_and_verify_say_what_was_changed(smelt_command, copy):
    (copy / "src" / "small.c").write_text("int main;")
    code, out, _ = smelt_command("inspect", str(copy))
    assert code == 1 and "src/small.c has 9 bytes" in out
    code, _, err = smelt_command("verify", str(copy))
    assert code == 2 and "SM1425" in err and "src/small.c" in err
    (copy / "model.json").write_text("{}")
    code, _, err = smelt_command("inspect", str(copy))
    assert code == 2 and "SM1425" in err
    code, _, err = smelt_command("inspect", str(copy / "src"))
    assert code == 2 and "SM1420" in err


def test_verify_says_what_a_manifest_without_signature_is_worth(smelt_command, small):
    code, out, err = smelt_command("verify", str(small))
    assert code == 0 and "as the manifest says" in out and "no signature" in err


def test_bench_times_a_package(smelt_command, small):
    code, out, err = smelt_command(
        "bench", str(small), "--seconds", "0.05", "--size", "batch=9", "--threads", "1"
    )
    assert code == 0 and "GB/s" in out and "batch=9" in out, err
    code, out, _ = smelt_command("bench", str(small), "--seconds", "0.05", "--json", "-")
    data = json.loads(out)
    x = 4 * 8 * 4
    weights = (8 * 8 + 8 + 5 * 8) * 4
    assert data["bytes"] >= 2 * x + 4 * 8 + 4 * 4 + 2 * 4 + weights
    assert data["contenders"]["package"]["run"]["rounds"] >= 5
    for words, said in ((("--train",), "--train"), (("--size", "batch=0"), "from 1 to 64")):
        code, _, err = smelt_command("bench", str(small), *words)
        assert code == 2 and "SM1428" in err and said in err


def test_bench_compares_a_package_with_the_compiled_model(small, factory):
    from smelt.cli.package_bench import compared
    from smelt.errors import SmeltError

    job = {"path": str(small), "spec": f"{factory}:made", "threads": None, "seconds": 0.05, "options": {}}
    found = compared(job)
    assert set(found["contenders"]) == {"eager", "compiled", "package"}
    assert found["difference"] < 1e-5
    with pytest.raises(SmeltError, match="has 1 tensors as arguments, small takes 2"):
        compared({**job, "spec": f"{factory}:other"})


def test_a_training_step_is_the_eager_one(smelt_command, factory, tmp_path):
    import smelt
    from smelt.tracing.workload import LEARNING_RATE

    path = str(tmp_path / "step.smelt")
    code, _, err = smelt_command("package", f"{factory}:other", "--train", "-o", path, *LEVELS)
    assert code == 0, err
    step, model, x = smelt.load(path), torch.nn.Linear(8, 8), torch.randn(4, 8)
    model.load_state_dict({name.removeprefix("model."): each for name, each in step.state_dict().items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(step(x), loss.detach())
    for name, each in model.named_parameters():
        torch.testing.assert_close(step.state_dict()[f"model.{name}"], each.detach())
