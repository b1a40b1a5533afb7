"""``tvm_ffi.access_path``: ways into TVM's own objects, of which there are none."""

from __future__ import annotations


class AccessPath:
    @staticmethod
    def root() -> AccessPath:
        raise NotImplementedError("smelt's programs have no access paths")


__all__ = ["AccessPath"]
