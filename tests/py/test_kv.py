# SPDX-License-Identifier: Apache-2.0
"""wimm.kv: what both sides agree on, and whole requests between two engines."""
import threading
import time

import numpy as np
import pytest
from conftest import open_engine

import wimm
from wimm import kv

LAYERS, HEADS, DIM, TOKENS, PAGES = 3, 2, 4, 4, 8
TIMEOUT = 20


def layout(**changes):
    fields = dict(layers=LAYERS, kv_heads=HEADS, head_dim=DIM, elem_bytes=4, page_tokens=TOKENS,
                  pages=PAGES)
    return kv.Layout(**{**fields, **changes})


class Sides:
    """A prefill and a decode cache of one process; requests travel as messages."""

    def __init__(self, provider, **options):
        self.prefill, self.decode = open_engine(provider), open_engine(provider)
        shape = (LAYERS, PAGES, 2, HEADS, TOKENS, DIM)
        self.src = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        self.dst = np.full(shape, -1, np.float32)
        self.requests = []
        self.came = threading.Event()
        self.out = kv.Cache(self.prefill, self.prefill.register(self.src, local_only=True),
                            layout(), tail_room=64, on_request=self._on_request)
        self.into = kv.Cache(self.decode, self.decode.register(self.dst), layout(), imm=500,
                             tail_room=64, **options)
        self.peer = self.decode.add_peer(self.prefill.address)

    def _on_request(self, request):
        self.requests.append(request)
        self.came.set()

    def ask(self, receiver):
        """Send a receiver's request as a message and return what the other side got."""
        self.came.clear()
        self.decode.send(self.peer, receiver.request, deadline=TIMEOUT).result(TIMEOUT)
        assert self.came.wait(TIMEOUT)
        return self.requests[-1]

    def close(self):
        self.prefill.close()
        self.decode.close()


@pytest.fixture
def sides(provider):
    made = Sides(provider)
    yield made
    made.close()


def test_kv_request_by_message_delivers_pages_and_tail(sides):
    """Goal: the whole way of a prompt: request, bumps, tail, count; bytes where they belong."""
    ours, theirs = np.array([6, 1, 3], np.uint32), [0, 7, 2]
    receiver = sides.into.receive(10, ours, note=b"which prompt", deadline=TIMEOUT,
                                  peers=[sides.peer])
    request = sides.ask(receiver)
    assert (request.tokens, request.page_count, request.tail) == (10, 3, True)
    assert (request.note, request.imm) == (b"which prompt", 500)
    assert request.decode == sides.into.layout and request.peer
    sender = sides.out.send(request, theirs, chunk_tokens=8)
    assert sender.steps == 2 * LAYERS
    assert receiver.count == LAYERS * 2 * 3 + 1
    for value in range(1, sender.steps + 1):
        assert sender.bump() == value
    sender.tail(42, b"the rest")
    ended = receiver.result(TIMEOUT)
    assert (ended.first_token, ended.tail, ended.immediates) == (42, b"the rest", 19)
    assert np.array_equal(sides.dst[:, ours[:2]], sides.src[:, theirs[:2]])
    assert np.array_equal(sides.dst[:, ours[2], :, :, :2], sides.src[:, theirs[2], :, :, :2])
    assert np.all(sides.dst[:, ours[2], :, :, 2:] == -1)  # beyond the prompt's end
    rest = [page for page in range(PAGES) if page not in ours]
    assert np.all(sides.dst[:, rest] == -1)
    assert sender.result(TIMEOUT).immediates == 19
    assert receiver.done() and sender.done()
    receiver.close()
    sender.close()


def test_kv_shared_word_serves_two_requests(sides):
    """Goal: two senders that follow one word, which counts on; the second begins later."""
    with sides.out.watch() as watch:
        assert watch.add(4) == 4 and watch.address
        first = sides.into.receive(4, [0], tail=False)
        second = sides.into.receive(4, [1], tail=False)
        one = sides.out.send(first.request, [5], watch=watch)
        two = sides.out.send(second.request, [6], watch=watch, watch_value=5)
        watch.add(3)
        first.result(TIMEOUT)
        assert not second.done()
        assert two.bump() == 8
        second.result(TIMEOUT)
        assert one.result(TIMEOUT).first_token == 0
    assert np.array_equal(sides.dst[:, [0, 1]], sides.src[:, [5, 6]])


