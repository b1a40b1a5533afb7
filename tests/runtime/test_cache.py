"""The cache: content, damage, races, kill -9, owners and modes, disks that cannot be written."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from smelt.errors import CacheError
from smelt.runtime import cache as cache_module
from smelt.runtime.cache import Cache, key_of, open_cache

FILES: dict[str, bytes | Path] = {"plan.json": b'{"a": 1}', "unit.so": b"\x7fELF" + bytes(range(256)) * 40}


def python(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True)


def leftovers(root: Path) -> list[str]:
    return os.listdir(root / "v1" / "tmp")


def test_round_trip_and_modes(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "cache"
    cache = Cache(root)
    assert cache.get("k") is None
    put = cache.put("k", FILES)
    found = Cache(root).get("k")
    assert found == put and found is not None
    assert {name: found.read(name) for name in FILES} == FILES
    assert found.path("unit.so").read_bytes() == FILES["unit.so"]
    assert list(cache.entries()) == ["k"]
    assert cache.size() > sum(len(data) for data in FILES.values() if isinstance(data, bytes))
    for folder in (root, root / "v1", root / "v1" / "entries", root / "v1" / "entries" / "k"):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert leftovers(root) == []
    with pytest.raises(KeyError):
        found.path("other")


def test_a_path_is_taken_in(tmp_path: Path) -> None:
    source = tmp_path / "made.so"
    source.write_bytes(b"code")
    cache = Cache(tmp_path / "cache")
    entry = cache.put("k", {"unit.so": source})
    source.unlink()
    assert entry.read("unit.so") == b"code"


def test_clear_and_remove(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for key in "abc":
        cache.put(key, FILES)
    cache.keep_failed("bad", "int x")
    cache.remove("a")
    cache.remove("never")
    assert list(cache.entries()) == ["b", "c"]
    cache.clear()
    assert list(cache.entries()) == [] and cache.get("b") is None
    assert cache.size() == 0 and leftovers(tmp_path) == []


def test_the_same_content_again_keeps_the_entry_and_other_content_replaces_it(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first = cache.put("k", FILES).path("unit.so").stat().st_ino
    assert cache.put("k", FILES).path("unit.so").stat().st_ino == first
    cache.put("k", {"plan.json": b"new"})
    found = cache.get("k")
    assert found is not None and found.read("plan.json") == b"new" and set(found.digests) == {"plan.json"}
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("key", ["", "a/b", "..", "a" * 129, "ä"])
def test_keys_cannot_leave_the_directory(tmp_path: Path, key: str) -> None:
    cache = Cache(tmp_path)
    for use in (cache.get, cache.remove, lambda key: cache.put(key, FILES)):
        with pytest.raises(ValueError):
            use(key)


@pytest.mark.parametrize("name", ["../x", "manifest.json", "", ".hidden", "a/b"])
def test_file_names_cannot_leave_the_entry(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError):
        Cache(tmp_path).put("k", {name: b""})


def test_keys_tell_lists_of_parts_apart() -> None:
    assert key_of("a", "b") == key_of(b"a", b"b")
    assert len({key_of("ab"), key_of("a", "b"), key_of("", "ab"), key_of("ab", "")}) == 4


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "first byte": lambda path: flip(path, 0),
    "last byte": lambda path: flip(path, -1),
    "middle byte": lambda path: flip(path, path.stat().st_size // 2),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "one byte short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["plan.json", "unit.so", "manifest.json"])
def test_damage_counts_as_missing_and_is_repaired(tmp_path: Path, name: str, damage: str) -> None:
    cache = Cache(tmp_path)
    entry = cache.put("k", FILES)
    DAMAGE[damage](entry.folder / name)
    if name != "manifest.json":
        with pytest.raises(CacheError, match="SM0304"):
            entry.read(name)
    assert cache.get("k") is None
    assert list(cache.entries()) == []
    cache.put("k", FILES)
    again = cache.get("k")
    assert again is not None and again.read(name if name in FILES else "unit.so")
    assert leftovers(tmp_path) == []


def test_damage_is_also_repaired_by_a_put_without_a_get(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    flip(cache.put("k", FILES).path("unit.so"), 5)
    assert cache.put("k", FILES).read("unit.so") == FILES["unit.so"]


def test_an_entry_under_another_key_is_not_taken(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    folder = cache.put("k", FILES).folder
    folder.rename(folder.with_name("other"))
    assert cache.get("other") is None


def test_a_file_in_the_place_of_an_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (tmp_path / "v1" / "entries" / "k").write_text("not a directory")
    assert cache.get("k") is None
    assert cache.put("k", FILES).read("plan.json") == FILES["plan.json"]


def test_directory_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cache(tmp_path).put("k", FILES)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CacheError, match=r"SM0301(.|\n)*SMELT_CACHE_DIR"):
        Cache(tmp_path)


def test_directory_others_may_write_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(CacheError, match=r"SM0302(.|\n)*chmod 700"):
        Cache(tmp_path)
    tmp_path.chmod(0o755)
    Cache(tmp_path).put("k", FILES)


@pytest.mark.parametrize("name", ["v1", "v1/entries", "v1/tmp"])
def test_directory_of_ours_that_was_opened_to_others(tmp_path: Path, name: str) -> None:
    Cache(tmp_path)
    (tmp_path / name).chmod(0o755)
    with pytest.raises(CacheError, match="SM0302"):
        Cache(tmp_path)


def test_link_in_the_place_of_our_directory(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "root").mkdir(mode=0o700)
    (tmp_path / "root" / "v1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheError, match="SM0303"):
        Cache(tmp_path / "root")


@pytest.mark.parametrize("folder", [".", "v1", "v1/entries"])
def test_owner_and_mode_are_checked_at_every_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Who can write to any of these could put another library there, also after the cache was opened."""
    cache = Cache(tmp_path)
    cache.put("k", FILES)
    tmp_path.chmod(0o700)
    (tmp_path / folder).chmod(0o777)
    with pytest.raises(CacheError, match="SM0302"):
        cache.get("k")
    (tmp_path / folder).chmod(0o700)
    assert cache.get("k") is not None
    real, other = os.lstat, str(tmp_path / folder)

    def lstat(path: str | Path) -> os.stat_result:
        found = real(path)
        return os.stat_result([*found[:4], os.getuid() + 1, *found[5:]]) if str(path) == other else found

    monkeypatch.setattr(os, "lstat", lstat)
    monkeypatch.setattr(os, "stat", lstat)
    with pytest.raises(CacheError, match="SM0301"):
        cache.get("k")


