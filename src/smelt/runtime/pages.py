"""Large pages for large memory, where the operating system gives them to whoever asks (Linux).

A page of 4 KiB needs an entry in the processor's table of addresses (TLB) for each of its 512 in 2 MiB; a
virtual machine looks each up twice. Panels and activations are gone through once a call, so that every page
is one that was not used lately.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

PAGE = 1 << 21
"""Bytes of a large page (x86-64, and AArch64 with pages of 4 KiB)."""
_HUGEPAGE = 14
"""``MADV_HUGEPAGE``."""


def _found() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


_madvise = _found()


def prefer_large(address: int, size: int) -> int:
    """Ask for large pages for what of this memory they fit into; before it is used, they cost nothing.

    Returns how many bytes that is; 0 where nothing was asked for, or it was refused.
    """
    begin, end = -(-address // PAGE) * PAGE, (address + size) // PAGE * PAGE
    if _madvise is None or end <= begin:
        return 0
    return end - begin if _madvise(begin, end - begin, _HUGEPAGE) == 0 else 0
