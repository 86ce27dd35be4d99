# SPDX-License-Identifier: Apache-2.0
"""Registered memory: one's own, and a peer's."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from . import _abi, _native
from ._abi import Status, wimm_mr_desc
from ._child import Child
from .errors import error
from .operation import Operation

if TYPE_CHECKING:
    from ._buffers import Memory
    from .engine import Engine


class Region(Child):
    """Memory of this process that the engine may read and, unless local_only, peers may write.

    It stays registered, and the object that owns the memory stays alive, until the region or its
    engine is closed: dropping the last reference to it changes nothing.
    """

    def __init__(self, engine: Engine, memory: Memory, local_only: bool,
                 strict_order: bool) -> None:
        flags = (_abi.WIMM_MR_LOCAL_ONLY if local_only else 0) | (
            _abi.WIMM_MR_STRICT_ORDER if strict_order else 0)
        opts = _abi.wimm_mr_opts(size=ctypes.sizeof(_abi.wimm_mr_opts), flags=flags)
        out = ctypes.c_void_p()
        self.address = memory.address
        self.length = memory.length
        self.device = memory.device
        self._desc: bytes | None = None
        with engine._gate as handle:
            _native.check(engine._lib.wimm_reg_mr(handle, memory.address, memory.length,
                                                  ctypes.byref(opts), ctypes.byref(out)))
            self._keep: Memory | None = memory
            super().__init__(engine, out.value or 0)
        self._check_device(engine._lib.wimm_mr_cuda_device(out))

    def __repr__(self) -> str:
        return f"<wimm.Region {self.length} bytes at {self.address:#x} on {self.device}>"

    def _check_device(self, card: int) -> None:
        """What the driver says of the memory against what its owner said."""
        found = f"cuda:{card}" if card >= 0 else "cpu"
        if self.device in (found, found.partition(":")[0]):
            self.device = found
            return
        self.close()
        hint = "" if card >= 0 else (", as far as this process has CUDA in use: libcuda is loaded "
                                     "by who allocates there")
        raise error(Status.E_INVAL, f"memory at {self.address:#x} was said to be on "
                                    f"{self.device} and is on {found}{hint}")

    def _stream(self) -> int | None:
        """The stream that brings this memory's content, if its owner knows one."""
        owner = self._keep.owner if self._keep is not None else None
        if owner is None:
            return None
        with self._engine._gate as handle:  # until the owner has used what it gets

            def own(card: int) -> int:
                out = ctypes.c_void_p()
                _native.check(self._engine._lib.wimm_cuda_stream(handle, card, ctypes.byref(out)))
                return out.value or 0

            return owner.stream(own)

    @property
    def desc(self) -> bytes:
        """What a peer needs to write into it: bytes that any channel may carry."""
        if self._desc is None:
            desc = wimm_mr_desc()
            with self._engine._gate:
                _native.check(self._engine._lib.wimm_mr_get_desc(self._use(), ctypes.byref(desc)))
            self._desc = bytes(desc.bytes[:desc.len_bytes])
        return self._desc

    def close(self, wait: bool = True) -> None:
        """End the registration. Waits until no peer can write into the memory any more and none of
        the engine's own operations reads it, then lets go of its owner. With wait=False, and inside
        a callback, that happens later."""
        ended = self._close_by(self._deregister)
        if ended is not None:
            self._wait_unless_in_callback(ended, wait)

    def _deregister(self, handle: int, mr: int) -> Operation:
        # The operation, which the C callback finds by its number, holds the memory until then.
        ended = Operation(self._engine, "deregistration", (self, self._keep))
        status = self._engine._lib.wimm_dereg_mr(handle, mr, self._engine._on_done(ended))
        if status != Status.OK:
            ended._drop()
            raise _native.refused(status)
        self._keep = None
        return ended

    def _close_within(self, handle: int, mr: int) -> None:
        self._deregister(handle, mr)


class RemoteRegion(Child):
    """A peer's region, ready to be written to."""

    def __init__(self, engine: Engine, desc: bytes) -> None:
        raw = bytes(desc)
        if len(raw) > _abi.WIMM_MR_DESC_MAX_BYTES:
            raise error(Status.E_PARSE, f"a descriptor has at most {_abi.WIMM_MR_DESC_MAX_BYTES} "
                                        f"bytes, this has {len(raw)}")
        given = wimm_mr_desc(len_bytes=len(raw))
        ctypes.memmove(given.bytes, raw, len(raw))
        out = ctypes.c_void_p()
        with engine._gate as handle:
            _native.check(engine._lib.wimm_open_remote_mr(handle, ctypes.byref(given),
                                                          ctypes.byref(out)))
            self.length: int = engine._lib.wimm_remote_mr_len_bytes(out)
            self.peer: int = engine._lib.wimm_remote_mr_peer(out)
            super().__init__(engine, out.value or 0)

    def __repr__(self) -> str:
        return f"<wimm.RemoteRegion {self.length} bytes of peer {self.peer}>"

    def close(self) -> None:
        """Give it back. Operations already accepted go on."""
        self._close_by(self._close_within)

    def _close_within(self, handle: int, mr: int) -> None:
        _native.check(self._engine._lib.wimm_close_remote_mr(handle, mr))
