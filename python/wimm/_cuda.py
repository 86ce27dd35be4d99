# SPDX-License-Identifier: Apache-2.0
"""Streams of CUDA: who knows which one the content of memory comes by, and what names one. Nothing
of CUDA is imported: a stream is the number that its handle is."""

from __future__ import annotations

import operator
from typing import Any, Callable

# Of the CUDA array interface and of DLPack; the driver takes it for a handle.
_LEGACY_DEFAULT = 1


class Owner:
    """Whoever a region's memory comes from, where it knows the stream."""

    def stream(self, own: Callable[[int], int]) -> int | None:
        """The stream that a write has to come after, None for no stream. own(card) is one of the
        engine's, for owners that order their work before a stream that is given to them."""
        raise NotImplementedError


class DlpackOwner(Owner):
    """A tensor of DLPack on a card: it lets a stream of ours wait for its own current one."""

    def __init__(self, obj: Any, card: int) -> None:
        self._obj, self._card = obj, card

    def stream(self, own: Callable[[int], int]) -> int | None:
        stream = own(self._card)
        self._obj.__dlpack__(stream=stream)
        return stream


class ArrayOwner(Owner):
    """An array of the CUDA array interface, which says its stream from version 3 on."""

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def stream(self, own: Callable[[int], int]) -> int | None:
        described = self._obj.__cuda_array_interface__
        if described.get("version", 0) < 3:
            return _LEGACY_DEFAULT
        stream = described.get("stream")
        return None if stream is None else operator.index(stream)


def handle_of(stream: Any) -> int | None:
    """The handle of what names a stream: a number, -1 for none, or an object of torch
    (cuda_stream), CuPy (ptr) or cuda.core (__cuda_stream__)."""
    for name in ("__cuda_stream__", "cuda_stream", "ptr"):
        found = getattr(stream, name, None)
        if found is not None:
            break
    else:
        found = stream
    if callable(found):
        found = found()
    if isinstance(found, tuple):
        found = found[1]  # after the version of the protocol
    try:
        handle = operator.index(found)
    except TypeError:
        raise TypeError(f"{type(stream).__name__} is no stream: give a handle, or an object with "
                        f"cuda_stream, ptr or __cuda_stream__") from None
    if not -1 <= handle < 1 << 64:
        raise ValueError(f"stream {handle} is no handle")
    return None if handle == -1 else handle
