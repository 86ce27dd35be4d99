# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in the middle of a transfer: nobody gets wrong tokens, no block is lost, and none
comes back while it can be written to. The tests run in this order: the last one kills prefill."""
import pytest

from conftest import prompt

CHUNK = 96


@pytest.fixture(scope="module")
def trio(start):
    """Prefill; a decode that computes what does not come; one that fails the request."""
    prefill = start("prefill", max_num_batched_tokens=CHUNK)
    small = {"kv_cache_memory_bytes": 4 << 20}  # 15 blocks: what is given back is used at once
    recompute = start("recompute", **small)
    fail = start("fail", on_failure="fail", **small)
    return prefill.ready(), recompute.ready(), fail.ready()


def reuse_all(prefill, decode, name, blocks):
    """Transfers until each of these blocks was used again; their tokens are right."""
    left = set(blocks)
    for turn in range(20):
        ids = prompt(hash_of(name) + turn, 200 + 128 * (turn % 5))
        wanted = decode.alone(f"ref-{name}-{turn}", ids)
        decode.decode(f"{name}-{turn}", ids, prefill.address)
        prefill.prefill(f"{name}-{turn}", ids)
        loaded = decode.wait("loaded", transfer=f"{name}-{turn}")
        assert not loaded["failed"], loaded["failed"]
        assert decode.wait("done", name=f"D-{name}-{turn}")["tokens"] == wanted
        prefill.wait("done", name=f"P-{name}-{turn}")
        left -= set(loaded["blocks"])
        if not left:
            return
    pytest.fail(f"blocks {left} were not used again")


def hash_of(name):
    return 100 + sum(map(ord, name))


def test_blocks_of_an_aborted_request_come_back_after_the_confirmed_cancel(trio):
    """Goal: decode is aborted while layers are on their way. Its blocks stay away for as long as
    prefill has not said that it forgot the request; then they serve others."""
    prefill, decode, _ = trio
    ids = prompt(1, 300)
    prefill.ask("fault", kind="hold_cancels")
    prefill.ask("fault", kind="stop_after_layer", layer=1, passes=2, keep=True)
    decode.decode("abort", ids, prefill.address)
    prefill.prefill("abort", ids)
    prefill.wait("stopped")
    decode.say("abort", name="D-abort")
    for _ in range(20):
        said = decode.ask("free")
        assert said["states"] == ["FINISHED_ABORTED"] and said["blocks"] == decode.blocks - 3
    prefill.say("go")
    prefill.wait("cancel held")
    assert decode.ask("free")["blocks"] == decode.blocks - 3
    prefill.ask("fault", kind="clear")
    assert decode.wait_free() == decode.blocks
    assert prefill.wait_free() == prefill.blocks
    loaded = decode.wait("loaded", transfer="abort")
    assert loaded["failed"]
    reuse_all(prefill, decode, "after-abort", loaded["blocks"])


def test_request_aborted_before_prefill_began_is_not_served_later(trio):
    """Goal: prefill holds a request for a prompt that it has not seen yet; the request is given up;
    the prompt then comes, is not sent, and its blocks are free."""
    prefill, decode, _ = trio
    ids = prompt(2, 300)
    decode.decode("early", ids, prefill.address)
    decode.say("abort", name="D-early")
    assert decode.wait_free() == decode.blocks
    assert decode.wait("loaded", transfer="early")["failed"]
    prefill.prefill("early", ids)
    prefill.wait("done", name="P-early")
    assert prefill.wait_free() == prefill.blocks
    reuse_all(prefill, decode, "after-early", range(1, 4))


def test_prompt_aborted_at_prefill_is_computed_by_decode(trio):
    """Goal: prefill gives up between two chunks: decode hears it and computes the prompt."""
    prefill, decode, _ = trio
    ids = prompt(3, 300)
    wanted = decode.alone("ref-left", ids)
    prefill.ask("fault", kind="stop_after_layer", layer=1)
    decode.decode("left", ids, prefill.address)
    prefill.prefill("left", ids)
    prefill.wait("stopped")
    prefill.say("abort", name="P-left")
    prefill.say("go")
    assert decode.wait("done", name="D-left")["tokens"] == wanted
    assert "given up at the prefill side" in decode.wait("loaded", transfer="left")["failed"]
    assert prefill.wait_free() == prefill.blocks and decode.wait_free() == decode.blocks
    prefill.ask("fault", kind="clear")


def test_prompt_aborted_at_prefill_keeps_the_pages_that_have_come(trio):
    """Goal: prefill gives up in the third chunk. The page that two chunks have filled is no failed
    block, and decode computes from there on: with that page's bytes left out its tokens differ."""
    prefill, decode, _ = trio
    for lost in (False, True):
        name, ids = f"part-{lost}", prompt(9 + lost, 300)
        wanted = decode.alone(f"ref-{name}", ids)
        prefill.ask("fault", kind="stop_after_layer", layer=1, passes=3)
        if lost:
            prefill.ask("fault", kind="lose", page=0, keep=True)
        decode.decode(name, ids, prefill.address)
        prefill.prefill(name, ids)
        prefill.wait("stopped")
        decode.wait("heard how far prefill is")
        prefill.say("abort", name=f"P-{name}")
        prefill.say("go")
        assert (decode.wait("done", name=f"D-{name}")["tokens"] == wanted) is not lost
        loaded = decode.wait("loaded", transfer=name)
        assert "given up at the prefill side" in loaded["failed"]
        assert len(loaded["blocks"]) == 3
        # The pass that stood still ends before the abort: its page may have come, too.
        assert loaded["bad"] in (loaded["blocks"][1:], loaded["blocks"][2:])
        assert prefill.wait_free() == prefill.blocks and decode.wait_free() == decode.blocks
        prefill.ask("fault", kind="clear")


