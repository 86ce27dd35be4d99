# SPDX-License-Identifier: Apache-2.0
"""Peers: fencing one, the key of a job, what is known of one; and what of C has no Python."""
import ctypes
import queue
import re

import pytest
import wimm
from conftest import ROOT, open_engine
from wimm import _abi, _calls
from wimm.operation import Operation

WAIT = 30

WORDS_OF_C = "kernels of C programs; Python's take the address of a watcher in the host's memory"
KEPT_LISTS = "the sender of wimm.kv keeps its lists; Python's own calls cost more than a copy"
# Functions of the library that the package does not call, each with the reason.
NOT_CALLED = {
    "wimm_alloc_gpu_watcher": WORDS_OF_C,
    "wimm_alloc_gpu_word": WORDS_OF_C,
    "wimm_flag_load": "operations are futures; nothing is waited for by a flag",
    "wimm_free_gpu_word": WORDS_OF_C,
    "wimm_gpu_word_store": WORDS_OF_C,
    "wimm_mr_len_bytes": "Region.length is what was registered",
    "wimm_page_list_close": KEPT_LISTS,
    "wimm_page_list_open": KEPT_LISTS,
    "wimm_status_name": "Status has the names, generated from the same table",
    "wimm_status_scope": "so has Error.scope",
    "wimm_status_text": "so has Error.text",
    "wimm_uvm_watcher_gpu_word": WORDS_OF_C,
}


def code_of(call):
    with pytest.raises(wimm.Error) as caught:
        call()
    return caught.value.code


def test_package_reaches_every_function_of_the_library():
    """Goal: what C offers is in Python as well, or has its reason above."""
    exported = set(re.findall(r"^\t(wimm_\w+);$", (ROOT / "src" / "libwimm.map").read_text(), re.M))
    files = [path for path in (ROOT / "python" / "wimm").glob("*.py") if path.name != "_abi.py"]
    named = set(re.findall(r"\bwimm_\w+", "".join(path.read_text() for path in files)))
    assert len(exported) > 50 and exported - named == set(NOT_CALLED)


@pytest.mark.parametrize("now, answers", [
    (False, {wimm.FenceAnswer.CONFIRMED}),
    (True, {wimm.FenceAnswer.FENCED}),
], ids=["asked", "at once"])
def test_fence_of_a_live_peer_says_how_its_memory_came_back(pair, now, answers):
    """Goal: the two good answers are readable; afterwards the session is over on both sides."""
    arrived = pair.b.expect(1, 1, deadline=WAIT)
    pair.a.write(pair.src_region, pair.remote, imm=1, deadline=WAIT)
    peer = arrived.result(WAIT) and pair.b.add_peer(pair.a.address)
    fence = pair.b.fence_peer(peer, now=now, deadline=WAIT)
    assert fence.kind == "fence"
    fence.result(2 * WAIT)
    assert fence.fence in answers
    assert not pair.b.peer_info(peer).up


def test_fence_answer_quarantined_is_an_error_that_says_so():
    """Goal: the third answer is not taken for memory that came back."""
    with open_engine("sim") as engine:
        operation = Operation(engine, "fence", ())
        assert operation.fence == wimm.FenceAnswer.NONE
        done = _abi.wimm_done(status=wimm.Status.E_QUARANTINED, text=b"keep out",
                              fence=wimm.FenceAnswer.QUARANTINED)
        _calls.entry_points().done(operation._number, ctypes.byref(done))
        with pytest.raises(wimm.Error, match="keep out") as caught:
            operation.result(0)
        assert caught.value.code == wimm.Status.E_QUARANTINED
        assert operation.fence is wimm.FenceAnswer.QUARANTINED


def test_fence_of_nobody_is_refused(provider):
    """Goal: a peer that never was has nothing to give back."""
    with open_engine(provider) as engine:
        assert code_of(lambda: engine.fence_peer(12345)) == wimm.Status.E_NOT_FOUND
        with pytest.raises(ValueError):
            engine.fence_peer(-1)


def needs_keys(call):
    """What call() returns, skipped where the library was built without keys."""
    try:
        return call()
    except wimm.Error as problem:
        if problem.code == wimm.Status.E_UNSUPPORTED:
            pytest.skip("built without libsodium")
        raise


def test_job_key_opens_sessions_to_those_who_have_it(provider):
    """Goal: the same key, of any buffer, writes; another one or none gets no session."""
    key = bytearray(b"sixteen bytes or more")
    with needs_keys(lambda: open_engine(provider, job_key=key)) as a, \
            open_engine(provider, job_key=bytes(key)) as b:
        target = bytearray(4)
        desc = b.register(target).desc
        key[:] = bytes(len(key))  # copied: what becomes of it does not matter
        arrived = b.expect(1, 1, deadline=WAIT)
        a.write(a.register(b"okay", local_only=True), a.open_remote(desc), imm=1, deadline=WAIT)
        arrived.result(WAIT)
        assert target == b"okay"
        for other in (b"quite another key of a job", None):
            events = queue.Queue()
            with open_engine(provider, job_key=other, on_peer_event=events.put) as stranger:
                source = stranger.register(b"evil", local_only=True)
                remote = stranger.open_remote(desc)
                with pytest.raises(wimm.Error):  # at once, or when it is known
                    stranger.write(source, remote, deadline=WAIT).result(2 * WAIT)
                assert events.get(timeout=WAIT).kind == wimm.PeerEventKind.DOWN
                found = stranger.peer_error(remote.peer)
                assert found.code == wimm.Status.E_PEER_REFUSED and "job key" in found.text
        assert target == b"okay"


@pytest.mark.parametrize("key, problem", [(b"", wimm.Error), (b"too short", wimm.Error),
                                          (bytes(4097), wimm.Error), ("x" * 20, TypeError)])
def test_job_key_that_is_none_is_refused(key, problem):
    """Goal: an empty or short key never means "no key"."""
    with pytest.raises(problem) as caught:
        needs_keys(lambda: wimm.Engine("sim", job_key=key))
    if problem is wimm.Error:
        assert caught.value.code == wimm.Status.E_INVAL


def test_peer_info_says_who_drives_the_peer():
    """Goal: an engine without threads is seen as one from the other side."""
    with open_engine("sim") as a, open_engine("sim", caller_driven=True) as b:
        remote = a.open_remote(b.register(bytearray(10)).desc)
        source = a.register(bytearray(10))
        arrived = b.expect(1, 1, deadline=WAIT)
        a.write(source, remote, imm=1, deadline=WAIT)
        arrived.result(WAIT)
        assert a.peer_info(remote.peer).progress is wimm.ProgressMode.CALLER
        back = b.add_peer(a.address)
        assert b.peer_info(back).progress is wimm.ProgressMode.THREADS


def test_peer_timeout_of_one_peer_is_given_in_seconds(pair):
    """Goal: what is no time is refused by the package, what is too long by the library."""
    for wrong in 0, -1.0:
        with pytest.raises(ValueError, match="peer_timeout"):
            pair.a.add_peer(pair.b.address, peer_timeout=wrong)
    assert code_of(lambda: pair.a.add_peer(pair.b.address, peer_timeout=5e6)) == \
        wimm.Status.E_INVAL
    peer = pair.a.add_peer(pair.b.address, peer_timeout=90.5)
    assert pair.a.add_peer(pair.b.address) == peer
    pair.a.write(pair.src_region, pair.remote, imm=1, deadline=WAIT).result(WAIT)
