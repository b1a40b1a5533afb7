"""Records the user's line of every call while a function is traced.

Torch's own tracers keep lines only for functions named ``forward``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.fx import traceback
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

NOT_THE_USERS = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
)
"""The directories of torch and smelt."""
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_SITE = os.sep + "site-packages" + os.sep


@contextmanager
def of_functions() -> Iterator[None]:
    """Inside, each call of a torch function records the user's line that it comes from."""
    with traceback.preserve_node_meta(), _Functions():
        yield


@contextmanager
def of_operators() -> Iterator[None]:
    """Inside, each ATen call records the line that it comes from; backward calls record the call of
    ``backward``.
    """
    with traceback.preserve_node_meta(), _Operators():
        yield


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not torch.compiler.is_dynamo_compiling():  # the body of control flow is traced by Dynamo
            _note()
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _note()
        return func(*args, **(kwargs or {}))


def _note() -> None:
    """Records the innermost line that is not torch's, smelt's, or of Python's own library."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not (name.startswith((*NOT_THE_USERS, "<")) or (name.startswith(_LIBRARY) and _SITE not in name)):
            traceback.set_stack_trace(
                [f'  File "{name}", line {frame.f_lineno}, in {frame.f_code.co_name}\n']
            )
            return
        frame = frame.f_back