def test_blocks_in_quarantine_come_back_when_the_silent_rank_is_fenced(trio):
    """Goal: an aborted request whose prefill rank may still write, and cannot be kept from it: its
    blocks stay away while that is the answer, however often it is asked; then they serve others."""
    prefill, decode, _ = trio
    ids = prompt(11, 300)
    prefill.ask("fault", kind="stop_after_layer", layer=1, passes=2)
    decode.ask("fault", kind="quarantine")
    decode.decode("keep", ids, prefill.address)
    prefill.prefill("keep", ids)
    prefill.wait("stopped")
    decode.say("abort", name="D-keep")
    for _ in range(3):
        decode.wait("fence asked")
        said = decode.ask("free")
        assert said["states"] == ["FINISHED_ABORTED"] and said["blocks"] == decode.blocks - 3
    prefill.say("go")
    assert prefill.wait_free() == prefill.blocks
    decode.wait("fence asked")
    assert decode.ask("free")["blocks"] == decode.blocks - 3
    assert not [one for one in decode.seen() if one["event"] == "loaded"]
    decode.ask("fault", kind="clear")
    assert decode.wait_free() == decode.blocks
    loaded = decode.wait("loaded", transfer="keep")
    assert loaded["failed"] and loaded["bad"] == loaded["blocks"]
    prefill.ask("fault", kind="clear")
    reuse_all(prefill, decode, "after-keep", loaded["blocks"])


@pytest.mark.parametrize("step,says", (("receive", "lost a moment ago"), ("model", "model_tag"),
                                       ("send", "lost a moment ago")))
