# SPDX-License-Identifier: Apache-2.0
"""Everything an engine moves and counts, between two engines of one process."""
import array
import threading
import time

import numpy as np
import pytest
import wimm

WAIT = 20


def test_write_with_immediate_arrives_and_is_counted_once(pair):
    """Goal: the bytes are there when the expectation fires, and the result says what was moved."""
    expected = pair.b.expect(7, 1, deadline=WAIT)
    done = pair.a.write(pair.src_region, pair.remote, imm=7, deadline=WAIT).result(WAIT)
    assert expected.result(WAIT).imm == 7
    assert (pair.dst == pair.src).all()
    assert done.bytes == pair.src.nbytes and done.imm == 7 and done.peer == pair.remote.peer
    assert pair.b.poll_imm(7) == 0


def test_write_of_a_part_touches_nothing_else(pair):
    """Goal: offsets and lengths of both sides are honoured."""
    pair.a.write(pair.src_region, pair.remote, src_offset=10, dst_offset=100, length=50,
                 imm=1, confirmed=True, deadline=WAIT).result(WAIT)
    assert (pair.dst[100:150] == pair.src[10:60]).all()
    assert not pair.dst[:100].any() and not pair.dst[150:].any()


def test_write_without_payload_carries_the_immediate(pair):
    """Goal: every value is legal, the largest too, and a length of 0 is."""
    expected = pair.b.expect(0xFFFF_FFFF, 1, deadline=WAIT)
    pair.a.write(pair.src_region, pair.remote, length=0, imm=0xFFFF_FFFF, deadline=WAIT)
    assert expected.result(WAIT).imm == 0xFFFF_FFFF
    assert not pair.dst.any()


@pytest.mark.parametrize("make", [
    list, tuple, lambda i: np.array(i, np.uint32), lambda i: np.array(i, np.int64),
    lambda i: np.array(i, np.uint8), lambda i: array.array("I", i),
    lambda i: np.repeat(np.array(i, np.uint32), 2)[::2], iter,
], ids=["list", "tuple", "uint32", "int64", "uint8", "array", "strided", "iterator"])
@pytest.mark.parametrize("provider", ["sim"])
def test_pages_of_any_index_type_land_where_they_belong(pair, make):
    """Goal: buffers and sequences of indices mean the same."""
    expected = pair.b.expect(1, 3, deadline=WAIT)
    done = pair.a.write_pages(pair.src_region, make([3, 0, 2]), pair.remote, make([1, 5, 0]),
                              page_bytes=64, imm=1, deadline=WAIT).result(WAIT)
    expected.result(WAIT)
    assert done.bytes == 3 * 64
    for source, target in zip([3, 0, 2], [1, 5, 0]):
        assert (pair.dst[64 * target:64 * target + 64]
                == pair.src[64 * source:64 * source + 64]).all()
    assert not pair.dst[128:320].any() and not pair.dst[384:].any()


def test_pages_with_strides_and_one_immediate(pair):
    """Goal: each side has its own stride and offset, and imm_once counts one."""
    expected = pair.b.expect(2, 1, deadline=WAIT)
    pair.a.write_pages(pair.src_region, wimm.Pages([0, 1, 2], stride=1000, offset=5), pair.remote,
                       wimm.Pages([2, 1, 0], stride=300), page_bytes=100, imm=2, imm_once=True,
                       deadline=WAIT).result(WAIT)
    expected.result(WAIT)
    for page in range(3):
        start = 300 * (2 - page)
        assert (pair.dst[start:start + 100] == pair.src[5 + 1000 * page:105 + 1000 * page]).all()
    assert pair.b.poll_imm(2) == 0


def test_pages_none_is_done_at_once(pair):
    """Goal: an empty list is no error."""
    assert pair.a.write_pages(pair.src_region, [], pair.remote, [], page_bytes=64,
                              deadline=WAIT).result(WAIT).bytes == 0


def test_pages_bad_index_is_refused_before_anything_moves(pair):
    """Goal: wrong values are refused by the call, in Python or by the library."""
    for bad in ([-1], [1 << 32], np.array([-1])):
        with pytest.raises(ValueError, match="page index"):
            pair.a.write_pages(pair.src_region, bad, pair.remote, [0], page_bytes=64)
    for bad in (b"\0\0\0\0", [0.5], np.array([0.5]), np.zeros((1, 1), np.uint32)):
        with pytest.raises(TypeError):
            pair.a.write_pages(pair.src_region, bad, pair.remote, [0], page_bytes=64)
    with pytest.raises(ValueError, match="equally long"):
        pair.a.write_pages(pair.src_region, [0, 1], pair.remote, [0], page_bytes=64)
    with pytest.raises(wimm.Error) as caught:
        pair.a.write_pages(pair.src_region, [0, 1 << 20], pair.remote, [0, 1], page_bytes=64, imm=1)
    assert caught.value.code == wimm.Status.E_RANGE
    assert pair.b.poll_imm(1) == 0 and not pair.dst.any()