def test_entries_name_no_files_elsewhere(tmp_path: Path) -> None:
    import hashlib
    import json

    cache = Cache(tmp_path)
    entry = cache.put("k", FILES)
    (tmp_path / "evil.so").write_bytes(b"evil")
    files = {"../../../evil.so": hashlib.sha256(b"evil").hexdigest()}
    body = json.dumps({"key": "k", "files": files}).encode()
    (entry.folder / "manifest.json").write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert cache.get("k") is None


def test_files_that_show_errors_count_and_are_cleared(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (tmp_path / "repros").mkdir(mode=0o700)
    (tmp_path / "repros" / "bug.py").write_bytes(b"x" * 1000)
    assert cache.size() == 1000
    cache.clear()
    assert cache.size() == 0 and not (tmp_path / "repros").exists() and leftovers(tmp_path) == []


def test_a_relative_root_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMELT_CACHE_DIR", "-here")
    cache = open_cache()
    cache.put("k", FILES)
    monkeypatch.chdir("/")
    assert cache.get("k") is not None and cache.root == tmp_path / "-here"


def test_a_root_below_a_file_degrades_with_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="SMELT_CACHE_DIR") as caught:
        cache = Cache(tmp_path / "file" / "cache")
        entry = cache.put("k", FILES)
        cache.put("k2", FILES)
    assert len(caught) == 1 and cache.degraded
    assert cache.get("k") == entry and entry.read("unit.so") == FILES["unit.so"]
    assert entry.folder.stat().st_mode & 0o777 == 0o700
    assert cache.scratch().is_dir()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("function", ["fsync", "rename", "mkdir"])
def test_disk_that_fails_under_a_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int
) -> None:
    cache = Cache(tmp_path)
    old = cache.put("old", FILES)
    real = getattr(os, function)
    home = str(tmp_path / "v1")

    def failing(target: object, *args: object) -> object:
        inside = isinstance(target, int) or str(target).startswith(home)
        if inside and not (isinstance(target, int) and cache.degraded):
            raise OSError(number, os.strerror(number))
        return real(target, *args)

    monkeypatch.setattr(os, function, failing)
    with pytest.warns(RuntimeWarning, match=os.strerror(number).split()[0]) as caught:
        entry = cache.put("k", FILES)
    assert len(caught) == 1
    assert entry.read("unit.so") == FILES["unit.so"] and cache.get("k") == entry
    assert cache.get("old") == old
    monkeypatch.undo()
    assert Cache(tmp_path).get("k") is None
    assert leftovers(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_read_only_directory_is_still_read(tmp_path: Path) -> None:
    code = """if True:
        import os, sys, warnings
        from smelt.runtime.cache import Cache
        os.setuid(65534)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cache = Cache(sys.argv[1])
            print(cache.get("k").read("plan.json").decode(), cache.get("n") is None)
            put = cache.put("n", {"x": b"new"})
            print(put.read("x").decode(), cache.get("n").read("x").decode(), len(caught))
    """
    root = tmp_path / "cache"
    Cache(root).put("k", FILES)
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            os.chown(os.path.join(folder, name), 65534, 65534)
    os.chown(root, 65534, 65534)
    for folder in (root / "v1" / "tmp", root / "v1" / "entries"):
        folder.chmod(0o500)
    parent = tmp_path
    while parent != parent.parent and parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
        parent.chmod(parent.stat().st_mode | 0o011)
        parent = parent.parent
    process = python(code, str(root))
    out, _ = process.communicate(timeout=60)
    assert out.splitlines() == ['{"a": 1} True', "new new 1"]


def test_directories_that_vanish_are_made_again(tmp_path: Path) -> None:
    import shutil

    root = tmp_path / "cache"
    cache = Cache(root)
    shutil.rmtree(root)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get("k") is None
        assert cache.put("k", FILES).read("plan.json") == FILES["plan.json"]
        shutil.rmtree(root)
        assert cache.scratch().is_dir()


def test_open_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "a"))
    first = open_cache()
    assert first.root == tmp_path / "a" and open_cache() is first
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "b"))
    assert open_cache().root == tmp_path / "b"


