# SPDX-License-Identifier: Apache-2.0
"""Two processes over tcp on 127.0.0.1: what one process cannot show."""
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import wimm
from conftest import LIBRARY, ROOT, open_engine
from wimm import rendezvous

WAIT = 20
PRELUDE = """
import sys, threading
import wimm
library, folder = sys.argv[1:]
wimm.use_library(library)
engine = wimm.Engine("tcp", "127.0.0.1:0")
meeting = wimm.rendezvous.Rendezvous(wimm.rendezvous.FileStore(folder), 1, 2, timeout=20)
"""


@pytest.fixture
def other(tmp_path):
    """Start another process, rank 1 of a rendezvous whose rank 0 is returned with it."""
    started = []

    def start(code):
        folder = str(tmp_path / f"meeting{len(started)}")
        process = subprocess.Popen([sys.executable, "-c", PRELUDE + code, str(LIBRARY), folder],
                                   env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
                                   stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process, rendezvous.Rendezvous(rendezvous.FileStore(folder), 0, 2, timeout=WAIT)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended_well(process):
    _, text = process.communicate(timeout=WAIT)
    assert process.returncode == 0 and not text, text


def test_processes_write_pages_to_each_other(other):
    """Goal: pages, immediates and counters are right on both sides of a process boundary."""
    process, meeting = other("""
memory = bytearray(64 * 100)
region = engine.register(memory)
expected = engine.expect(5, 100, deadline=20)
theirs = engine.open_remote(meeting.exchange(region.desc)[0])
expected.result(20)
for page in range(100):
    assert memory[64 * page:64 * page + 64] == bytes([99 - page]) * 64, page
engine.write_pages(region, range(100), theirs, range(99, -1, -1), page_bytes=64, imm=6,
                   deadline=20).result(20)
meeting.barrier()
engine.close()
""")
    values = np.repeat(np.arange(100, dtype=np.uint8), 64)
    target = np.zeros_like(values)
    with open_engine("tcp") as engine:
        source = engine.register(values, local_only=True)
        expected = engine.expect(6, 100, deadline=WAIT)
        theirs = engine.open_remote(meeting.exchange(engine.register(target).desc)[1])
        done = engine.write_pages(source, np.arange(100, dtype=np.uint32), theirs,
                                  np.arange(99, -1, -1, dtype=np.uint32), page_bytes=64, imm=5,
                                  deadline=WAIT).result(WAIT)
        assert done.bytes == 6400
        expected.result(WAIT)
        assert (target == values).all()
        assert engine.stats().imms_received == 100
        meeting.barrier()
    ended_well(process)


def test_processes_talk_in_messages(other):
    """Goal: a request and its answer, to the peer that the request came from."""
    process, meeting = other("""
done = threading.Event()
def answer(peer, data):
    engine.send(peer, data[::-1], deadline=20).add_done_callback(lambda _: done.set())
receiver = engine.recvs(answer, count=2, length=100)
meeting.exchange(engine.address)
assert done.wait(20)
meeting.barrier()
engine.close()
""")
    answers, came = [], threading.Event()
    with open_engine("tcp") as engine:
        with engine.recvs(lambda peer, data: (answers.append((peer, data)), came.set())):
            peer = engine.add_peer(meeting.exchange(engine.address)[1])
            engine.send(peer, b"stressed", deadline=WAIT).result(WAIT)
            assert came.wait(WAIT)
        meeting.barrier()
    assert answers == [(peer, b"desserts")]
    ended_well(process)


def test_process_killed_fails_what_it_owes_and_names_it(other):
    """Goal: a dead peer ends what waits for it, with its number, and is reported down."""
    process, meeting = other("""
region = engine.register(bytearray(100))
theirs = engine.open_remote(meeting.exchange(region.desc)[0])
engine.write(region, theirs, imm=1, confirmed=True, deadline=20).result(20)
meeting.barrier()
threading.Event().wait()
""")
    down, events = threading.Event(), []

    def on_event(event):
        events.append(event)
        if event.kind == wimm.PeerEventKind.DOWN:
            down.set()

    with open_engine("tcp", on_peer_event=on_event) as engine:
        region = engine.register(bytearray(100))
        theirs = engine.open_remote(meeting.exchange(region.desc)[1])
        expected = engine.expect(1, 3, owes={theirs.peer: 2})
        meeting.barrier()
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(wimm.Error) as caught:
            expected.result(WAIT)
        assert caught.value.code == wimm.Status.E_PEER_LOST
        assert caught.value.peer == theirs.peer and caught.value.scope == wimm.Scope.PEER
        assert down.wait(WAIT) and events[-1].peer == theirs.peer
        with pytest.raises(wimm.Error) as caught:
            engine.write(region, theirs, deadline=WAIT).result(WAIT)
        assert caught.value.scope in (wimm.Scope.PEER, wimm.Scope.OP)


def test_process_exit_without_close_is_a_goodbye(other):
    """Goal: a program that just ends says goodbye to its peers, because exit closes its engines."""
    process, meeting = other("""
theirs = meeting.exchange(engine.register(bytearray(100)).desc)[0]
engine.open_remote(theirs)
meeting.barrier()
""")
    events, down = [], threading.Event()

    def on_event(event):
        if event.kind == wimm.PeerEventKind.DOWN:
            events.append(event)
            down.set()

    with open_engine("tcp", on_peer_event=on_event) as engine:
        region = engine.register(bytearray(100))
        remote = engine.open_remote(meeting.exchange(region.desc)[1])
        engine.write(region, remote, imm=99, confirmed=True, deadline=WAIT).result(WAIT)
        meeting.barrier()
        ended_well(process)
        assert down.wait(WAIT)
    assert events[0].peer == remote.peer


SAME_PLACE = """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
def memory_at(address, length):
    MAP_FIXED_NOREPLACE = 0x100000
    got = libc.mmap(address, length, mmap.PROT_READ | mmap.PROT_WRITE,
                    mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)
    assert got == address, ctypes.get_errno()
    return (ctypes.c_ubyte * length).from_address(address)
"""


def test_processes_with_regions_at_one_address_case_38_write_to_the_right_one(other):
    """Goal: an address of the other process is never taken for one's own, although both have one
    there, and the way goes through this machine's memory."""
    place, length = 0x6b0000000000, 1 << 20
    process, meeting = other(SAME_PLACE + f"""
memory = memory_at({place}, {length})
memory[:] = bytes([7]) * {length}
region = engine.register(memory)
expected = engine.expect(5, 1, deadline=20)
meeting.exchange(region.desc)
expected.result(20)
assert bytes(memory) == bytes([1]) * {length}
meeting.barrier()
engine.close()
""")
    names: dict = {}
    exec(SAME_PLACE, names)
    memory = names["memory_at"](place, length)
    memory[:] = bytes([1]) * length
    with open_engine("tcp") as engine:
        source = engine.register(memory)
        theirs = engine.open_remote(meeting.exchange(b"")[1])
        engine.write(source, theirs, imm=5, deadline=WAIT).result(WAIT)
        info = engine.peer_info(theirs.peer)
        assert info.up and info.same_host and info.way.startswith("this machine's memory")
        meeting.barrier()
    ended_well(process)
    assert bytes(memory) == bytes([1]) * length


def ip(*args):
    return subprocess.run(["ip", *args], check=False, capture_output=True, text=True)


@pytest.fixture
def other_network():
    """Name of a network namespace with 10.119.0.2, seen from here as across a wire."""
    name = f"wimm-{os.getpid()}"
    if os.geteuid() != 0 or ip("netns", "add", name).returncode != 0:
        pytest.skip("network namespaces need root and iproute2")
    try:
        if ip("link", "add", "wimm-here", "type", "veth", "peer", "name", "wimm-there", "netns",
              name).returncode != 0:
            pytest.skip("this kernel has no veth")
        for command in (("addr", "add", "10.119.0.1/30", "dev", "wimm-here"),
                        ("link", "set", "wimm-here", "up"),
                        ("-n", name, "addr", "add", "10.119.0.2/30", "dev", "wimm-there"),
                        ("-n", name, "link", "set", "wimm-there", "up"),
                        ("-n", name, "link", "set", "lo", "up")):
            done = ip(*command)
            assert done.returncode == 0, done.stderr
        yield name
    finally:
        ip("netns", "del", name)


def test_process_of_another_network_case_38_is_no_neighbour(other_network, tmp_path):
    """Goal: containers with a network of their own are reached over NICs, and told so at once."""
    code = PRELUDE.replace("127.0.0.1:0", "10.119.0.2:0") + """
memory = bytearray(1 << 20)
region = engine.register(memory)
expected = engine.expect(5, 1, deadline=20)
theirs = engine.open_remote(meeting.exchange(region.desc)[0])
expected.result(20)
assert memory == bytes([3]) * (1 << 20)
assert not engine.peer_info(theirs.peer).same_host
meeting.barrier()
engine.close()
"""
    process = subprocess.Popen(
        ["ip", "netns", "exec", other_network, sys.executable, "-c", code, str(LIBRARY),
         str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        stderr=subprocess.PIPE, text=True)
    try:
        meeting = rendezvous.Rendezvous(rendezvous.FileStore(str(tmp_path)), 0, 2, timeout=WAIT)
        with wimm.Engine("tcp", "10.119.0.1:0") as engine:
            memory = bytearray(bytes([3]) * (1 << 20))
            source = engine.register(memory)
            theirs = engine.open_remote(meeting.exchange(source.desc)[1])
            engine.write(source, theirs, imm=5, deadline=WAIT).result(WAIT)
            info = engine.peer_info(theirs.peer)
            assert not info.same_host and info.way.startswith("NICs: ")
            meeting.barrier()
        ended_well(process)
    finally:
        process.kill()
        process.communicate()