def test_scatter_reaches_each_peer(provider):
    """Goal: each entry lands at its peer and counts there."""
    with_group = [False, True]
    from conftest import open_engine
    with open_engine(provider) as a, open_engine(provider) as b, open_engine(provider) as c:
        memory = [bytearray(100), bytearray(100)]
        remotes = [a.open_remote(engine.register(room).desc)
                   for engine, room in zip((b, c), memory)]
        src = a.register(bytes(range(200)), local_only=True)
        group = a.peer_group([remote.peer for remote in remotes])
        for imm, grouped in enumerate(with_group):
            expected = [engine.expect(imm, 1, deadline=WAIT) for engine in (b, c)]
            a.scatter(src, [wimm.Slice(remotes[0], 10, 0, 20), (remotes[1], 50, 30, 40)], imm=imm,
                      group=group if grouped else None, deadline=WAIT).result(WAIT)
            for operation in expected:
                operation.result(WAIT)
        assert memory[0][:20] == bytes(range(10, 30)) and not any(memory[0][20:])
        assert memory[1][30:70] == bytes(range(50, 90)) and not any(memory[1][70:])
        group.close()


def test_barrier_sends_an_immediate_to_each(pair):
    """Goal: what a barrier sends is what expect() waits for."""
    expected = pair.b.expect(9, 2, deadline=WAIT)
    pair.a.barrier([pair.remote, pair.remote], 9, deadline=WAIT).result(WAIT)
    expected.result(WAIT)


def test_barrier_rounds_end_when_all_have_entered(pair):
    """Goal: no side leaves a round before the other has entered it, round after round."""
    back = pair.b.open_remote(pair.src_region.desc)
    with pair.a.open_barrier([pair.remote], (21, 22)) as ours, \
            pair.b.open_barrier([back], (21, 22)) as theirs:
        for _ in range(6):
            first = ours.enter(deadline=WAIT)
            assert not first.done()
            second = theirs.enter(deadline=WAIT)
            first.result(WAIT), second.result(WAIT)


def test_send_arrives_as_bytes_with_its_sender(pair):
    """Goal: messages of any buffer type and of length 0 come through, from a peer that can be
    answered."""
    came, all_here = {}, threading.Event()

    def on_message(peer, data):
        came[data] = peer
        if len(came) == 3:
            all_here.set()

    with pair.b.recvs(on_message, count=2, length=1000):
        peer = pair.a.add_peer(pair.b.address)
        sent = [pair.a.send(peer, data, deadline=WAIT)
                for data in (b"one", np.arange(5, dtype=np.uint8), bytearray())]
        for operation in sent:
            operation.result(WAIT)
        assert all_here.wait(WAIT)
        answers = []
        answered = threading.Event()
        with pair.a.recvs(lambda peer, data: (answers.append(data), answered.set())):
            pair.b.send(came[b"one"], b"back", deadline=WAIT).result(WAIT)
            assert answered.wait(WAIT)
    assert set(came) == {b"one", bytes(range(5)), b""} and answers == [b"back"]


def test_send_without_a_receiver_waits_and_loses_nothing(pair):
    """Goal: no buffer there is back-pressure, not loss."""
    peer = pair.a.add_peer(pair.b.address)
    sent = [pair.a.send(peer, b"%d" % number, deadline=WAIT) for number in range(20)]
    came, all_here = set(), threading.Event()

    def on_message(_peer, data):
        came.add(data)
        if len(came) == 20:
            all_here.set()

    with pair.b.recvs(on_message, count=2, length=100):
        assert all_here.wait(WAIT)
        for operation in sent:
            operation.result(WAIT)
    assert came == {b"%d" % number for number in range(20)}


def test_expect_two_on_one_value_fire_in_order(pair):
    """Goal: what came early counts, and one expectation after the other is served."""
    pair.a.write(pair.src_region, pair.remote, imm=3, confirmed=True, deadline=WAIT).result(WAIT)
    first, second = (pair.b.expect(3, n, deadline=WAIT) for n in (1, 2))
    first.result(WAIT)
    assert not second.done()
    for _ in range(2):
        pair.a.write(pair.src_region, pair.remote, imm=3, deadline=WAIT)
    second.result(WAIT)


