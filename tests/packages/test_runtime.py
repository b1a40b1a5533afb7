"""The fixed C runtime of packages, called from C through a model by hand (``runtime/tiny.c``)."""

import hashlib
import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from smelt.packages.folder import kernels_header

HERE = Path(__file__).parent / "runtime"
RUNTIME = Path(__file__).parents[2] / "src/smelt/packages/runtime"
STRICT = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
MEMORY = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
RACES = ["-g", "-O1", "-fsanitize=thread"]

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="there is no gcc")


def run(*command: object) -> str:
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


def defined(flag: str, library: Path) -> set[str]:
    """The names of a library's symbols."""
    listing = run("nm", flag, "--defined-only", library)
    return {line.split()[-1] for line in listing.splitlines() if " " in line}


def safetensors() -> bytes:
    """The weights of tiny.c, with data at multiples of 64 bytes."""
    header: dict[str, object] = {"__metadata__": {"made by": "smelt ä\n"}}
    data = b""
    for name, dtype, shape, values in (
        ("b", "F32", [4], struct.pack("4f", *(j / 2 for j in range(4)))),
        (
            'layers.0.w"ä',
            "F32",
            [4, 4],
            struct.pack("16f", *(i + 10 * j for i in range(4) for j in range(4))),
        ),
        ("start", "I32", [3], struct.pack("3i", 7, 8, 9)),
        ("none", "F64", [0, 7], b""),
    ):
        if padding := -len(data) % 64:
            place = [len(data), len(data) + padding]
            header[f".padding.{len(header)}"] = {"dtype": "U8", "shape": [padding], "data_offsets": place}
            data += bytes(padding)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    return with_header(header, data)


