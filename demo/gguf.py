# SPDX-License-Identifier: Apache-2.0
"""Reads a GGUF file (version 3): its keys, its tensors, and the three storage types the demo meets.

The file is mapped, not read; a tensor is widened to float32 when it is asked for. A file is input:
whatever in it points outside of it, or is of an unknown kind, raises GgufError with the place.
"""
import mmap
import struct
from dataclasses import dataclass

import numpy as np

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
            10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_F32, _Q4_1, _Q8_0 = 0, 3, 8
_BLOCKS = {  # type: (weights in a block, layout of a block)
    _F32: (1, np.dtype("<f4")),
    _Q4_1: (32, np.dtype([("scale", "<f2"), ("low", "<f2"), ("nibbles", "u1", 16)])),
    _Q8_0: (32, np.dtype([("scale", "<f2"), ("codes", "i1", 32)])),
}
_MAX_DIMS = 4


class GgufError(ValueError):
    """The file is not a GGUF file that this reader understands."""


@dataclass(frozen=True)
class _Tensor:
    shape: tuple       # slowest dimension first, as numpy has it
    kind: int
    offset_bytes: int  # from the start of the file


class GgufFile:
    """keys: dict of the file's metadata. Tensors by name: shape(name), read(name)."""

    def __init__(self, path):
        self.path = path
        self.keys = {}
        self._tensors = {}
        with open(path, "rb") as file:
            try:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise GgufError(f"{path}: {error}") from None
        self._at = 0
        try:
            self._parse()
        except (struct.error, UnicodeDecodeError, MemoryError, RecursionError) as error:
            raise GgufError(f"{path}: byte {self._at} of {len(self._data)}: {error}") from None

    def _fail(self, what):
        raise GgufError(f"{self.path}: byte {self._at} of {len(self._data)}: {what}")

    def _scalar(self, layout):
        value, = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return value

    def _string(self):
        length_bytes = self._scalar("<Q")
        if length_bytes > len(self._data) - self._at:
            self._fail(f"a string of {length_bytes} bytes ends outside the file")
        start = self._at
        self._at += length_bytes
        return self._data[start:self._at].decode()

    def _value(self, kind):
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner, count = self._scalar("<I"), self._scalar("<Q")
            if count > len(self._data) - self._at:  # each element takes a byte at the least
                self._fail(f"an array of {count} elements ends outside the file")
            return [self._value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            self._fail(f"unknown value type {kind}")
        return self._scalar(_SCALARS[kind])

    def _parse(self):
        if self._data[:4] != b"GGUF":
            self._fail(f"starts with {bytes(self._data[:4])!r}, not b'GGUF'")
        self._at = 4
        version = self._scalar("<I")
        if version != 3:
            self._fail(f"version {version}, this reader knows 3")
        tensor_count, key_count = self._scalar("<Q"), self._scalar("<Q")
        for _ in range(key_count):
            name = self._string()
            self.keys[name] = self._value(self._scalar("<I"))
        found = []
        for _ in range(tensor_count):
            name, dims = self._string(), self._scalar("<I")
            if not 1 <= dims <= _MAX_DIMS:
                self._fail(f"tensor {name} has {dims} dimensions, not 1 to {_MAX_DIMS}")
            shape = tuple(self._scalar("<Q") for _ in range(dims))[::-1]
            found.append((name, shape, self._scalar("<I"), self._scalar("<Q")))
        alignment = self.keys.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            self._fail(f"general.alignment is {alignment!r}")
        base = -(-self._at // alignment) * alignment
        for name, shape, kind, offset_bytes in found:
            self._tensors[name] = self._checked(name, shape, kind, base + offset_bytes)

    def _checked(self, name, shape, kind, offset_bytes):
        if kind not in _BLOCKS:
            self._fail(f"tensor {name} has storage type {kind}, this reader knows F32, Q4_1, Q8_0")
        weights, block = _BLOCKS[kind]
        count = 1
        for extent in shape:
            count *= extent
        if shape[-1] % weights:
            self._fail(f"tensor {name} has rows of {shape[-1]}, not a multiple of {weights}")
        end_bytes = offset_bytes + count // weights * block.itemsize
        if end_bytes > len(self._data):
            self._fail(f"tensor {name} ends at byte {end_bytes}, outside the file")
        return _Tensor(shape, kind, offset_bytes)

    def shape(self, name):
        if name not in self._tensors:
            raise GgufError(f"{self.path}: has no tensor {name}")
        return self._tensors[name].shape

    def read(self, name, out=None):
        """The tensor as float32, in `out` (same shape, rows contiguous) if given."""
        shape = self.shape(name)
        if out is None:
            out = np.empty(shape, np.float32)
        elif out.shape != shape or out.dtype != np.float32:
            raise ValueError(f"{name} is float32 {shape}, out is {out.dtype} {out.shape}")
        tensor = self._tensors[name]
        weights, layout = _BLOCKS[tensor.kind]
        count = out.size // weights
        blocks = np.frombuffer(self._data, layout, count, tensor.offset_bytes)
        if tensor.kind == _F32:
            out[...] = blocks.reshape(shape)
            return out
        rows = out.reshape(count, weights)
        if not np.shares_memory(rows, out):
            raise ValueError(f"{name}: out is not contiguous")
        scale = blocks["scale"].astype(np.float32)[:, None]
        if tensor.kind == _Q8_0:
            np.multiply(blocks["codes"], scale, out=rows)
            return out
        nibbles = blocks["nibbles"]
        np.multiply(nibbles & 15, scale, out=rows[:, :16])  # the low nibbles are the first half
        np.multiply(nibbles >> 4, scale, out=rows[:, 16:])
        rows += blocks["low"].astype(np.float32)[:, None]
        return out
