# SPDX-License-Identifier: Apache-2.0
"""`wimm perf`: each operation over each provider, what it prints, what it refuses."""

import subprocess

import pytest

from conftest import (DEADLINE_S, WIMM, environment, finish, free_port, run, run_json, start)

OPS = ["write", "paged", "scatter", "barrier", "send"]
PROVIDERS = ["tcp", "host", "sim"]
NUMBERS = ["nics", "target_nics", "block_bytes", "batch", "depth", "iters", "bytes", "seconds",
           "bandwidth_gb_s", "messages_per_s", "cpu_s_per_gb", "bytes_checked"]


def check_object(result):
    """Every promised member, and figures that agree with each other."""
    for name in NUMBERS:
        assert isinstance(result[name], (int, float)) and result[name] >= 0, name
    lat = result["lat_us"]
    assert 0 < lat["min"] <= lat["p50"] <= lat["p99"] <= lat["max"]
    assert result["bytes"] == result["iters"] * result["batch"] * result["block_bytes"]
    assert result["bandwidth_gb_s"] == pytest.approx(result["bytes"] / result["seconds"] * 1e-9)
    assert result["messages_per_s"] == pytest.approx(
        result["iters"] * result["batch"] / result["seconds"])
    cpu = result["cpu_s"]["client"] + result["cpu_s"]["target"]
    assert result["cpu_s_per_gb"] * result["bytes"] * 1e-9 == pytest.approx(
        cpu if result["bytes"] else 0)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("op", OPS)
def test_perf_local_moves_and_compares_every_iteration(op, provider):
    size = [] if op == "barrier" else ["--size", "5000"]
    result = run_json("perf", op, "--local", "--provider", provider, "--iters", 200, "--warmup", 5,
                      *size)
    check_object(result)
    assert (result["op"], result["provider"], result["iters"]) == (op, provider, 200)
    assert result["target"] == ("thread" if provider == "sim" else "process")
    assert result["validated"] is True
    assert result["validation"]["iterations"] == 200
    assert result["bytes_checked"] == result["bytes"]


def test_perf_command_of_the_readme_prints_one_object():
    result = run_json("perf", "write", "--local", "--provider", "tcp", "--nics", 2, "--size", "64K",
                      "--iters", 1000)
    check_object(result)
    assert (result["nics"], result["target_nics"]) == (2, 2)
    assert (result["block_bytes"], result["batch"], result["iters"]) == (65536, 1, 1000)
    assert result["bytes_checked"] == 65536 * 1000


@pytest.mark.parametrize("options", [
    ["write", "--size", "1"],
    ["write", "--size", "0"],
    ["write", "--size", "1M", "--nics", "3"],
    ["write", "--size", "1M", "--nics", "2"],
    ["write", "--batch", "7", "--size", "333", "--shuffle"],
    ["write", "--confirmed", "--depth", "1"],
    ["paged", "--imm", "once", "--nics", "2", "--shuffle", "--size", "777"],
    ["paged", "--progress", "caller", "--size", "4K", "--batch", "300"],
    ["scatter", "--bidirectional", "--size", "999"],
    ["send", "--size", "3"],
    ["send", "--size", "64", "--batch", "5", "--bidirectional"],
    ["write", "--duration", "0.2", "--bidirectional"],
    ["paged", "--buffer", "640K", "--size", "1K", "--num_iter", "50"],
], ids=" ".join)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_perf_with_unusual_options_still_brings_the_right_bytes(options, provider):
    result = run_json("perf", *options, "--local", "--provider", provider, "--check-iters", 60,
                      *([] if "--duration" in options or "--num_iter" in options
                        else ["-n", 60]))
    ways = 2 if "--bidirectional" in options else 1
    assert result["validated"] is ("--duration" not in options)  # which makes more than 60
    assert (result["validation"]["left_out"] == "") is result["validated"]
    assert result["validation"]["iterations"] == 60
    assert result["bytes_checked"] == 60 * result["batch"] * result["block_bytes"] * ways
    if "--duration" in options:
        assert result["seconds"] >= 0.2
    elif "--num_iter" not in options:
        assert result["iters"] == 60 * ways


