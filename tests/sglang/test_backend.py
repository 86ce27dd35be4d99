# SPDX-License-Identifier: Apache-2.0
"""wimm.sglang: the published base classes of a disaggregation backend, filled in."""
import time
import types

import numpy as np
import pytest
from conftest import LIBRARY

LAYERS, PAGES, PAGE_BYTES, AUX_ROWS, AUX_BYTES = 3, 40, 96, 8, 64
WAIT = 60


class Rank:
    """One rank's pool and manager. SGLang's pool: a K buffer a layer, then a V buffer a layer."""

    def __init__(self, backend, mode, port, page_size=16, pages=PAGES):
        self.kv = [np.zeros((pages, PAGE_BYTES), np.uint8) for _ in range(2 * LAYERS)]
        self.aux = [np.zeros((AUX_ROWS, AUX_BYTES), np.uint8)]
        args = types.SimpleNamespace(
            engine_rank=0, gpu_id=-1, page_size=page_size, state_data_ptrs=[],
            kv_data_ptrs=[a.ctypes.data for a in self.kv], kv_data_lens=[a.nbytes for a in self.kv],
            kv_item_lens=[PAGE_BYTES] * len(self.kv),
            aux_data_ptrs=[a.ctypes.data for a in self.aux],
            aux_data_lens=[a.nbytes for a in self.aux], aux_item_lens=[AUX_BYTES])
        server = types.SimpleNamespace(host="127.0.0.1", dist_init_addr=None,
                                       disaggregation_bootstrap_port=port)
        self.manager = backend.KVManager(args, mode, server, provider="tcp", nics="127.0.0.1:0")

    def fill(self, seed):
        random = np.random.default_rng(seed)
        for array in self.kv + self.aux:
            array[:] = random.integers(1, 256, array.shape, np.uint8)


@pytest.fixture
def backend(sglang):
    import wimm

    wimm.use_library(LIBRARY)
    from wimm.sglang import backend as module

    return module


@pytest.fixture
def ranks(backend, request):
    server = backend.KVBootstrapServer("127.0.0.1", 0)
    made = [Rank(backend, mode, server.port, **getattr(request, "param", {}))
            for mode in ("prefill", "decode")]
    yield (*made, f"127.0.0.1:{server.port}")
    for rank in made:
        rank.manager.close()
    server.close()


def poll_until(one, *states):
    end = time.monotonic() + WAIT
    while one.poll() not in states:
        assert time.monotonic() < end, f"state {one.poll()}, {one._problem}"
    return one.poll()


def open_both(backend, prefill, decode, bootstrap, room, pages, aux=None):
    sender = backend.KVSender(prefill.manager, bootstrap, room)
    receiver = backend.KVReceiver(decode.manager, bootstrap, room)
    sender.init(len(pages), aux)
    assert sender.poll() == backend.KVPoll.Bootstrapping
    receiver.init(0)
    return sender, receiver


def test_sglang_backend_fills_in_every_abstract_method(backend):
    """Goal: the four classes are the published ones' children, with nothing left abstract."""
    for name in ("Manager", "Sender", "Receiver", "BootstrapServer"):
        ours = getattr(backend, "KV" + name)
        assert issubclass(ours, getattr(backend, "BaseKV" + name))
        assert not ours.__abstractmethods__


def test_sglang_request_in_chunks_delivers_pages_and_aux(backend, ranks):
    """Goal: pages of any order in chunks, the auxiliary row behind them; both sides say success,
    and nothing but these pages was written."""
    prefill, decode, bootstrap = ranks
    prefill.fill(1)
    random = np.random.default_rng(2)
    for room in range(1, 6):
        for array in decode.kv + decode.aux:
            array[:] = 0
        count = int(random.integers(1, PAGES))
        ours, theirs = (random.permutation(PAGES)[:count].astype(np.int32) for _ in range(2))
        sender, receiver = open_both(backend, prefill, decode, bootstrap, room, theirs, aux=3)
        assert receiver.poll() == backend.KVPoll.WaitingForInput
        receiver.send_metadata(ours, aux_index=5)
        poll_until(sender, backend.KVPoll.WaitingForInput)
        for first in range(0, count, 7):
            assert receiver.poll() == backend.KVPoll.Transferring
            sender.send(theirs[first:first + 7])
        assert poll_until(receiver, backend.KVPoll.Success, backend.KVPoll.Failed) == \
            backend.KVPoll.Success
        poll_until(sender, backend.KVPoll.Success)
        assert sender.get_transfer_metric().transfer_total_bytes == count * PAGE_BYTES * 2 * LAYERS
        for got, had in zip(decode.kv, prefill.kv):
            assert np.array_equal(got[ours], had[theirs])
            assert not np.delete(got, ours, 0).any()
        assert np.array_equal(decode.aux[0][5], prefill.aux[0][3])
        assert not np.delete(decode.aux[0], 5, 0).any()
        sender.clear()
        receiver.clear()


