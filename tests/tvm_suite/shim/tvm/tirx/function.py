"""``tvm.tirx.function``."""

from __future__ import annotations

from typing import Any

from smelt.script import PrimFunc
from smelt.tir import intrinsics
from tvm.error import told

_FAILED: dict[str, Exception] = {}


class TensorIntrin(intrinsics.TensorIntrin):
    """smelt's, with errors of TVM's kind. One that cannot be registered says so where it is used: test files
    register several at their top.
    """

    @staticmethod
    def register(name: str, desc: Any, impl: Any, override: bool = False) -> Any:
        try:
            return intrinsics.TensorIntrin.register(name, desc, impl, override)
        except Exception as error:
            _FAILED[name] = error
            return None

    @staticmethod
    def get(name: str, allow_missing: bool = False) -> Any:
        if name in _FAILED:
            raise _FAILED[name]
        return told(intrinsics.TensorIntrin.get)(name, allow_missing)
