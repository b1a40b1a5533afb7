"""Compiles kernels to machine code, as a process of its own that needs Triton alone: no torch, no smelt.

``python worker.py FOLDER`` reads ``module.py`` and ``orders.json``, and writes three files for each kernel:
its assembly (``.ptx``), its binary (``.bin``) and facts about it (``.json``). Triton's error ends it,
with a text on standard error.
"""

import json
import sys
from pathlib import Path


def main(folder: Path) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    sys.path.insert(0, str(folder))
    import module

    for name, order in json.loads((folder / "orders.json").read_text()).items():
        target = GPUTarget(*order["target"])
        attributes = {(position,): [["tt.divisibility", 16]] for position in order["aligned"]}
        source = ASTSource(getattr(module, name), order["signature"], {}, attributes)
        made = triton.compile(source, target=target, options=order["options"])
        binary, text = ("hsaco", "amdgcn") if target.backend == "hip" else ("cubin", "ptx")
        threads = made.metadata.num_warps * target.warp_size
        facts = {"name": name, "threads": threads, "shared": int(made.metadata.shared)}
        facts["scratch"] = int(getattr(made.metadata, "global_scratch_size", 0))
        (folder / f"{name}.ptx").write_text(made.asm[text])
        (folder / f"{name}.bin").write_bytes(made.asm[binary])
        (folder / f"{name}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
