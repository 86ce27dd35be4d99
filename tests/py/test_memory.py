# SPDX-License-Identifier: Apache-2.0
"""Memory of wimm.alloc(): who may use it, and for how long it stays."""
import gc
import mmap

import numpy as np
import pytest
import wimm
from conftest import open_engine
from wimm import _native

WAIT = 30


def freed(address):
    """Whether the library knows no allocation there any more; it must not be registered."""
    return _native.library().wimm_free(address) == wimm.Status.E_INVAL


def address_of(memory):
    return np.frombuffer(memory, np.uint8).ctypes.data


def test_alloc_is_a_buffer_of_zeroes():
    """Goal: all that takes a buffer takes it, at its own length, on a page of its own."""
    with wimm.alloc(5000) as memory:
        assert isinstance(memory, memoryview) and memory.nbytes == 5000 and not memory.readonly
        assert bytes(memory) == bytes(5000)
        assert address_of(memory) % mmap.PAGESIZE == 0
        memory[4999] = 7
        assert np.frombuffer(memory, np.uint8)[-1] == 7


@pytest.mark.parametrize("length, problem", [
    (0, wimm.Error), (-1, ValueError), (1 << 64, ValueError), ((1 << 61) + 1, wimm.Error),
    (1.5, TypeError),
])
def test_alloc_of_no_possible_length_is_refused(length, problem):
    """Goal: what C cannot hold is refused in Python, what the library refuses has its words."""
    with pytest.raises(problem) as caught:
        wimm.alloc(length)
    if problem is wimm.Error:
        assert caught.value.code == wimm.Status.E_INVAL and str(length) in caught.value.text


def test_alloc_released_is_given_back_at_once():
    """Goal: the end of a with block unmaps the memory, and release() a second time is harmless."""
    memory = wimm.alloc(1 << 20)
    address = address_of(memory)
    with memory:
        pass
    assert freed(address)
    memory.release()


def test_alloc_forgotten_is_given_back():
    """Goal: nothing leaks when nobody can reach it any more."""
    memory = wimm.alloc(1 << 20)
    address = address_of(memory)
    del memory
    gc.collect()
    assert freed(address)


def test_alloc_registered_refuses_to_go(provider):
    """Goal: what a peer may write to cannot be taken away, and can be once the region is closed."""
    memory = wimm.alloc(1 << 16)
    address = address_of(memory)
    with open_engine(provider) as engine:
        region = engine.register(memory)
        with pytest.raises(BufferError):
            memory.release()
        assert region.length == 1 << 16 and region.address == address
        region.close()
        memory.release()
        assert freed(address)


def test_alloc_in_use_by_an_array_or_a_part_stays():
    """Goal: no array and no slice is left with memory that is gone."""
    memory = wimm.alloc(1 << 16)
    array, part = np.frombuffer(memory, np.uint8), memory[10:20]
    address = array.ctypes.data
    memory.release()
    part[0] = 5
    assert array[10] == 5
    part.release()
    assert array[10] == 5
    del array
    assert freed(address)


def test_alloc_dropped_while_registered_stays_until_the_engine_closes(provider):
    """Goal: the region keeps it, as it keeps every other owner of memory."""
    engine = open_engine(provider)
    region = engine.register(wimm.alloc(1 << 16))
    gc.collect()
    address = region.address
    remote = engine.open_remote(region.desc)
    source = engine.register(b"x" * 100, local_only=True)
    arrived = engine.expect(1, 1, deadline=WAIT)
    engine.write(source, remote, imm=1, deadline=WAIT)
    arrived.result(WAIT)
    engine.close()
    del region, remote
    gc.collect()
    assert freed(address)


def test_alloc_of_the_parent_is_left_alone_by_a_fork(run_python):
    """Goal: a child that leaves, collecting what the parent allocated, says nothing; the parent's
    memory stays."""
    done = run_python("""import gc, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
memory = wimm.alloc(1 << 16)
memory[0] = 3
child = os.fork()
if child == 0:
    memory.release()
    del memory
    gc.collect()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert memory[0] == 3
""")
    assert done.stderr == ""


def test_alloc_is_written_to_over_host():
    """Goal: the provider that it is for takes it."""
    with wimm.Engine("host") as a, wimm.Engine("host") as b, wimm.alloc(1 << 20) as memory:
        with b.register(memory) as region:
            remote = a.open_remote(region.desc)
            source = a.register(bytes([9]) * (1 << 20), local_only=True)
            arrived = b.expect(1, 1, deadline=WAIT)
            a.write(source, remote, imm=1, deadline=WAIT)
            arrived.result(WAIT)
            assert bytes(memory) == bytes([9]) * (1 << 20)
