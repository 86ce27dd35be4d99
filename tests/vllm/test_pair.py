# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode as two vLLM processes: tokens and pages are those of one process alone."""
import pytest

from conftest import prompt

LENGTHS = (64, 129, 257, 300)  # part of a page, a page and one token, two and one, some pages


@pytest.fixture(scope="module")
def pair(start):
    prefill, decode = start("prefill"), start("decode")
    return prefill.ready(), decode.ready()


def hand_over(pair, names, prompts):
    """All at once. Returns what decode says at the end of each."""
    prefill, decode = pair
    for name, ids in zip(names, prompts):
        decode.decode(name, ids, prefill.address)
        prefill.prefill(name, ids)
    done = [decode.wait("done", name=f"D-{name}") for name in names]
    for name in names:
        prefill.wait("done", name=f"P-{name}")
    assert prefill.wait_free() == prefill.blocks
    assert decode.wait_free() == decode.blocks
    return done


def loaded(decode, name):
    said = decode.wait("loaded", transfer=name)
    assert not said["failed"], said["failed"]
    return said


@pytest.mark.parametrize("length", LENGTHS)
def test_tokens_after_a_hand_over_equal_those_of_decode_alone(pair, length):
    """Goal: one prompt at a time, decode asked before prefill has begun."""
    ids = prompt(length, length)
    reference = pair[1].alone(f"ref-{length}", ids)
    done, = hand_over(pair, [f"one-{length}"], [ids])
    loaded(pair[1], f"one-{length}")
    assert done["tokens"] == reference and done["reason"] == "length"


def test_tokens_of_four_prompts_at_once_equal_those_of_decode_alone(pair):
    """Goal: four transfers at a time, and no block is lost on either side."""
    prompts = [prompt(i, length) for i, length in enumerate(LENGTHS)]
    reference = [pair[1].alone(f"ref4-{i}", ids) for i, ids in enumerate(prompts)]
    names = [f"four-{i}" for i in range(4)]
    done = hand_over(pair, names, prompts)
    for name in names:
        loaded(pair[1], name)
    assert [one["tokens"] for one in done] == reference


def test_decode_that_asks_after_prefill_is_through_gets_its_pages(pair):
    """Goal: as a proxy that calls one after the other does it, by prefill's own answer."""
    prefill, decode = pair
    ids = prompt(9, 300)
    reference = decode.alone("ref-late", ids)
    prefill.say("add", name="P-late", prompt=ids, tokens=1, params={"do_remote_decode": True})
    params = prefill.wait("done", name="P-late")["params"]
    assert params["do_remote_prefill"] and params["remote_addresses"] == [prefill.address]
    assert prefill.ask("free")["requests"] == 1  # its blocks wait
    decode.say("add", name="D-late", prompt=ids, tokens=16, params=params)
    assert decode.wait("done", name="D-late")["tokens"] == reference
    assert prefill.wait_free() == prefill.blocks


def test_tokens_differ_for_every_prompt_when_the_writes_are_dropped(pair):
    """Goal: the tests above can fail: without the bytes all tokens are others."""
    prefill, decode = pair
    prompts = [prompt(20 + i, length) for i, length in enumerate(LENGTHS)]
    reference = [decode.alone(f"ref-drop-{i}", ids) for i, ids in enumerate(prompts)]
    prefill.ask("fault", kind="drop")
    try:
        done = hand_over(pair, [f"drop-{i}" for i in range(4)], prompts)
    finally:
        prefill.ask("fault", kind="clear")
    assert all(one["tokens"] != tokens for one, tokens in zip(done, reference))


def test_one_page_left_out_changes_the_tokens_and_its_checksums_alone(pair):
    """Goal: a single lost page is seen by the tokens, and layer by layer by the checksums, which
    are equal for every other page."""
    prefill, decode = pair
    ids = prompt(30, 300)
    reference = decode.alone("ref-lose", ids)
    prefill.ask("fault", kind="lose", page=1)
    try:
        done, = hand_over(pair, ["lose"], [ids])
    finally:
        prefill.ask("fault", kind="clear")
    assert done["tokens"] != reference
    ours, theirs = (side.ask("sums", transfer="lose")["sums"] for side in pair)
    assert len(ours) == 4
    for layer, other in zip(ours, theirs):
        assert [a == b for a, b in zip(layer, other)] == [True, False, True]


def test_pages_of_prefill_and_decode_have_equal_checksums(pair):
    """Goal: every page of every layer is the same on both sides, in blocks of other numbers."""
    ids = prompt(31, 300)
    hand_over(pair, ["sums"], [ids])
    ours, theirs = (side.ask("sums", transfer="sums") for side in pair)
    assert ours["sums"] == theirs["sums"]
    assert len(ours["sums"]) == 4 and len(ours["sums"][0]) == 3
    assert len({total for layer in ours["sums"] for total in layer}) == 12
