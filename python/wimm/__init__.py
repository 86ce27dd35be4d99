# SPDX-License-Identifier: Apache-2.0
"""Moves LLM data point to point between GPUs and hosts: the Python side of libwimm.

Importing it loads no library, starts no thread and changes nothing in the process.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

from . import _abi, _native
from ._abi import FenceAnswer, PeerEventKind, ProgressMode, Scope, Status
from ._native import use_library
from .address import Address
from .engine import Engine, PeerError, PeerEvent, PeerInfo, Stats
from .errors import Again, Cancelled, Error
from .memory import alloc
from .objects import Barrier, Mirror, PeerGroup, Receiver, Watcher
from .operation import Done, Operation
from .region import Region, RemoteRegion
from .transfers import Pages, Slice

__version__ = _abi.WIMM_VERSION_STRING

__all__ = [
    "Address", "Again", "Barrier", "Cancelled", "Done", "Engine", "Error", "FenceAnswer", "Mirror",
    "Operation", "Pages", "PeerError", "PeerEvent", "PeerEventKind", "PeerGroup", "PeerInfo",
    "ProgressMode", "Receiver", "Region", "RemoteRegion", "Scope", "Slice", "Stats", "Status",
    "Watcher", "alloc", "info", "kv", "rendezvous", "use_library",
]


def info() -> dict[str, Any]:
    """This machine and build: providers, NICs, settings, as `wimm info --json` prints them."""
    library = _native.library()
    room = 1 << 16
    while True:
        text, length = ctypes.create_string_buffer(room), ctypes.c_size_t()
        status = library.wimm_info_json(text, room, ctypes.byref(length))
        if status != Status.E_LIMIT or length.value < room:
            break
        room = length.value + 1
    _native.check(status)
    described: dict[str, Any] = json.loads(text.value)
    return described


def __getattr__(name: str) -> Any:
    if name in ("kv", "rendezvous"):  # loaded when asked for: not every program needs them
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
