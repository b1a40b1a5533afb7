"""Large pages for large tensors: fewer page faults while fresh memory is filled, fewer misses of the TLB.

Linux gives them to who asks (`madvise(2)`, ``MADV_HUGEPAGE``) where transparent huge pages are set to
``madvise``, as they usually are; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

import torch

LEAST_BYTES = 2**22
"""Smaller memory is as well off with pages of 4 KiB: no large one may fit into it."""
_PAGE = 4096
_MADV_HUGEPAGE = 14


@lru_cache(maxsize=1)
def _madvise() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    return function


def advise(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, its memory to be of large pages where it is large; call it before the first write.

    >>> advise(torch.empty(2**20)).shape
    torch.Size([1048576])
    """
    size = tensor.untyped_storage().nbytes()
    function = _madvise() if size >= LEAST_BYTES else None
    if function is not None:
        begin = -(-tensor.untyped_storage().data_ptr() // _PAGE) * _PAGE
        end = (tensor.untyped_storage().data_ptr() + size) // _PAGE * _PAGE
        function(begin, end - begin, _MADV_HUGEPAGE)  # advice: what comes back does not matter
    return tensor
