# SPDX-License-Identifier: Apache-2.0
"""`wimm kv`: paged writes of model shapes."""

import pytest

from conftest import run, run_json

# Model, options, layers, bytes a token over all layers.
SHAPES = [
    ("llama-3.1-8b", [], 32, 128 << 10),
    ("llama-3.1-70b", ["--tp", 8], 80, 320 << 10 >> 3),
    ("qwen3-235b", ["--tp", 8], 94, 376 << 10 >> 3),
    ("deepseek-v3", [], 61, 70272),
    ("deepseek-v3", ["--dtype", "fp8"], 61, 35136),
    ("smollm2-135m", [], 30, 30 * 2 * 3 * 64 * 2),
]


@pytest.mark.parametrize("model,options,layers,token_bytes", SHAPES)
def test_kv_moves_the_whole_cache_of_a_model(model, options, layers, token_bytes):
    tokens = 128
    result = run_json("kv", "--local", "--model", model, "--tokens", tokens, *options)
    assert (result["command"], result["model"], result["layers"]) == ("kv", model, layers)
    assert result["bytes"] == token_bytes * tokens
    assert result["iters"] == layers
    assert result["batch"] == result["pages"] * result["segments"]
    assert result["validated"] and result["bytes_checked"] == result["bytes"]
    assert result["ms_per_request"] == pytest.approx(result["seconds"] * 1e3)


def test_kv_of_a_cache_larger_than_the_buffer_reuses_it():
    result = run_json("kv", "--local", "--model", "smollm2-135m", "--tokens", 333, "--requests", 3,
                      "--buffer", "1M")
    assert result["pages"] == 21
    assert result["iters"] == 90
    assert result["bytes_checked"] == result["bytes"]


@pytest.mark.parametrize("arguments,words", [
    (["--model", "gpt-2"], 'model "gpt-2" is unknown'),
    (["--dtype", "int4"], 'dtype "int4": bf16 or fp8 is wanted'),
    (["--tokens", "0"], '--tokens "0": a number from 1 is wanted'),
])
def test_kv_refuses_wrong_arguments_in_words(arguments, words):
    status, out, err = run("kv", "--local", *arguments)
    assert (status, out) == (2, "")
    assert words in err