def test_expect_deadline_passes_with_time_out(pair):
    """Goal: an expectation that nobody serves ends by itself and takes nothing away."""
    pair.a.write(pair.src_region, pair.remote, imm=4, confirmed=True, deadline=WAIT).result(WAIT)
    with pytest.raises(wimm.Error) as caught:
        pair.b.expect(4, 2, deadline=0.01).result(WAIT)
    assert caught.value.code == wimm.Status.E_TIMEOUT and caught.value.scope == wimm.Scope.OP
    assert pair.b.poll_imm(4) == 1


def test_imm_forgotten_is_gone_and_retired_reports(pair):
    """Goal: forget says how many there were; retire comes back when nobody can deliver any more."""
    for _ in range(3):
        pair.a.write(pair.src_region, pair.remote, length=0, imm=5, confirmed=True,
                     deadline=WAIT).result(WAIT)
    assert pair.b.poll_imm(5) == 3
    assert pair.b.forget_imm(5) == 3 and pair.b.poll_imm(5) == 0
    pair.a.write(pair.src_region, pair.remote, length=0, imm=6, deadline=WAIT).result(WAIT)
    assert pair.b.retire_imm(6).result(WAIT).imm == 6
    assert pair.b.poll_imm(6) == 0


def test_watcher_reports_changes_up_to_the_last(pair):
    """Goal: callbacks chain from old to new and the last value is never skipped."""
    seen, last = [], threading.Event()

    def on_change(old, new):
        seen.append((old, new))
        if new == 105:
            last.set()

    with pair.a.watcher(on_change) as watcher:
        assert [watcher.add() for _ in range(5)] == [1, 2, 3, 4, 5]
        assert watcher.add(100) == 105 and watcher.value == 105 and watcher.address
        assert last.wait(WAIT)
    assert seen[0][0] == 0 and seen[-1][1] == 105
    assert all(before[1] == after[0] for before, after in zip(seen, seen[1:]))


def test_watcher_disarmed_reports_after_arming(pair):
    """Goal: what changes while nobody looks is not lost."""
    seen = threading.Event()
    with pair.a.watcher(lambda old, new: new == 3 and seen.set()) as watcher:
        watcher.arm(False)
        watcher.add(3)
        watcher.arm()
        assert seen.wait(WAIT)


def test_mirror_holds_all_that_came_and_only_grows(pair):
    """Goal: a polled word counts what expectations take too, in memory of one's own or not, and
    the bytes are there before it does."""
    own = np.zeros(4, dtype=np.uint64)
    with pair.b.mirror(7, own[2:]) as mirror, pair.b.mirror(8) as other:
        expected = pair.b.expect(7, 3, deadline=WAIT)
        for i in range(5):
            pair.a.write(pair.src_region, pair.remote, imm=7, deadline=WAIT)
            deadline = time.monotonic() + WAIT
            while mirror.value < i + 1:
                assert time.monotonic() < deadline
            assert (pair.dst == pair.src).all()
        expected.result(WAIT)
        assert own.tolist() == [0, 0, 5, 0] and mirror.value == 5 and other.value == 0
        with pytest.raises(wimm.Error) as caught:
            pair.b.mirror(7)
        assert caught.value.code == wimm.Status.E_BUSY
    assert mirror.value == 5
    with pytest.raises(ValueError, match="8 bytes"):
        pair.b.mirror(9, bytearray(4))
    left = pair.b.mirror(7)
    assert left.value == 2    # not taken yet
    pair.b.close()            # ends it first
    assert left.closed and left.value == 2


def test_peers_and_addresses_come_in_both_forms(pair):
    """Goal: the bytes and the text of an address name the same peer; nonsense is refused."""
    address = pair.b.address
    assert isinstance(address, bytes) and bytes(address) == address
    assert wimm.Address.parse(str(address)) == address
    peer = pair.a.add_peer(address)
    assert peer == pair.a.add_peer(str(address)) == pair.a.add_peer(bytes(address))
    assert peer == pair.remote.peer
    assert pair.a.peer_error(peer) is None
    for bad in (b"", b"nonsense", b"x" * 5000):
        with pytest.raises(wimm.Error) as caught:
            pair.a.add_peer(bad)
        assert caught.value.code in (wimm.Status.E_PARSE, wimm.Status.E_INVAL)