RACER = """if True:
    import hashlib, os, random, sys
    from smelt.runtime.cache import Cache
    root, seed = sys.argv[1], int(sys.argv[2])
    chance = random.Random(seed)
    cache = Cache(root)
    good = 0
    for turn in range(60):
        key = f"k{chance.randrange(4)}"
        draw = chance.random()
        if draw < 0.45:
            body = f"{key}:{chance.randrange(3)}".encode() * 2000
            cache.put(key, {"data": body, "sum": hashlib.sha256(body).hexdigest().encode()})
        elif draw < 0.5:
            cache.remove(key)
        elif draw < 0.55:
            try:
                path = cache.root / "v1" / "entries" / key / "data"
                size = path.stat().st_size
                os.truncate(path, chance.randrange(size))
            except OSError:
                pass
        else:
            entry = cache.get(key)
            if entry is not None:
                try:
                    body, digest = entry.read("data"), entry.read("sum")
                except Exception as error:
                    assert "SM0304" in str(error), error
                    continue
                # digests of one entry belong together even where another process replaces it meanwhile
                assert hashlib.sha256(body).hexdigest().encode() == digest and body.startswith(key.encode())
                good += 1
    print("fine", good, cache.degraded)
"""


def test_eight_processes_race(tmp_path: Path) -> None:
    processes = [python(RACER, str(tmp_path), str(seed)) for seed in range(8)]
    said = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [words[:1] + words[2:] for words in said] == [["fine", "False"]] * 8
    assert sum(int(words[1]) for words in said) > 20
    cache = Cache(tmp_path)
    assert leftovers(tmp_path) == []
    for key in list(cache.entries()):
        entry = cache.get(key)
        assert entry is None or entry.read("data").startswith(key.encode())


PUTTER = """if True:
    import sys
    from smelt.runtime.cache import Cache
    cache = Cache(sys.argv[1])
    turn = 0
    while True:
        print(turn, "written", flush=True)
        body = str(turn).encode() * 100_000
        for key in ("replaced", f"new{turn}"):
            cache.put(key, {"a": body, "b": body, "c": body})
        turn += 1
"""


def test_kill_during_put_at_any_point(tmp_path: Path) -> None:
    for written, delay in enumerate((0.0, 0.003, 0.007, 0.011, 0.02, 0.031, 0.05)):
        process = python(PUTTER, str(tmp_path))
        assert process.stdout is not None
        for turn in range(written + 1):
            assert process.stdout.readline() == f"{turn} written\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        cache = Cache(tmp_path)  # also removes what the dead process left
        assert leftovers(tmp_path) == []
        assert {f"new{turn}" for turn in range(written)} <= set(cache.entries())
        for key in cache.entries():
            entry = cache.get(key)
            assert entry is not None and entry.read("a") == entry.read("b") == entry.read("c")


def test_temporary_directories_of_live_processes_and_other_machines_stay(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    mine = cache.scratch()
    other = tmp_path / "v1" / "tmp" / "othermachine-1-abc"
    old = tmp_path / "v1" / "tmp" / "othermachine-2-abc"
    for folder in (other, old):
        folder.mkdir()
    os.utime(old, (0, 0))
    Cache(tmp_path)
    assert mine.is_dir() and other.is_dir() and not old.exists()


def test_a_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    code = """if True:
        import sys, time
        from smelt.runtime.cache import Cache
        lock = Cache(sys.argv[1]).lock("k")
        lock.acquire()
        print("held", flush=True)
        time.sleep(60)
    """
    process = python(code, str(tmp_path))
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    lock = Cache(tmp_path).lock("k")
    with pytest.raises(cache_module.filelock.Timeout):
        lock.acquire(timeout=0)
    process.kill()
    process.wait()
    process.stdout.close()
    lock.acquire(timeout=10)
    assert lock.is_locked
    lock.release()
