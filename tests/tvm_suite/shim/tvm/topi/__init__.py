"""``tvm.topi``: smelt's, with TVM's kinds of errors."""

from __future__ import annotations

import sys
from typing import Any

from smelt import topi
from tvm.error import told

for _name in ("nn", "nn.pooling"):
    sys.modules[f"tvm.topi.{_name}"] = topi.nn


def __getattr__(name: str) -> Any:
    found = getattr(topi, name)
    return told(found) if callable(found) else found
