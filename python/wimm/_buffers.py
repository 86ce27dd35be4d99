# SPDX-License-Identifier: Apache-2.0
"""Memory that Python objects own: where it lies, how long it is, and what keeps it there."""

from __future__ import annotations

import array
import ctypes
import functools
import operator
import re
from typing import Any, Iterable, NamedTuple, Sequence

from . import _cuda
from ._abi import Status
from .errors import Error, error

# Values of DLDeviceType; the first two are memory that the CPU may read and write.
_DL_CPU, _DL_CUDA_HOST, _DL_CUDA = 1, 3, 2
_DL_NAMES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 11: "ROCm host",
             13: "CUDA managed", 14: "oneAPI"}

_PYBUF_WRITABLE = 0x0001
_PYBUF_STRIDES = 0x0010 | 0x0008
_PYBUF_ANY_CONTIGUOUS = 0x0080 | _PYBUF_STRIDES


class Memory(NamedTuple):
    """A range of memory. `keep` holds it in place for as long as it lives."""

    address: int
    length: int
    keep: object
    device: str = "cpu"
    owner: _cuda.Owner | None = None    #: who knows the stream that its content comes by


class _PyBuffer(ctypes.Structure):
    """Py_buffer of the stable ABI."""

    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)), ("internal", ctypes.c_void_p),
    ]


@functools.lru_cache(maxsize=None)
def _python_call(name: str, returns: Any, *takes: Any) -> Any:
    """A function of CPython with a prototype of our own: the attributes of ctypes.pythonapi belong
    to the whole process. It runs with the GIL held and raises what CPython sets."""
    return ctypes.PYFUNCTYPE(returns, *takes)((name, ctypes.pythonapi))


class _BufferView:
    """Holds a Py_buffer, which memoryview would not give the address of, until it is collected."""

    def __init__(self, obj: object, flags: int) -> None:
        self._give = _python_call("PyBuffer_Release", None, ctypes.POINTER(_PyBuffer))
        self.view = _PyBuffer()
        self._held = False
        _python_call("PyObject_GetBuffer", ctypes.c_int, ctypes.py_object,
                     ctypes.POINTER(_PyBuffer), ctypes.c_int)(obj, ctypes.byref(self.view), flags)
        self._held = True

    def __del__(self) -> None:
        if getattr(self, "_held", False):
            self._held = False
            self._give(ctypes.byref(self.view))


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


def memory_of(obj: Any, writable: bool, cuda: bool = False) -> Memory:
    """The memory of a buffer, an array of DLPack or of the CUDA array interface, or of an
    (address, length, device) tuple. It must be contiguous, and host memory unless `cuda`."""
    memory = _find(obj, writable)
    if memory.device != "cpu" and not cuda:
        raise error(Status.E_UNSUPPORTED, f"this memory is on {memory.device}: only a region may "
                                          f"be, copy it to the host first")
    return memory


def _find(obj: Any, writable: bool) -> Memory:
    if isinstance(obj, tuple):
        return _from_tuple(obj)
    if hasattr(obj, "__dlpack__") and _dl_device(obj)[0] == _DL_CUDA:
        return _from_dlpack(obj)
    if hasattr(obj, "__cuda_array_interface__"):
        return _from_cuda_array(obj, writable)
    try:
        memoryview(obj).release()
    except TypeError:
        pass
    except (BufferError, ValueError) as problem:
        if not hasattr(obj, "__dlpack__"):
            raise error(Status.E_INVAL, f"{type(obj).__name__}: {problem}") from problem
    else:
        return _from_buffer(obj, writable)
    if hasattr(obj, "__dlpack__"):
        return _from_dlpack(obj)
    raise TypeError(f"{type(obj).__name__} has no memory to register: give a buffer, an object "
                    f"with __dlpack__, or a tuple (address, length, device)")


def _not_host(device: str) -> Error:
    return error(Status.E_UNSUPPORTED, f"this memory is on {device}: only that of the host and of "
                                       f"CUDA is registered, copy it there first")


def _from_tuple(obj: tuple[Any, ...]) -> Memory:
    if len(obj) not in (2, 3):
        raise TypeError(f"a tuple of memory is (address, length, device); this has {len(obj)} "
                        f"items")
    device = str(obj[2]) if len(obj) == 3 else "cpu"
    if device != "cpu" and not re.fullmatch(r"cuda(:\d+)?", device):
        raise _not_host(device)
    address, length = operator.index(obj[0]), operator.index(obj[1])
    if not (0 <= address < 1 << 64 and 0 <= length < 1 << 64):
        raise ValueError(f"address {address} or length {length} is outside 0 to 2^64 - 1")
    return Memory(address, length, obj, device)


