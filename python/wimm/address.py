# SPDX-License-Identifier: Apache-2.0
"""The address of an engine: bytes that any channel may carry, with a text form."""

from __future__ import annotations

import ctypes

from . import _abi, _native
from ._abi import Status, wimm_net_addr
from .errors import error


class Address(bytes):
    """An engine's address. It is bytes; str() gives the text form, parse() reads one."""

    def __str__(self) -> str:
        text = ctypes.create_string_buffer(_abi.WIMM_NET_ADDR_MAX_TEXT)
        _native.check(_native.library().wimm_net_addr_to_string(
            ctypes.byref(to_c(self)), text, len(text)))
        return text.value.decode()

    def __repr__(self) -> str:
        return f"<wimm.Address of {len(self)} bytes>"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read the text form, or a plain "HOST:PORT" of tcp. May resolve a name, which blocks."""
        addr = wimm_net_addr()
        _native.check(_native.library().wimm_net_addr_from_string(
            text.encode(), ctypes.byref(addr)))
        return from_c(addr)


def to_c(raw: bytes) -> wimm_net_addr:
    if len(raw) > _abi.WIMM_NET_ADDR_MAX_BYTES:
        raise error(Status.E_PARSE, f"an address has at most {_abi.WIMM_NET_ADDR_MAX_BYTES} bytes, "
                                    f"this has {len(raw)}")
    addr = wimm_net_addr(len_bytes=len(raw))
    ctypes.memmove(addr.bytes, raw, len(raw))
    return addr


def from_c(addr: wimm_net_addr) -> Address:
    return Address(bytes(addr.bytes[:addr.len_bytes]))