def test_kv_words_only_grow(sides):
    """Goal: steps that C would take for a word near 2^64, and so for all layers, are refused."""
    with sides.out.watch() as watch:
        receiver = sides.into.receive(4, [0], tail=False)
        sender = sides.out.send(receiver.request, [5], watch=watch)
        for wrong in (-1, 1 << 64):
            with pytest.raises(ValueError):
                sender.bump(wrong)
            with pytest.raises(ValueError):
                watch.add(wrong)
        assert watch.add(0) == 0 and not receiver.done()


def test_kv_calls_in_the_child_of_a_fork_are_refused(run_python):
    """Goal: the words are not there in a child: it is told so instead of crashing."""
    out = run_python("""
import os
from wimm import kv
engine = wimm.Engine("tcp", "127.0.0.1:0")
layout = kv.Layout(layers=1, kv_heads=1, head_dim=4, elem_bytes=4, page_tokens=4, pages=2)
cache = kv.Cache(engine, engine.register(bytearray(layout.extent)), layout)
receiver = cache.receive(4, [0], tail=False)
watch = cache.watch()
sender = cache.send(receiver.request, [1])
if os.fork() == 0:
    for call in (sender.bump, watch.add, lambda: watch.address):
        try:
            call()
        except wimm.Error as problem:
            print(problem.code.name, flush=True)
    os._exit(0)
assert os.wait()[1] == 0
engine.close()
""").stdout
    assert out.split() == ["E_FORKED"] * 3


def test_kv_failures_name_their_cause_on_both_sides(sides):
    """Goal: what the prefill side refuses or breaks off raises here in its words."""
    receiver = sides.into.receive(4, [0], tail=False, deadline=TIMEOUT)
    with pytest.raises(wimm.Error) as refused:
        sides.out.send(receiver.request, [0, 1])
    assert "2 pages, the request has 1" in str(refused.value)
    with pytest.raises(wimm.Error) as told:
        receiver.result(TIMEOUT)
    assert told.value.code == wimm.Status.E_INVAL and "2 pages" in str(told.value)
    receiver = sides.into.receive(4, [0], deadline=TIMEOUT)
    sender = sides.out.send(receiver.request, [0])
    sender.fail("out of memory")
    for side in (receiver, sender):
        with pytest.raises(wimm.Error) as told:
            side.result(TIMEOUT)
        assert "out of memory" in str(told.value)
    sender.fail("again")  # it has ended: nothing to say
    with pytest.raises(wimm.Error):
        sender.tail(1)


def test_kv_cancelled_receiver_comes_back_when_it_is_quiet(sides):
    """Goal: close() of an open receiver cancels it, tells the sender, and returns when the pages
    are its own again."""
    receiver = sides.into.receive(8, [0, 1], peers=[sides.peer])
    sender = sides.out.send(receiver.request, [0, 1])
    sender.bump()
    receiver.close()
    with pytest.raises(wimm.Cancelled):
        receiver.result(TIMEOUT)
    with pytest.raises(wimm.Cancelled):
        sender.result(TIMEOUT)
    assert receiver.closed
    with pytest.raises(wimm.Error):
        sides.into.receive(8, [0])
    with pytest.raises(wimm.Error) as outside:
        sides.into.receive(8, [0, PAGES])
    assert outside.value.code == wimm.Status.E_RANGE


def test_kv_deadline_ends_a_request_nobody_serves(sides):
    """Goal: a lost request is a time-out."""
    receiver = sides.into.receive(4, [0], deadline=0.02)
    with pytest.raises(wimm.Error) as late:
        receiver.result(TIMEOUT)
    assert late.value.code == wimm.Status.E_TIMEOUT