def with_header(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text + data


def parts(weights: bytes) -> tuple[dict[str, dict[str, list[int]]], bytes]:
    (length,) = struct.unpack("<Q", weights[:8])
    return json.loads(weights[8 : 8 + length]), weights[8 + length :]


class Built:
    """Programs of a C file, tiny.c and the runtime; each kind of objects is compiled once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.weights = folder / "weights.safetensors"
        self.weights.write_bytes(safetensors())
        digest = ",".join(str(byte) for byte in hashlib.sha256(self.weights.read_bytes()).digest())
        self.digest = f"-DDIGEST={{{digest}}}"
        self.archives: dict[tuple[str, ...], Path] = {}

    def archive(self, name: str, *flags: str) -> Path:
        key = (name, *flags)
        if key not in self.archives:
            folder = self.folder / f"{name}{len(self.archives)}"
            folder.mkdir()
            sources = [*RUNTIME.glob("*.c"), HERE / "tiny.c"]
            command = [
                f"-DSMELT_NAME={name}",
                self.digest,
                f"-I{RUNTIME}",
                "-fPIC",
                "-fvisibility=hidden",
                "-c",
            ]
            run("env", "-C", folder, "gcc", *STRICT, "-Wconversion", *command, *flags, *sources)
            run("ar", "rc", folder / f"lib{name}.a", *folder.glob("*.o"))
            self.archives[key] = folder / f"lib{name}.a"
        return self.archives[key]

    def program(self, source: str, *flags: str) -> Path:
        out = self.folder / f"{source}{len(flags)}{len(self.archives)}"
        archive = self.archive("tiny", *flags)
        command = ["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-DSMELT_NAME=tiny", f"-I{RUNTIME}", *flags]
        run("gcc", *command, HERE / f"{source}.c", archive, "-o", out, "-lpthread")
        return out


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("runtime"))


def test_right_and_wrong_calls(built: Built) -> None:
    levels = run(built.program("check", *MEMORY), built.weights).split()
    assert levels[-1] == "generic" and len(levels) >= 2


def test_eight_threads_call_one_model(built: Built) -> None:
    run(built.program("threads", *MEMORY), built.weights)


def test_threads_have_no_races(built: Built) -> None:
    program = built.program("threads", *RACES)
    # Some versions of the sanitizer cannot have randomized addresses, and some containers no others.
    fixed = subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0
    run(*(["setarch", "-R"] if fixed else []), program, built.weights)


def test_mutated_weights_give_errors(built: Built) -> None:
    accepted = int(run(built.program("fuzz", *MEMORY), built.weights, 10000).split()[0])
    assert 0 < accepted < 2000  # mutations of data alone are accepted where the digest is not compared


def test_wrong_weights_are_named(built: Built, tmp_path: Path) -> None:
    """What the message says of files that are wrong in one way."""
    create = built.program("create", *MEMORY)
    weights = safetensors()
    header, data = parts(weights)
    name = 'layers.0.w"ä'

    def changed(tensor: str, **change: object) -> bytes:
        return with_header({**header, tensor: {**header[tensor], **change}}, data)

    size = len(data)
    at = header["start"]["data_offsets"][0]
    extra = {"dtype": "U8", "shape": [8], "data_offsets": [size, size + 8]}
    plain = json.dumps(header).encode()
    cases = {
        "is no file of weights": b"1234567",
        "a header of 4294967295 bytes": b"\xff\xff\xff\xff\0\0\0\0" + weights[8:],
        "does not begin with {": with_header(b" " + plain, data),
        "something follows the header's end": with_header(plain + b"}", data),
        "tensor 'b' has dtype F16, not F32": with_header(
            {**header, "b": {**header["b"], "dtype": "F16", "shape": [8]}}, data
        ),
        "tensor 'start' has another shape": changed("start", shape=[1, 3]),
        "tensor 'b': a tensor's offsets do not fit": changed("b", shape=[5]),
        "tensor 'b': a dtype is unknown": changed("b", dtype="F33"),
        "tensor 'b': a tensor has an unknown key": changed("b", color=3),
        "tensor 'b': a shape is too large": changed("b", shape=[2**62, 4]),
        "tensor 'b': a number is too large": changed("b", shape=[2**63]),
        "no whole number": changed("b", shape=[-4]),
        "tensor 'start' is missing": with_header(
            {("begin" if k == "start" else k): v for k, v in header.items()}, data
        ),
        "lacks its dtype": with_header({**header, "b": {"shape": [4], "data_offsets": [0, 16]}}, data),
        "overlaps another": changed("start", data_offsets=[at - 4, at + 8]),
        "ends after the file": with_header(header, data[:-1]),
        "1 bytes follow the last tensor": with_header(header, data + b"x"),
        "follows a hole": with_header({k: v for k, v in header.items() if k != ".padding.2"}, data),
        "tensor 'b' is there twice": with_header(
            plain[:-1] + b', "b": ' + json.dumps(extra).encode() + b"}", data + bytes(8)
        ),
        "is not aligned to 64 bytes": struct.pack("<Q", len(plain)) + plain + data
        if (8 + len(plain)) % 64
        else struct.pack("<Q", len(plain) + 1) + plain + b" " + data,
        "the digest (SHA-256) is not that of": weights[:-1] + b"\x01",
        f"tensor '{name}' has another shape": changed(name, shape=[2, 8]),
        "half a surrogate pair": with_header(plain.replace(b'"b"', b'"\\ud800b"'), data),
    }
    for number, text in enumerate(cases.values()):
        (tmp_path / f"{number}").write_bytes(text)
    told = run(create, *(tmp_path / f"{number}" for number in range(len(cases)))).splitlines()
    for words, message in zip(cases, told, strict=True):
        assert message.startswith("4 ") and words in message, (words, message)
    spaced = with_header(json.dumps(header, indent=1, ensure_ascii=False).replace("b", "b").encode(), data)
    (tmp_path / "spaced").write_bytes(spaced)
    assert run(create, "trust", tmp_path / "spaced") == "0 \n"


def test_a_system_of_which_nothing_is_known(built: Built) -> None:
    """Files are read and not mapped; there are no threads (WASI is such a system)."""
    create = built.program("create", *MEMORY, "-U__linux__", "-U__unix__")
    assert run(create, built.weights) == "0 \n"
    assert "/nonexistent" in run(create, "/nonexistent")


def test_digest(built: Built, tmp_path: Path) -> None:
    data = bytes(i * i % 251 for i in range(3000))
    (tmp_path / "data").write_bytes(data)
    expected = [hashlib.sha256(data[:n]).hexdigest() for n in range(3001) if not 200 < n < 2800]
    assert run(built.program("digest", "-O2"), tmp_path / "data").split() == expected


def test_two_packages_in_one_program(built: Built, tmp_path: Path) -> None:
    archives = [built.archive(name, "-O1") for name in ("one", "two")]
    for name in ("one", "two"):
        run("gcc", f"-DSMELT_NAME={name}", f"-I{RUNTIME}", "-c", HERE / "two.c", "-o", tmp_path / f"{name}.o")
    objects = [HERE / "two.c", tmp_path / "one.o", tmp_path / "two.o"]
    run("gcc", *objects, *archives, "-o", tmp_path / "static", "-lpthread")
    run(tmp_path / "static", built.weights)
    for name, archive in zip(("one", "two"), archives, strict=True):
        whole = ["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive", "-Wl,-z,defs"]
        run("gcc", "-shared", *whole, "-o", tmp_path / f"lib{name}.so")
    libraries = [f"-L{tmp_path}", "-lone", "-ltwo", f"-Wl,-rpath,{tmp_path}"]
    run("gcc", *objects, *libraries, "-o", tmp_path / "shared")
    run(tmp_path / "shared", built.weights)

    functions = (
        "create create_from_memory destroy initial input last_error level output output_shape run "
        "run_pointers size sizes workspace_bytes"
    )
    exported = {
        line.split()[-1] for line in run("nm", "-D", "--defined-only", tmp_path / "libone.so").splitlines()
    }
    assert exported == {f"one_{word}" for word in functions.split()}
    needed = [line for line in run("readelf", "-d", tmp_path / "libone.so").splitlines() if "NEEDED" in line]
    assert all("libc.so" in line or "ld-linux" in line for line in needed) and needed
    # A static library's symbols are those of the header and, hidden, name_smelt_….
    symbols = {
        line.split()[-1]
        for line in run("nm", "-g", "--defined-only", archives[0]).splitlines()
        if " " in line
    }
    assert all(symbol.startswith("one_") for symbol in symbols)


def test_scratch_beyond_what_a_program_said(built: Built, tmp_path: Path) -> None:
    """It comes from malloc; packages under test are built so that it stops them."""
    sources = [*RUNTIME.glob("*.c"), HERE / "tiny.c", HERE / "two.c"]
    (tmp_path / "main.c").write_text(
        "void one_works(const char*);\nint main(int n, char** a) { one_works(a[n - 1]); return 0; }\n"
    )
    command = [
        "gcc",
        "-DSMELT_NAME=one",
        "-DTOO_MUCH_SCRATCH",
        built.digest,
        f"-I{RUNTIME}",
        *sources,
        tmp_path / "main.c",
    ]
    run(*command, "-o", tmp_path / "fine")
    run(tmp_path / "fine", built.weights)
    run(*command, "-DSMELT_STRICT_SCRATCH", "-o", tmp_path / "strict")
    assert subprocess.run([tmp_path / "strict", built.weights]).returncode == -6


def test_kernels_use_the_runtime(tmp_path: Path) -> None:
    """They need no symbol of C++'s or OpenMP's libraries: threads and scratch memory are the runtime's."""
    (tmp_path / "smelt_kernels.h").write_text(kernels_header())
    flags = [
        "-O1",
        "-DSMELT_NAME=tiny",
        "-DSMELT_STRICT_SCRATCH",
        f"-I{RUNTIME}",
        f"-I{tmp_path}",
        "-fvisibility=hidden",
    ]
    cpp = ["-std=c++17", "-fno-exceptions", "-fno-rtti", "-Wno-unused-function"]
    compiled = tmp_path / "kernels.o"
    run("g++", *cpp, *flags[:1], *flags[3:], "-c", HERE / "kernels.cpp", "-o", compiled)
    undefined = {line.split()[-1] for line in run("nm", "-u", compiled).splitlines()}
    assert undefined - {"memcpy", "memset", "memmove"} == {
        "tiny_smelt_share",
        "tiny_smelt_scratch",
        "tiny_smelt_scratch_back",
    }
    assert all("tiny_here" in symbol for symbol in defined("-g", compiled))
    run("gcc", *flags, *RUNTIME.glob("*.c"), HERE / "kernels.c", compiled, "-o", tmp_path / "kernels", "-lm")
    run(tmp_path / "kernels")


def test_headers_are_for_c_and_cpp(tmp_path: Path) -> None:
    (tmp_path / "all.c").write_text(
        '#include "smelt_model.h"\nint rank(const DLTensor* t) { return t->ndim; }\n'
    )
    shutil.copy(tmp_path / "all.c", tmp_path / "all.cpp")
    out = ["-c", "-o", tmp_path / "all.o", f"-I{RUNTIME}", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    run("gcc", "-std=c99", *out, tmp_path / "all.c")
    for standard in ("c++11", "c++20"):
        run("g++", f"-std={standard}", *out, tmp_path / "all.cpp")