def test_peer_removed_fails_what_was_open(pair):
    """Goal: an operation towards a removed peer settles with E_CLOSED and names it."""
    peer = pair.a.add_peer(pair.b.address)
    operation = pair.a.send(peer, b"nobody takes this", deadline=WAIT)
    pair.a.remove_peer(peer)
    with pytest.raises(wimm.Error) as caught:
        operation.result(WAIT)
    assert caught.value.code == wimm.Status.E_CLOSED
    with pytest.raises(wimm.Error) as caught:
        pair.a.remove_peer(123456)
    assert caught.value.code == wimm.Status.E_NOT_FOUND


def test_peer_events_tell_of_up_and_down(provider):
    """Goal: a peer that comes and one that goes are reported, with its number."""
    from conftest import open_engine
    events, up, down = [], threading.Event(), threading.Event()

    def on_event(event):
        events.append(event)
        {wimm.PeerEventKind.UP: up, wimm.PeerEventKind.DOWN: down}[event.kind].set()

    with open_engine(provider, on_peer_event=on_event) as a:
        with open_engine(provider) as b:
            peer = a.add_peer(b.address)
            assert up.wait(WAIT)
        assert down.wait(WAIT)
    assert {event.peer for event in events} == {peer}
    assert all(len(event.instance) == 16 for event in events)


def test_stats_count_what_was_done(pair):
    """Goal: the counters are read from the right fields."""
    before = pair.a.stats()
    pair.a.write(pair.src_region, pair.remote, imm=1, confirmed=True, deadline=WAIT).result(WAIT)
    after = pair.a.stats()
    assert after.bytes_written - before.bytes_written == pair.src.nbytes
    assert after.ops_submitted - before.ops_submitted == 1 and after.ops_open == 0
    assert after.regions == 1 and after.nics >= 1 and after.peers_up == 1
    assert pair.b.stats().imms_received == 1


def test_info_describes_the_build():
    """Goal: info() is a dictionary with the providers in it."""
    described = wimm.info()
    assert "tcp" in str(described) and "sim" in str(described)


@pytest.mark.parametrize("call, kind", [
    (lambda p: p.a.write(p.src_region, p.remote, src_offset=-1), ValueError),
    (lambda p: p.a.write(p.src_region, p.remote, imm=1 << 32), ValueError),
    (lambda p: p.a.write(p.src_region, p.remote, imm="1"), TypeError),
    (lambda p: p.a.write(p.src_region, p.remote, deadline=0), ValueError),
    (lambda p: p.a.write(p.src_region, p.remote, length=1 << 64), ValueError),
    (lambda p: p.a.expect(1, -1), ValueError),
    (lambda p: p.a.expect(1, 1, deadline=float("nan")), ValueError),
    (lambda p: p.a.send(-1, b""), ValueError),
])
@pytest.mark.parametrize("provider", ["sim"])
def test_argument_that_c_would_cut_off_is_refused(pair, call, kind):
    """Goal: no number reaches C as another one."""
    with pytest.raises(kind):
        call(pair)


@pytest.mark.parametrize("call, code", [
    (lambda p: p.a.write(p.src_region, p.remote, dst_offset=1), "E_RANGE"),
    (lambda p: p.a.write(p.src_region, p.remote, length=1 << 40), "E_RANGE"),
    (lambda p: p.a.expect(1, 0), "E_INVAL"),
    (lambda p: p.a.open_remote(b"no descriptor"), "E_PARSE"),
    (lambda p: p.a.open_remote(b"x" * 5000), "E_PARSE"),
    (lambda p: p.a.peer_group([]), "E_INVAL"),
    (lambda p: p.a.open_barrier([p.remote], (1, 1)), "E_INVAL"),
    (lambda p: p.a.progress(), "E_INVAL"),
    (lambda p: p.a.fileno(), "E_INVAL"),
    (lambda p: wimm.Engine(provider="no such provider"), "E_NOT_FOUND"),
])
@pytest.mark.parametrize("provider", ["sim"])
def test_refused_call_raises_with_code_scope_and_words(pair, call, code):
    """Goal: what the library refuses is an Error that can be branched on and read."""
    with pytest.raises(wimm.Error) as caught:
        call(pair)
    assert caught.value.code == wimm.Status[code] and caught.value.scope == wimm.Scope.CALL
    assert str(caught.value).startswith(code + ": ") and caught.value.text


@pytest.mark.parametrize("provider", ["sim"])
def test_refused_call_does_not_show_the_words_of_another(pair):
    """Goal: a refusal that the library has no words for is not explained with an earlier one's."""
    with pytest.raises(wimm.Error, match="from 1 to 2"):
        pair.a.expect(1, 0)
    with pytest.raises(wimm.Error) as caught:
        pair.a.remove_peer(12345)
    assert caught.value.code == wimm.Status.E_NOT_FOUND and "expect" not in caught.value.text