def test_kv_full_prefix_hit_still_ends(sides):
    """Goal: nothing to send: both sides hear "finished", the tail comes."""
    receiver = sides.into.receive(8, [], first_token=8)
    sender = sides.out.send(receiver.request, [], computed_token=7)
    sender.tail(9)
    assert receiver.result(TIMEOUT).first_token == 9
    assert receiver.result().tail == b""
    sender.result(TIMEOUT)


def test_kv_engine_closed_in_mid_request_ends_everything(provider):
    """Goal: closing the engines with open requests settles each; nothing hangs."""
    sides = Sides(provider)
    receiver = sides.into.receive(8, [0, 1])
    sender = sides.out.send(receiver.request, [0, 1])
    sender.bump()
    sides.close()
    for side in (receiver, sender):
        with pytest.raises(wimm.Error):
            side.result(TIMEOUT)
    with pytest.raises(wimm.Error):
        sender.bump()


def test_kv_own_pool_of_messages(provider):
    """Goal: an application with a pool of its own hands the cache's messages over."""
    sides = Sides(provider, messages=0)
    taken = []
    sides.decode.recvs(lambda peer, data: taken.append(sides.into.take_message(peer, data)))
    receiver = sides.into.receive(4, [0], deadline=TIMEOUT)
    sides.out.send(receiver.request, [0]).fail("broken")
    with pytest.raises(wimm.Error, match="broken"):
        receiver.result(TIMEOUT)
    assert taken == [True]
    assert sides.into.take_message(1, b"something else") is False
    sides.close()


def test_kv_agreement_is_computed_without_an_engine():
    """Goal: layouts, maps and counts are plain functions: the row kv-a and a TP 4 to 1 map."""
    llama = dict(layers=32, kv_heads=8, head_dim=128, elem_bytes=2, page_tokens=16, pages=63)
    prefill, decode = kv.Layout(**llama, tp=4), kv.Layout(**llama, tp=4, tp_rank=3)
    assert kv.count(prefill, decode, 63) == 4032
    assert kv.count(prefill, decode, 63, tail=True) == 4033
    assert kv.count(prefill, decode, 63, tail=True, src_rank=0) == 0
    whole = kv.Layout(**llama)
    assert [(s.src_rank, s.dst_head, s.heads) for s in kv.segments(prefill, whole)] == [
        (0, 0, 2), (1, 2, 2), (2, 4, 2), (3, 6, 2)]
    assert whole.packed().strides == (63 * 65536, 65536, 32768, 4096, 256)
    assert whole.extent == 32 * 63 * 65536
    assert whole.hash == prefill.hash != layout().hash
    kv.compare(prefill, whole)


@pytest.mark.parametrize("changes, words", [
    (dict(layers=4), "layers is 3 at prefill, 4 at decode"),
    (dict(elem_bytes=2), "elem_bytes is 4 at prefill, 2 at decode"),
    (dict(tp=3), "tp is 1 at prefill, 3 at decode"),
])
def test_case_75_first_differing_field_is_named(changes, words):
    """Goal: impossible pairs are refused by name of the field, with both values."""
    with pytest.raises(wimm.Error) as refused:
        kv.compare(layout(), layout(**changes))
    assert refused.value.code == wimm.Status.E_MISMATCH and words in str(refused.value)


