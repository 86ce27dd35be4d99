# SPDX-License-Identifier: Apache-2.0
"""Memory of the library's own making, which processes of one machine can share."""

from __future__ import annotations

import ctypes
import weakref

from . import _calls, _native
from ._abi import Status


def alloc(length: int) -> memoryview:
    """Zero-filled memory that a peer of this machine, once it has the descriptor of a region in it,
    writes straight into; other memory has its bytes copied twice. Whole pages, huge ones asked for.

    It is a memoryview of `length` bytes: numpy.frombuffer(), torch.frombuffer() and register() take
    it. release(), or leaving a with block, gives it back, and is refused with BufferError while it
    is registered. The memory itself goes when the last view has gone: numpy arrays and parts cut
    out of it keep it (not so a tensor of torch.frombuffer(): let that go first). The child of a
    fork does not have it.
    """
    address = ctypes.c_void_p()
    library = _native.library()
    _native.check(library.wimm_alloc(_calls.unsigned("length", length), None,
                                     ctypes.byref(address)))
    try:
        block = (ctypes.c_ubyte * length).from_address(address.value or 0)
        # Every view holds the block, and CPython counts them: the last one gone, it is freed.
        weakref.finalize(block, _free, library, address.value or 0).atexit = False
    except BaseException:
        library.wimm_free(address)
        raise
    return memoryview(block).cast("B")


def _free(library: ctypes.CDLL, address: int) -> None:
    status = library.wimm_free(address)
    # In the child of a fork there is nothing to give back.
    if status not in (Status.OK, Status.E_FORKED):
        raise _native.refused(status)