def test_perf_without_validation_says_so():
    result = run_json("perf", "write", "--local", "--no-validate", "-n", 20)
    assert result["validated"] is False
    assert result["bytes_checked"] == 0
    assert result["validation"]["left_out"] == "20 iterations of the client"


def test_perf_compares_every_iteration_in_rounds_when_they_do_not_fit():
    # Goal: more bytes than the buffer holds, many times over, are compared all the same.
    result = run_json("perf", "write", "--local", "--size", "1M", "-n", 300, "--buffer", "4M")
    assert result["validated"] is True and result["validation"]["left_out"] == ""
    assert result["validation"]["iterations"] == 300
    assert result["bytes_checked"] == result["bytes"] == 300 << 20


def test_perf_compares_as_many_iterations_as_a_duration_had():
    # Goal: how many that were is known only afterwards, and both writers may have made different
    # numbers of them.
    result = run_json("perf", "write", "--local", "--duration", "0.2", "--bidirectional")
    checked = result["validation"]["iterations"]
    assert result["validated"] is True and result["validation"]["left_out"] == ""
    assert 2 * checked >= result["iters"]
    assert result["bytes_checked"] == 2 * checked * result["block_bytes"]


def test_perf_that_compares_a_part_is_not_validated():
    # Goal: what was left out is said, in the object and in the table.
    arguments = ["perf", "write", "--local", "-n", 50, "--check-iters", 20]
    result = run_json(*arguments)
    assert result["validated"] is False
    assert result["validation"]["left_out"] == "30 iterations of the client"
    status, out, err = run(*arguments)
    assert status == 0, err
    assert out.splitlines()[-1].endswith(f"in part: {20 << 16} bytes, 30 iterations not")


