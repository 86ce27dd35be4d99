# SPDX-License-Identifier: Apache-2.0
"""`wimm kv bench`: prompts between processes of many ranks."""

import json

import pytest

from conftest import run, run_json

# Model, options, ranks, layers, bytes a token over all layers at one decode rank, decode page.
SHAPES = [
    ("llama-3.1-8b", ["--tp", "2:1"], 32, 128 << 10, 16),
    ("llama-3.1-70b", ["--tp", "1:2"], 80, 320 << 10 >> 1, 16),
    ("qwen3-235b-a22b", ["--tp", "2:8"], 94, 188 << 10 >> 2, 16),
    ("deepseek-v3", ["--tp", "3:2"], 61, 70272, 64),
    ("gpt-oss-120b", ["--dtype", "fp8"], 36, 36 << 10, 16),
]


@pytest.mark.parametrize("provider", ["host", "tcp"])
@pytest.mark.parametrize("model,options,layers,token_bytes,page", SHAPES)
def test_kv_bench_moves_a_prompt_between_ranks(provider, model, options, layers, token_bytes, page):
    tokens = 100 if provider == "host" else 33
    result = run_json("kv", "bench", "--model", model, "--tokens", tokens, "--provider", provider,
                      *options)
    ranks = int(options[1].split(":")[1]) if options[0] == "--tp" else 1
    assert (result["command"], result["model"], result["layers"]) == ("kv bench", model, layers)
    assert result["decode_tp"] == ranks and result["provider"] == provider
    assert result["bytes"] == token_bytes * tokens * ranks
    assert result["validated"] and result["bytes_checked"] == 2 * result["bytes"]
    assert result["pages"] == -(-tokens // page)
    assert not result["folded"] and result["layers_at_a_time"] == layers
    assert result["cpu_seconds"] > 0 and result["seconds"] > 0
    assert 0 <= result["hidden_share"] <= 1


def test_kv_bench_by_doubling_with_bars():
    """All lengths that fit, then the first that does not is refused in words."""
    status, out, err = run("kv", "bench", "--model", "smollm2-135m", "--memory", "3M", "--plot",
                           "--tp", "1:1")
    assert status == 1 and "4096 tokens: one layer takes" in err
    rows = [line.split() for line in out.splitlines() if line.strip()[:3].isdigit()]
    assert [row[0] for row in rows[:5]] == ["128", "256", "512", "1024", "2048"]
    assert "folded: 30 requests of 1 layers" in out
    assert out.count("|") == 3 * 5 and "GB/s" in out and "% hidden" in out
    status, out, err = run("kv", "bench", "--model", "smollm2-135m", "--memory", "2M", "--json")
    assert [one["tokens"] for one in json.loads(out)["runs"]] == [128, 256, 512, 1024]


def test_kv_bench_folds_what_does_not_fit_and_says_so():
    result = run_json("kv", "bench", "--model", "smollm2-135m", "--tokens", 128, "--memory", "1M")
    assert result["folded"] and result["requests"] * result["layers_at_a_time"] == 30
    assert result["bytes_checked"] == 2 * result["bytes"] == 2 * 30 * 2 * 3 * 64 * 2 * 128


def test_case_71_bench_of_unequal_pages_checks_every_token():
    result = run_json("kv", "bench", "--model", "smollm2-135m", "--tokens", 300, "--page-tokens",
                      "16:128", "--tp", "3:1", "--chunk", 100)
    assert (result["prefill_page_tokens"], result["decode_page_tokens"]) == (16, 128)
    assert result["pages"] == 3
    # K and V of 18 units of 16 tokens and one of 12, from each of three ranks, a layer; a unit of a
    # rank's one head is one run.
    assert result["immediates"] == 30 * 2 * 19 * 3


def test_kv_bench_groups_small_pages_in_a_row():
    small = ["--model", "smollm2-135m", "--tokens", 300, "--page-tokens", 1, "--provider", "tcp"]
    result = run_json("kv", "bench", *small, "--in-order")
    assert result["group_units"] == 256 and result["immediates"] == 30 * 2 * 2
    result = run_json("kv", "bench", *small)
    assert result["group_units"] == 1 and result["immediates"] == 30 * 2 * 300


@pytest.mark.parametrize("arguments,words", [
    (["--tp", "3:1"], "tp is 3 at prefill, 1 at decode"),
    (["--tp", "2"], "two numbers with a colon between are wanted"),
    (["--provider", "sim"], "inside one process"),
    (["--provider", "nosuch", "--tokens", "16"], "nosuch"),
    (["a-host"], "all ranks run on this machine"),
    (["--page-tokens", "0:1"], '--page-tokens "0": a number from 1'),
])
def test_kv_bench_refuses_wrong_arguments_in_words(arguments, words):
    status, out, err = run("kv", "bench", *arguments)
    assert status in (1, 2)
    assert words in err