@pytest.mark.parametrize("ranks", [{"page_size": 1, "pages": 1000}], indirect=True)
@pytest.mark.parametrize("in_a_row", (True, False))
def test_sglang_small_pages_in_a_row_share_immediates(backend, ranks, in_a_row):
    """Goal: 600 pages of one token, in chunks that fill no group: three groups a buffer where
    decode's pages lie in a row, else an immediate each; every byte is right."""
    prefill, decode, bootstrap = ranks
    prefill.fill(4)
    theirs = np.arange(300, 900, dtype=np.int32)
    ours = np.arange(100, 700, dtype=np.int32)
    if not in_a_row:
        ours = np.random.default_rng(5).permutation(ours)
    sender, receiver = open_both(backend, prefill, decode, bootstrap, 31, theirs, aux=1)
    receiver.send_metadata(ours, aux_index=2)
    poll_until(sender, backend.KVPoll.WaitingForInput)
    for first in range(0, 600, 100):
        sender.send(theirs[first:first + 100])
        assert sender.poll() != backend.KVPoll.WaitingForInput
    poll_until(receiver, backend.KVPoll.Success)
    poll_until(sender, backend.KVPoll.Success)
    # Six chunks; or two full groups and one of 88 pages; and the auxiliary row.
    assert len(sender._writes) == (3 if in_a_row else 6) * 2 * LAYERS + 1
    assert sender.get_transfer_metric().transfer_total_bytes == 600 * PAGE_BYTES * 2 * LAYERS
    for got, had in zip(decode.kv, prefill.kv):
        assert np.array_equal(got[ours], had[theirs])
        assert not np.delete(got, ours, 0).any()
    assert np.array_equal(decode.aux[0][2], prefill.aux[0][1])


def test_sglang_pools_that_differ_fail_on_both_sides(backend, ranks):
    """Goal: another page size is refused in words, here and there."""
    prefill, decode, bootstrap = ranks
    prefill.manager.args.page_size = 32
    sender, receiver = open_both(backend, prefill, decode, bootstrap, 9, [1, 2])
    receiver.send_metadata(np.array([3, 4], np.int32))
    poll_until(sender, backend.KVPoll.Failed)
    poll_until(receiver, backend.KVPoll.Failed)
    for one in (sender, receiver):
        with pytest.raises(RuntimeError, match="'page_size': 32"):
            one.failure_exception()


@pytest.mark.parametrize("by", ["prefill", "decode"])
def test_sglang_aborted_request_fails_on_both_sides_and_its_pages_come_back(backend, ranks, by):
    """Goal: an abort in mid-transfer: both fail, decode is told when its pages are its own, and the
    next request over the same pages is right."""
    prefill, decode, bootstrap = ranks
    prefill.fill(3)
    pages = np.arange(20, dtype=np.int32)
    sender, receiver = open_both(backend, prefill, decode, bootstrap, 11, pages)
    receiver.send_metadata(pages)
    poll_until(sender, backend.KVPoll.WaitingForInput)
    sender.send(pages[:10])
    (sender if by == "prefill" else receiver).abort()
    poll_until(sender, backend.KVPoll.Failed)
    poll_until(receiver, backend.KVPoll.Failed)
    with pytest.raises(RuntimeError, match="aborted by the " + by):
        receiver.failure_exception()
    end = time.monotonic() + WAIT
    while not receiver.is_abort_release_safe():
        assert time.monotonic() < end
    for array in decode.kv:
        array[:] = 0
    sender.clear()
    receiver.clear()
    sender, receiver = open_both(backend, prefill, decode, bootstrap, 12, pages)
    receiver.send_metadata(pages)
    poll_until(sender, backend.KVPoll.WaitingForInput)
    sender.send(pages + 20)
    poll_until(receiver, backend.KVPoll.Success)
    for got, had in zip(decode.kv, prefill.kv):
        assert np.array_equal(got[:20], had[20:]) and not got[20:].any()


def test_sglang_prefill_rank_that_nobody_knows_is_named(backend, ranks):
    """Goal: a decode rank without its counterpart fails at once."""
    _, decode, bootstrap = ranks
    decode.manager.args.engine_rank = 7
    receiver = backend.KVReceiver(decode.manager, bootstrap, 1)
    receiver.init(0)
    assert receiver.poll() == backend.KVPoll.Failed
    with pytest.raises(RuntimeError, match="prefill rank 7"):
        receiver.failure_exception()


def test_sglang_death_of_prefill_fails_the_request_at_once(backend, ranks):
    """Goal: with half of the pages there the prefill engine goes; decode fails, long before its
    deadline."""
    prefill, decode, bootstrap = ranks
    pages = np.arange(20, dtype=np.int32)
    sender, receiver = open_both(backend, prefill, decode, bootstrap, 21, pages)
    receiver.send_metadata(pages)
    poll_until(sender, backend.KVPoll.WaitingForInput)
    sender.send(pages[:10])
    prefill.manager.close()
    poll_until(receiver, backend.KVPoll.Failed)
    with pytest.raises(RuntimeError, match="E_PEER_LOST|E_CLOSED|closed"):
        receiver.failure_exception()