@pytest.mark.parametrize("how,words", [
    (">&-", "writing the results: Bad file descriptor"),
    (">/dev/full", "writing the results: No space left on device"),
])
def test_perf_whose_results_are_not_written_fails(how, words):
    # Goal: results that nobody got are not success, and a closed stream's number is not taken by a
    # connection, where they would be taken for words of the other side.
    done = subprocess.run(["sh", "-c", f'"$0" perf write --local -n 5 --json {how}', str(WIMM)],
                          env=environment(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"wimm: {words}"]


def test_perf_sweep_prints_one_object_with_a_row_each():
    result = run_json("perf", "write", "--local", "-n", 20, "--start_block_size", "1K",
                      "--max_block_size", "8K", "--start_batch_size", 1, "--max_batch_size", 2)
    rows = [(row["block_bytes"], row["batch"]) for row in result["sweep"]]
    assert rows == [(size, batch) for size in (1024, 2048, 4096, 8192) for batch in (1, 2)]
    for row in result["sweep"]:
        check_object(row)
        assert row["validated"]


def test_perf_all_sizes_prints_a_table():
    status, out, err = run("perf", "write", "--local", "-a", "-n", 5, "-w", 2, "--report_gbits")
    assert status == 0, err
    assert "BW Gbit/s" in out
    assert len(out.splitlines()) == 1 + 23  # 2 B to 8 MiB


@pytest.mark.parametrize("nics,count", [("127.0.0.1,127.0.0.2:0", 2), ("lo", 1), ("::1,[::1]", 2)])
def test_perf_takes_addresses_and_interfaces_with_and_without_ports(nics, count):
    assert run_json("perf", "write", "--local", "--nics", nics, "-n", 20)["nics"] == count


def test_perf_server_and_client_meet_on_a_port():
    port = free_port()
    server = start("perf", "write", "--port", port, "--nics", "127.0.0.1")
    client = start("perf", "paged", "127.0.0.1", "-p", port, "-n", 50, "-d", "127.0.0.1", "--json")
    status, out, err = finish(client)
    assert status == 0, err
    assert '"target":"host 127.0.0.1"' in out
    status, out, err = finish(server)
    assert (status, out) == (0, ""), err
    assert f"waiting for a client on port {port}" in err


def test_perf_server_that_wants_another_provider_refuses_on_both_sides():
    port = free_port()
    server = start("perf", "write", "--port", port, "--provider", "verbs", "--nics", "127.0.0.1")
    status, _, err = run("perf", "write", "127.0.0.1", "-p", port)
    words = "the client asks for provider tcp, this side was started with --provider verbs"
    assert status == 1
    assert f"the other side (127.0.0.1) failed: {words}" in err
    status, _, err = finish(server)
    assert status == 1
    assert words in err


@pytest.mark.parametrize("arguments,words", [
    ([], "an operation is wanted: write, paged, scatter, barrier or send"),
    (["wirte"], 'operation "wirte": write, paged, scatter, barrier or send is wanted'),
    (["write", "a", "b"], 'one host is wanted; "b" is too much'),
    (["write", "host", "--local"], '--local starts a target here; leave out "host"'),
    (["write", "--local", "--size", "64X"], '--size "64X": a number of bytes such as'),
    (["write", "--local", "--size", "-1"], '--size "-1"'),
    (["write", "--local", "-n", "0"], '--iters "0": a number from 1 is wanted'),
    (["write", "--local", "-t", "2000"], "--depth (-t): 1 to 1024"),
    (["write", "--local", "-l", "1000", "-t", "16"], "at most 8192 operations in flight"),
    (["write", "--local", "-s", "2M", "--buffer", "1M"], "more than --buffer holds"),
    (["write", "--local", "--imm", "once"], "--imm once: for paged writes only"),
    (["write", "--local", "--imm", "never"], '--imm "never": page or once is wanted'),
    (["write", "--local", "-q", "4"], "-q: wimm has one path for each pair of NICs"),
    (["write", "--local", "-D", "soon"], 'duration "soon": seconds above 0 are wanted'),
    (["write", "--local", "-p", "70000"], 'port "70000": 1 to 65535 is wanted'),
    (["write", "--local", "-d", "127.0.0.1,"], "names with commas between are wanted"),
    (["barrier", "--local", "-s", "8"], "a barrier carries no bytes"),
    (["write", "--local", "--size", "4 "], '--size "4 "'),
    (["write", "--local", "--nics", "0"], "--nics 0: 1 to 16 are wanted"),
    (["write", "--local", "--nics", "17"], "--nics 17: 1 to 16 are wanted"),
    (["write", "--local", "--start-block-size", "2K", "--max-block-size", "1K"],
     "the sweep is empty"),
    (["write", "--local", "--start-batch-size", "2", "--max-batch-size", "1"],
     "the sweep is empty"),
    (["write", "--local", "--start-block-size", "0"], "--start-block-size 0"),
    (["write", "--local", "--nonsense"], "unrecognized option '--nonsense'"),
])
def test_perf_refuses_wrong_arguments_in_words(arguments, words):
    status, out, err = run("perf", *arguments)
    assert (status, out) == (2, "")
    assert words in err


@pytest.mark.parametrize("arguments,words", [
    (["--local", "--provider", "nosuch"], 'no provider "nosuch" in this build'),
    (["--local", "--nics", "203.0.113.9"], "203.0.113.9"),
    (["--provider", "sim"], "use --local"),
    (["127.0.0.1", "--nics", "2"], "a number goes with --local only"),
    (["127.0.0.1", "-p", "1"], 'start "wimm perf OP" there first'),
    (["no-such-host.invalid"], 'host "no-such-host.invalid"'),
])
def test_perf_that_cannot_run_says_why_and_fails(arguments, words):
    status, out, err = run("perf", "write", *arguments)
    assert (status, out) == (1, "")
    assert words in err
