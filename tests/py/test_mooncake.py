# SPDX-License-Identifier: Apache-2.0
"""wimm.compat.mooncake: the ten calls, between two engines and two processes."""
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import LIBRARY, ROOT

from wimm.compat import mooncake

OTHER = """
import sys
import numpy as np
import wimm
from wimm.compat import mooncake

wimm.use_library(sys.argv[1])
mooncake.install()
from mooncake.engine import TransferEngine

engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
memory = np.zeros(4096, np.uint8)
assert engine.register_memory(memory.ctypes.data, memory.nbytes) == 0
print(engine.get_rpc_port(), memory.ctypes.data, flush=True)
sys.stdin.readline()
print(memory.tobytes().hex(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def engine():
    made = mooncake.TransferEngine()
    assert made.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    yield made
    made.close()


def test_mooncake_writes_are_readable_in_another_process_when_they_return(engine):
    """Goal: single and batched writes by plain addresses; what they return says: it is there."""
    other = subprocess.Popen([sys.executable, "-c", OTHER, str(LIBRARY)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    try:
        port, theirs = map(int, other.stdout.readline().split())
        session = f"127.0.0.1:{port}"
        ours = np.arange(4096, dtype=np.uint32).astype(np.uint8)
        at = ours.ctypes.data
        assert engine.register_memory(at, 4096) == 0
        assert engine.send_probe(session) == 0
        assert engine.transfer_sync_write(session, at + 7, theirs + 100, 50) == 0
        assert engine.batch_transfer_sync_write(session, [at, at + 1000], [theirs + 200, theirs],
                                                [64, 32]) == 0
        want = np.zeros(4096, np.uint8)
        want[100:150], want[200:264], want[:32] = ours[7:57], ours[:64], ours[1000:1032]
        other.stdin.write("\n")
        other.stdin.flush()
        assert bytes.fromhex(other.stdout.readline()) == want.tobytes()
        # Outside on either side, by one byte: nothing is written, and the next one works.
        assert engine.transfer_sync_write(session, at + 4090, theirs, 7) < 0
        assert engine.transfer_sync_write(session, at, theirs + 4090, 7) < 0
        assert engine.transfer_sync_write(session, at, theirs, 4096) == 0
    finally:
        other.kill()
        other.communicate()
    assert engine.send_probe(session) < 0
    assert engine.transfer_sync_write(session, at, theirs, 8) < 0


def test_mooncake_memory_comes_and_goes(engine):
    """Goal: batches are taken whole or not at all; what was given back is no destination."""
    peer = mooncake.TransferEngine()
    assert peer.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    session = f"127.0.0.1:{peer.get_rpc_port()}"
    src, one, two = (np.full(256, value, np.uint8) for value in (9, 1, 2))
    assert engine.batch_register_memory([src.ctypes.data], [256]) == 0
    at = [one.ctypes.data, two.ctypes.data]
    assert peer.batch_register_memory([at[0], at[0]], [256, 256]) < 0
    assert peer.batch_register_memory(at, [256]) < 0
    assert engine.transfer_sync_write(session, src.ctypes.data, at[0], 256) < 0
    assert peer.batch_register_memory(at, [256, 256]) == 0
    assert engine.batch_transfer_sync_write(session, [src.ctypes.data] * 2, at, [256, 256]) == 0
    assert (one == 9).all() and (two == 9).all()
    assert peer.batch_unregister_memory(at) == 0
    assert peer.unregister_memory(at[0]) < 0
    one[:] = 3
    assert engine.transfer_sync_write(session, src.ctypes.data, at[0], 256) < 0
    assert (one == 3).all()
    assert peer.register_memory(at[0], 256) == 0  # registered anew: another descriptor
    assert engine.transfer_sync_write(session, src.ctypes.data, at[0], 256) == 0
    assert (one == 9).all()
    assert peer.get_engine() is not None
    peer.close()


@pytest.mark.parametrize("arguments", [
    ("127.0.0.1", "etcd://somewhere", "tcp", ""),
    ("127.0.0.1", "P2PHANDSHAKE", "carrier pigeon", ""),
    ("127.0.0.1", "P2PHANDSHAKE", "tcp", "no-such-nic"),
])
def test_mooncake_initialize_refuses_with_a_negative_number(arguments):
    made = mooncake.TransferEngine()
    assert made.initialize(*arguments) < 0
    assert made.get_rpc_port() == 0 and made.get_engine() is None
    assert made.register_memory(4096, 10) < 0
    assert made.transfer_sync_write("127.0.0.1:1", 0, 0, 1) < 0
    assert made.transfer_sync_write("nonsense", 0, 0, 1) < 0