def _from_buffer(obj: Any, writable: bool) -> Memory:
    flags = _PYBUF_ANY_CONTIGUOUS | (_PYBUF_WRITABLE if writable else 0)
    try:
        held = _BufferView(obj, flags)
    except (BufferError, ValueError) as problem:
        hint = ""
        if writable and memoryview(obj).readonly:
            hint = ": register it with local_only=True if it is a source only"
        raise error(Status.E_INVAL, f"{type(obj).__name__}: {problem}{hint}") from problem
    return Memory(held.view.buf or 0, held.view.len, held)


def _dl_device(obj: Any) -> tuple[int, int]:
    if not hasattr(obj, "__dlpack_device__"):
        return _DL_CPU, 0
    kind, index = obj.__dlpack_device__()
    return int(kind), int(index)


def _from_dlpack(obj: Any) -> Memory:
    kind, index = _dl_device(obj)
    if kind not in (_DL_CPU, _DL_CUDA_HOST, _DL_CUDA):
        raise _not_host(_DL_NAMES.get(kind, f"DLPack device {kind}"))
    # The capsule is not consumed but kept: while it lives, and only so long, the tensor does.
    # Each write asks for its stream anew, so that nothing need be ordered now (-1).
    try:
        capsule = obj.__dlpack__(stream=-1) if kind == _DL_CUDA else obj.__dlpack__()
    except BufferError as problem:
        raise error(Status.E_INVAL, f"{type(obj).__name__}: {problem}") from problem
    pointer = _python_call("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object,
                           ctypes.c_char_p)(capsule, b"dltensor")
    tensor = ctypes.cast(pointer, ctypes.POINTER(_DLTensor)).contents
    if tensor.device_type != kind:
        raise _not_host(_DL_NAMES.get(tensor.device_type, f"DLPack device {tensor.device_type}"))
    shape = tensor.shape[:tensor.ndim]
    strides = tensor.strides[:tensor.ndim] if tensor.strides else None
    length = (_elements(obj, shape, strides, 1) * tensor.bits * tensor.lanes + 7) // 8
    address = (tensor.data or 0) + tensor.byte_offset
    if kind != _DL_CUDA:
        return Memory(address, length, (obj, capsule))
    return Memory(address, length, (obj, capsule), f"cuda:{index}",
                  _cuda.DlpackOwner(obj, index))


def _elements(obj: Any, shape: Sequence[int], strides: Sequence[int] | None, unit: int) -> int:
    """How many there are; refused if they do not follow one another. `unit` is that of strides."""
    elements, packed = 1, True
    for axis in reversed(range(len(shape))):
        if strides and shape[axis] != 1 and strides[axis] != elements * unit:
            packed = False
        elements *= shape[axis]
    if not packed and elements:
        raise error(Status.E_INVAL, f"{type(obj).__name__} is not contiguous in C order: register "
                                    f"a contiguous copy")
    return elements


def _from_cuda_array(obj: Any, writable: bool) -> Memory:
    name, described = type(obj).__name__, obj.__cuda_array_interface__
    address, frozen = described["data"]
    if described.get("mask") is not None:
        raise error(Status.E_INVAL, f"{name} has a mask: register its data and its mask apart")
    if frozen and writable:
        raise error(Status.E_INVAL, f"{name} is read-only: register it with local_only=True if it "
                                    f"is a source only")
    unit = int(described["typestr"][2:])
    length = unit * _elements(obj, described["shape"], described.get("strides"), unit)
    return Memory(address, length, obj, "cuda", _cuda.ArrayOwner(obj))


class Indices(NamedTuple):
    """Page indices as C takes them. `keep` holds them for the call."""

    pointer: Any
    number: int
    keep: object


def indices_of(obj: Any) -> Indices:
    """Page indices from a buffer of uint32 (not copied), or from anything that yields integers."""
    view = _flat_view(obj)
    keep: object
    if view is not None and view.format in ("I", "=I", "<I", "@I") and view.c_contiguous:
        held = _BufferView(obj, _PYBUF_ANY_CONTIGUOUS)
        address, number, keep = held.view.buf or 0, len(view), held
    else:
        values: Iterable[Any] = view.tolist() if view is not None else obj
        try:
            listed = array.array("I", values)
        except OverflowError:
            raise ValueError("a page index is outside 0 to 2^32 - 1") from None
        (address, number), keep = listed.buffer_info(), listed
    return Indices(ctypes.cast(address if number else 0, ctypes.POINTER(ctypes.c_uint32)),
                   number, keep)


def _flat_view(obj: Any) -> memoryview | None:
    """A one-dimensional view of a buffer of integers; None where `obj` is no buffer."""
    if isinstance(obj, (bytes, bytearray, str)):
        raise TypeError(f"page indices are integers, not {type(obj).__name__}")
    try:
        view = memoryview(obj)
    except TypeError:
        return None
    if view.ndim != 1 or view.format.lstrip("@=<") not in tuple("bBhHiIlLqQnN"):
        raise TypeError(f"page indices are one dimension of integers, not {view.ndim} of format "
                        f"{view.format!r}")
    return view


__all__ = ["Indices", "Memory", "indices_of", "memory_of"]
