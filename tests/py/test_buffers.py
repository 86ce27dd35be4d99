# SPDX-License-Identifier: Apache-2.0
"""Which memory can be registered, how it is kept alive, and how the rest is refused."""
import array
import ctypes
import gc
import mmap
import sys
import weakref

import numpy as np
import pytest
import wimm
from conftest import open_engine

WAIT = 20


@pytest.fixture
def engine():
    with open_engine("sim") as opened:
        yield opened


class OnlyDlpack:
    """An array that is known by DLPack alone, as a torch tensor is."""

    def __init__(self, values, device=None):
        self.values = values
        self.device = device

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device or self.values.__dlpack_device__()


class CudaArray:
    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False),
                                "version": 3}


def place(obj):
    """Address and length by another way than the package's."""
    values = np.frombuffer(obj, np.uint8)
    return values.ctypes.data, values.nbytes


@pytest.mark.parametrize("make", [
    lambda: bytearray(100), lambda: array.array("d", [1.0] * 9), lambda: mmap.mmap(-1, 4096),
    lambda: memoryview(bytearray(100))[10:20], lambda: ctypes.create_string_buffer(33),
    lambda: np.zeros((3, 4, 5), np.float32),
], ids=["bytearray", "array", "mmap", "memoryview", "ctypes", "numpy"])
def test_register_buffer_uses_its_memory_in_place(engine, make):
    """Goal: each kind of buffer is registered where it lies, with all of its bytes."""
    obj = make()
    with engine.register(obj) as region:
        assert (region.address, region.length) == place(obj)
        assert engine.open_remote(region.desc).length == region.length


def test_register_fortran_order_is_one_piece(engine):
    """Goal: memory without gaps is good enough, in whatever order its axes are."""
    values = np.zeros((3, 4), order="F")
    with engine.register(values) as region:
        assert (region.address, region.length) == (values.ctypes.data, values.nbytes)


@pytest.mark.parametrize("values", [
    np.arange(12, dtype=np.float16).reshape(3, 4), np.arange(24, dtype=np.int32)[8:16],
    np.zeros((1, 5, 1), np.complex128), np.array(3.0),
], ids=["matrix", "offset", "ones", "scalar"])
def test_register_dlpack_uses_its_memory_in_place(engine, values):
    """Goal: address, offset and length of a DLPack tensor are read right."""
    with engine.register(OnlyDlpack(values)) as region:
        assert (region.address, region.length) == (values.ctypes.data, values.nbytes)


def test_register_dlpack_moves_its_bytes(engine):
    """Goal: bytes come out of and go into tensors that are known by DLPack alone."""
    source, target = np.arange(100, dtype=np.int16), np.zeros(100, np.int16)
    remote = engine.open_remote(engine.register(OnlyDlpack(target)).desc)
    engine.write(engine.register(OnlyDlpack(source)), remote, imm=99, confirmed=True,
                 deadline=WAIT).result(WAIT)
    assert (source == target).all()


def test_register_pointer_uses_it(engine):
    """Goal: a caller with nothing but a pointer is served."""
    memory = ctypes.create_string_buffer(50)
    for given in ((ctypes.addressof(memory), 50, "cpu"), (ctypes.addressof(memory), 50)):
        with engine.register(given) as region:
            assert (region.address, region.length) == (ctypes.addressof(memory), 50)


@pytest.mark.parametrize("obj, where, code", [
    (CudaArray(), "CUDA", "E_INVAL"), ((4096, 4096, "cuda:0"), "cuda:0", "E_INVAL"),
    (OnlyDlpack(np.zeros(4), (10, 0)), "ROCm", "E_UNSUPPORTED"),
    (OnlyDlpack(np.zeros(4), (99, 0)), "99", "E_UNSUPPORTED"),
])
def test_register_device_memory_without_a_driver_is_refused_by_name(engine, obj, where, code):
    """Goal: nobody's device pointer is taken for a host pointer, and the text says why."""
    with pytest.raises(wimm.Error, match=where) as caught:
        engine.register(obj)
    assert caught.value.code == wimm.Status[code]


def test_register_read_only_needs_local_only(engine):
    """Goal: peers cannot write into constants; as a source they serve."""
    frozen = np.arange(8)
    frozen.flags.writeable = False
    for constant in (b"constant", frozen):
        with pytest.raises(wimm.Error, match="local_only"):
            engine.register(constant)
    with engine.register(b"constant", local_only=True) as region:
        assert region.length == 8
        with pytest.raises(wimm.Error) as caught:
            region.desc
        assert caught.value.code == wimm.Status.E_UNSUPPORTED


@pytest.mark.parametrize("obj", [
    np.zeros(10)[::2], OnlyDlpack(np.zeros((4, 4)).T), OnlyDlpack(np.zeros((4, 4))[:, :2]),
    bytearray(),
], ids=["strided", "transposed", "columns", "empty"])
def test_register_gaps_and_nothing_are_refused(engine, obj):
    """Goal: memory that is not one piece is an error, never a wrong range."""
    with pytest.raises(wimm.Error) as caught:
        engine.register(obj)
    assert caught.value.code == wimm.Status.E_INVAL


@pytest.mark.parametrize("obj", [5, "text", None, [1, 2], (1,), (1, 2, 3, 4), ("a", 1)])
def test_register_what_has_no_memory_is_a_type_error(engine, obj):
    """Goal: the wrong kind of argument says so."""
    with pytest.raises(TypeError):
        engine.register(obj)


@pytest.mark.parametrize("wrap", [lambda values: values, OnlyDlpack], ids=["buffer", "dlpack"])
def test_region_keeps_its_memory_until_closed(engine, wrap):
    """Goal: memory that peers may write to cannot be freed by dropping references, and is not held
    any longer than it is registered."""
    values = np.zeros(1000)
    alive = weakref.ref(values)
    region = engine.register(wrap(values))
    del values
    gc.collect()
    assert alive() is not None
    region.close()
    region.close()
    gc.collect()
    assert alive() is None and region.closed


def test_region_dropped_stays_registered(engine):
    """Goal: a descriptor given away stays good when the Region object is forgotten."""
    target = bytearray(8)
    desc = engine.register(target).desc
    gc.collect()
    engine.write(engine.register(b"survives", local_only=True), engine.open_remote(desc),
                 imm=99, confirmed=True, deadline=WAIT).result(WAIT)
    assert target == b"survives"


def test_region_locks_the_size_of_a_bytearray(engine):
    """Goal: registered memory cannot be moved by its owner, and can again afterwards."""
    growing = bytearray(10)
    with engine.register(growing):
        with pytest.raises(BufferError):
            growing.extend(b"more")
    growing.extend(b"more")


def test_region_closed_is_refused(engine):
    """Goal: a closed region is an error and not a crash."""
    source, target = engine.register(bytearray(8)), engine.register(bytearray(8))
    remote = engine.open_remote(target.desc)
    source.close()
    with pytest.raises(wimm.Error, match="closed"):
        engine.write(source, remote)
    remote.close()
    with pytest.raises(wimm.Error, match="closed"):
        engine.write(target, remote)
    assert target.desc  # was read before
    target.close()


def test_buffers_leave_no_references_behind(engine):
    """Goal: registering over and over does not leak the owner."""
    values = np.zeros(10)
    before = sys.getrefcount(values)
    for _ in range(50):
        engine.register(values).close()
        engine.register(OnlyDlpack(values)).close()
    gc.collect()
    assert sys.getrefcount(values) == before
