# SPDX-License-Identifier: Apache-2.0
"""Tensors on a CUDA card that is none: the driver of tests/fake, and producers of its memory as
torch and CuPy are, whose work can be held up. For programs that WIMM_CUDA_LIBRARY is set for."""
import ctypes
import os
import time

from wimm._buffers import _DLTensor

_lib = ctypes.CDLL(os.environ["WIMM_CUDA_LIBRARY"])
for _name, _returns, _takes in (
        ("fake_cuda_alloc", ctypes.c_uint64, [ctypes.c_size_t]),
        ("fake_cuda_shadow", ctypes.c_void_p, [ctypes.c_uint64]),
        ("fake_cuda_block", None, [ctypes.c_void_p]),
        ("fake_cuda_unblock", None, [ctypes.c_void_p]),
        ("fake_cuda_looks", ctypes.c_uint64, []),
        ("cuStreamCreateWithPriority", ctypes.c_int,
         [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_int]),
        ("cuEventCreate", ctypes.c_int, [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint]),
        ("cuEventDestroy_v2", ctypes.c_int, [ctypes.c_void_p]),
        ("cuEventRecord", ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
        ("cuStreamWaitEvent", ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]),
        ("cuMemcpyAsync", ctypes.c_int,
         [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p])):
    _function = getattr(_lib, _name)
    _function.restype, _function.argtypes = _returns, _takes


class Stream:
    """A stream, named as torch does."""

    def __init__(self):
        out = ctypes.c_void_p()
        assert _lib.cuStreamCreateWithPriority(ctypes.byref(out), 1, 0) == 0
        self.cuda_stream = out.value

    def hold(self):
        """What is queued from now on waits for release()."""
        _lib.fake_cuda_block(self.cuda_stream)

    def release(self):
        _lib.fake_cuda_unblock(self.cuda_stream)


class Memory:
    """Memory of the card, filled by work of a stream."""

    def __init__(self, length=4096):
        self.length = length
        self.pointer = _lib.fake_cuda_alloc(length)
        self.bytes = (ctypes.c_ubyte * length).from_address(_lib.fake_cuda_shadow(self.pointer))
        self.stream = Stream()
        self._sources = []

    def fill(self, value):
        """Queue the work that makes every byte `value`."""
        source = ctypes.create_string_buffer(bytes([value]) * self.length, self.length)
        self._sources.append(source)
        assert _lib.cuMemcpyAsync(self.pointer, ctypes.addressof(source), self.length,
                                  self.stream.cuda_stream) == 0


class Tensor(Memory):
    """A one-dimensional tensor of bytes that is known by DLPack."""

    asked = ()      # streams that were given to __dlpack__()

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None):
        self.asked += (stream,)
        if stream != -1:
            event = ctypes.c_void_p()
            assert _lib.cuEventCreate(ctypes.byref(event), 2) == 0
            assert _lib.cuEventRecord(event, self.stream.cuda_stream) == 0
            assert _lib.cuStreamWaitEvent(stream, event, 0) == 0
            assert _lib.cuEventDestroy_v2(event) == 0
        self._shape = (ctypes.c_int64 * 1)(self.length)
        self._managed = (_DLTensor * 2)()  # longer than a DLManagedTensor
        self._managed[0] = _DLTensor(self.pointer, 2, 0, 1, 1, 8, 1, self._shape, None, 0)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._managed), b"dltensor", None)


class Array(Memory):
    """The same that is known by the CUDA array interface."""

    changes = {}

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.length // 4,), "typestr": "<f4", "data": (self.pointer, False),
                "version": 3, "stream": self.stream.cuda_stream, **self.changes}


def let_it_look(times=20):
    """Wait until the engine has looked at a held stream so often."""
    until, end = _lib.fake_cuda_looks() + times, time.monotonic() + 60
    while _lib.fake_cuda_looks() < until:
        assert time.monotonic() < end, "nobody looks whether the stream has come so far"