def test_case_71_pages_of_another_size_are_cut_into_units(provider):
    """Goal: pages of 4 tokens into pages of 8: the tokens of the prompt, no other byte; one
    immediate a group where the decode side asks for groups."""
    prefill, decode = open_engine(provider), open_engine(provider)
    small, large = layout(), layout(page_tokens=8, pages=4)
    src = np.arange(LAYERS * PAGES * 2 * HEADS * 4 * DIM, dtype=np.float32)
    src = src.reshape(LAYERS, PAGES, 2, HEADS, 4, DIM)
    dst = np.full((LAYERS, 4, 2, HEADS, 8, DIM), -1, np.float32)
    out = kv.Cache(prefill, prefill.register(src, local_only=True), small)
    into = kv.Cache(decode, decode.register(dst), large)
    assert kv.unit_tokens(small, into.layout) == 4
    for group, units in ((1, 4), (2, 3)):
        dst[:] = -1
        receiver = into.receive(14, [3, 1], prefill=small, tail=False, group_units=group,
                                deadline=TIMEOUT)
        assert receiver.count == kv.count(small, into.layout, units)
        request = kv.Request.parse(receiver.request)
        assert request.group_units == group
        sender = out.send(request, [7, 0, 5, 2])
        for _ in range(sender.steps):
            sender.bump()
        receiver.result(TIMEOUT)
        for unit, page in enumerate([7, 0, 5, 2]):
            at = dst[:, [3, 1][unit // 2], :, :, unit % 2 * 4:unit % 2 * 4 + 4]
            tokens = 4 if unit < 3 else 2
            assert np.array_equal(at[..., :tokens, :], src[:, page, :, :, :tokens])
            assert np.all(at[..., tokens:, :] == -1)
        assert np.all(dst[:, [0, 2]] == -1)
        receiver.close()
    prefill.close()
    decode.close()


def test_kv_request_that_is_none_is_refused():
    """Goal: bytes from a channel are input."""
    for data in (b"", b"WKV1", b"x" * 500):
        with pytest.raises(wimm.Error):
            kv.Request.parse(data)


def test_kv_bad_callback_of_a_request_is_reported(provider, monkeypatch):
    """Goal: an exception in on_request reaches sys.unraisablehook and nothing else suffers."""
    seen = threading.Event()
    monkeypatch.setattr("sys.unraisablehook", lambda args: seen.set())
    sides = Sides(provider)

    def broken(request):
        sides.came.set()
        raise RuntimeError("no")

    sides._on_request = broken
    other = kv.Cache(sides.prefill, sides.prefill.register(sides.src, local_only=True), layout(),
                     imm=5000, messages=0, on_request=broken)
    receiver = sides.into.receive(4, [0], deadline=TIMEOUT)
    assert other.take_message(1, receiver.request) is True
    assert seen.wait(TIMEOUT)
    sides.close()


def test_kv_told_chunks_and_a_receiver_given_up(sides):
    """Goal: pages that come with their chunks arrive; give_up() settles when nothing writes."""
    receiver = sides.into.receive(12, [6, 1, 3], tail=False, deadline=TIMEOUT)
    with sides.out.send(receiver.request) as sender:
        sender.chunk(3, [0])
        sender.bump(LAYERS)
        sender.chunk(12, [7, 2])
        assert sender.steps == 2 * LAYERS
        with pytest.raises(wimm.Error) as refused:
            sender.chunk(12)
        assert "told so far are 12 of 12" in str(refused.value)
        sender.bump(LAYERS)
        receiver.result(TIMEOUT)
        sender.result(TIMEOUT)
    assert np.array_equal(sides.dst[:, [6, 1, 3]], sides.src[:, [0, 7, 2]])
    receiver.close()
    assert receiver.missing() == []
    receiver = sides.into.receive(4, [0], tail=False, peers=[sides.peer])
    receiver.give_up().result(TIMEOUT)
    assert receiver.give_up() is None
    assert receiver.missing() == [0]


def test_kv_missing_pages_of_a_failed_request(sides):
    """Goal: what the chunks before a failure have written is not missing, once nothing writes."""
    receiver = sides.into.receive(12, [6, 1, 3], tail=False, peers=[sides.peer], deadline=TIMEOUT)
    before = sides.decode.stats().msgs_received
    with sides.out.send(receiver.request) as sender:
        sender.chunk(5, [0, 7])
        sender.bump(LAYERS)
        end = time.monotonic() + TIMEOUT
        while sides.decode.stats().msgs_received == before:  # the word that the first page is there
            assert time.monotonic() < end
        sender.chunk(12, [2])
        sender.bump(1)
        sender.fail("no kernel")
        with pytest.raises(wimm.Error, match="no kernel"):
            receiver.result(TIMEOUT)
        assert receiver.missing() == [0, 1, 2]
        receiver.give_up().result(TIMEOUT)
    assert receiver.missing() == [1, 2]
    assert np.array_equal(sides.dst[:, 6], sides.src[:, 0])
