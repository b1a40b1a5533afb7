"""Huge pages for large memory, where the operating system provides them on request (Linux).

With pages of 4 KiB, 2 MiB need 512 entries of the TLB; a virtual machine looks each up twice. Panels and
activations are traversed once a call, so that their entries are rarely in the TLB.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

PAGE = 1 << 21
"""Bytes of a huge page (x86-64, and AArch64 with pages of 4 KiB)."""
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
    """Requests huge pages for the part of this memory that they fit into; it must be unused so far.

    Returns the bytes of that part; 0 if the request was not possible, or refused.
    """
    begin, end = -(-address // PAGE) * PAGE, (address + size) // PAGE * PAGE
    if _madvise is None or end <= begin:
        return 0
    return end - begin if _madvise(begin, end - begin, _HUGEPAGE) == 0 else 0