def test_load_that_is_refused_fails_that_request_and_nothing_else(trio, step, says):
    """Goal: decode knows prefill's layout, and the engine refuses the receiver or the request: the
    peer died a moment before, or has another model. Decode computes the prompt, or the request
    ends with an error; prefill does not wait for it, and the next one is served."""
    prefill, recompute, fail = trio
    for decode in (recompute, fail):
        name, ids = f"{step}-{decode is fail}", prompt(12, 300)
        wanted = decode.alone(f"ref-{name}", ids)
        for turn in ("before", "refused", "after"):
            if turn == "refused":
                decode.ask("fault", kind="refuse", step=step)
            decode.decode(f"{turn}-{name}", ids, prefill.address)
            prefill.prefill(f"{turn}-{name}", ids)
            done = decode.wait("done", name=f"D-{turn}-{name}")
            failed = decode.wait("loaded", transfer=f"{turn}-{name}")["failed"]
            if turn == "refused":
                decode.ask("fault", kind="clear")
                assert says in failed
            if turn == "refused" and decode is fail:
                assert done["reason"] == "error"
            else:
                assert done["tokens"] == wanted
            assert bool(failed) is (turn == "refused")
            assert prefill.wait_free() == prefill.blocks and decode.wait_free() == decode.blocks


def test_params_that_lack_something_are_computed_by_decode(trio):
    """Goal: a proxy's mistakes cost time, not the service: no id, no address, a wrong one, two of a
    prefill with one rank."""
    prefill, decode, _ = trio
    ids = prompt(7, 200)
    wanted = decode.alone("ref-lacks", ids)
    whole = {"do_remote_prefill": True, "transfer_id": "x", "remote_addresses": [prefill.address]}
    mistakes = ("transfer_id", None), ("remote_addresses", None), \
        ("remote_addresses", ["nowhere:1:2"]), ("remote_addresses", 2 * [prefill.address])
    for index, (field, value) in enumerate(mistakes):
        decode.say("add", name=f"lacks-{index}", prompt=ids, tokens=16,
                   params={**whole, field: value})
        assert decode.wait("done", name=f"lacks-{index}")["tokens"] == wanted
    assert decode.wait_free() == decode.blocks


def test_transfer_id_that_is_in_use_serves_the_first_prompt(trio):
    """Goal: two prompts with one id: decode gets the first one's pages, both free their blocks."""
    prefill, decode, _ = trio
    ids = prompt(8, 300)
    wanted = decode.alone("ref-twice", ids)
    for index in range(2):
        prefill.say("add", name=f"P-twice-{index}", prompt=ids, tokens=1,
                    params={"do_remote_decode": True, "transfer_id": "twice"})
    for index in range(2):
        prefill.wait("done", name=f"P-twice-{index}")
    decode.decode("twice", ids, prefill.address)
    assert decode.wait("done", name="D-twice")["tokens"] == wanted
    assert not decode.wait("loaded", transfer="twice")["failed"]
    assert prefill.wait_free() == prefill.blocks and decode.wait_free() == decode.blocks


def test_prefill_killed_between_two_layers_is_replaced_by_decode_or_reported(trio):
    """Goal: with `recompute` decode has the same tokens and does not ask forever; with `fail` the
    request ends with an error. All blocks are back, and both go on."""
    prefill, recompute, fail = trio
    prompts = {"dies-r": prompt(4, 300), "dies-f": prompt(5, 300)}
    wanted = recompute.alone("ref-dies", prompts["dies-r"])
    prefill.ask("fault", kind="die_after_layer", layer=1)
    for decode, (name, ids) in zip((recompute, fail), prompts.items()):
        decode.decode(name, ids, prefill.address)
    for name, ids in prompts.items():
        prefill.prefill(name, ids)
    assert prefill.killed() == -9
    assert recompute.wait("done", name="D-dies-r")["tokens"] == wanted
    loaded = recompute.wait("loaded", transfer="dies-r")
    assert loaded["failed"] and loaded["bad"] == loaded["blocks"]
    assert fail.wait("done", name="D-dies-f")["reason"] == "error"
    for decode in (recompute, fail):
        assert decode.wait_free() == decode.blocks
        assert decode.alone("after", prompt(6, 300)) != wanted
    assert not [one for one in recompute.seen() if one.get("transfer") == "dies-r"]
