# SPDX-License-Identifier: Apache-2.0
"""`wimm check`: pairs of NICs that are reached or not, bytes that are there or not, warnings."""

import json
import os
import shutil
import subprocess

import pytest

from conftest import WIMM, environment, finish, free_port, run, run_json, start


@pytest.mark.parametrize("provider,nics", [("tcp", 2), ("host", 1), ("sim", 1)])
def test_check_local_finds_every_pair_good(provider, nics):
    result = run_json("check", "--local", "--provider", provider, "--nics", nics)
    assert (result["command"], result["provider"], result["ok"]) == ("check", provider, True)
    assert len(result["nics"]) == len(result["target_nics"]) == nics
    assert [(p["nic"], p["target_nic"]) for p in result["pairs"]] == [
        (i, j) for i in range(nics) for j in range(nics)]
    for pair in result["pairs"]:
        assert pair["reached"] and pair["visible"] and pair["reason"] == ""
        assert pair["writes_compared"] == 48 and pair["gb_s"] > 0 and pair["us_p50_8_bytes"] > 0


def test_check_says_which_way_writes_go_that_are_not_pinned():
    pair = run_json("check", "--local")["pairs"][0]
    assert pair["way"].startswith("this machine's memory")
    pair = run_json("check", "--local", WIMM_SAME_HOST="off")["pairs"][0]
    assert pair["way"] == "NICs: setting same_host is off"


def test_check_between_two_processes_prints_a_line_a_pair():
    port = free_port()
    server = start("check", "--port", port, "--nics", "127.0.0.1,127.0.0.2")
    status, out, err = run("check", "--port", port, "--nics", "127.0.0.1", "127.0.0.1")
    assert status == 0, err
    assert out.count(" ok ") == 2 and "2 of 2 pairs are good" in out
    assert finish(server)[0] == 0


def test_check_with_rails_leaves_out_pairs_of_unequal_index():
    result = run_json("check", "--local", "--nics", 3, "--rails")
    assert [(p["nic"], p["target_nic"]) for p in result["pairs"]] == [(0, 0), (1, 1), (2, 2)]


def test_check_of_a_nic_that_cannot_be_opened_names_the_side_and_the_reason():
    status, out, _ = run("check", "--local", "--nics", "127.0.0.1,203.0.113.9")
    assert status == 1
    assert out.count("NOT REACHED") == 3 and "1 of 4 pairs are good" in out
    assert "here: E_NOT_FOUND" in out and "there: E_NOT_FOUND" in out
    assert "Cannot assign requested address" in out


EARLY = """
#include <stdint.h>
/* Counts one more than there is, after the first call. */
uint64_t wimm_mirror_load(const uint64_t *word)
{
	static int calls;
	return __atomic_load_n(word, __ATOMIC_ACQUIRE) + (__atomic_add_fetch(&calls, 1, 0) > 1);
}
"""


@pytest.mark.skipif("WIMM_BUILD" in os.environ, reason="a preloaded library and a sanitizer")
def test_check_notices_bytes_that_come_after_their_count(tmp_path):
    (tmp_path / "early.c").write_text(EARLY)
    library = tmp_path / "early.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "early.c"], check=True)
    status, out, _ = run("check", "--local", "--provider", "tcp", LD_PRELOAD=str(library))
    assert status == 1
    assert "NOT VISIBLE" in out and "still poison" in out


def in_network(script, **extra):
    """Run a script in a network and a view of /sys of its own, where veth pairs stand for NICs."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("namespaces take root, iproute2 and util-linux")
    made = subprocess.run(["unshare", "-n", "ip", "link", "add", "d0", "type", "veth"],
                          check=False, capture_output=True)
    if made.returncode != 0:
        pytest.skip("this kernel has no veth")
    return subprocess.run(["unshare", "-nm", "bash", "-ec", script], check=False, text=True,
                          capture_output=True, timeout=120,
                          env=environment(WIMM=str(WIMM), **extra))


VETHS = """
for i in 0 1; do
    ip link add d$i type veth peer name p$i
    ip addr add 10.119.$i.1/24 dev d$i
    ip link set d$i up
    ip link set p$i up
done
"""


def test_check_of_nics_between_which_nothing_passes_says_after_how_long():
    # An address of one's own is reached through lo, which is down.
    done = in_network(VETHS + "$WIMM check --local --nics 10.119.0.1 --json",
                      WIMM_HELLO_TIMEOUT_MS="700")
    assert done.returncode == 1, done.stderr
    pair = json.loads(done.stdout)["pairs"][0]
    assert not pair["reached"] and not pair["visible"]
    assert "E_PEER_LOST" in pair["reason"] and "10.119.0.1" in pair["reason"]


def test_check_warns_of_unequal_mtu_slow_links_and_other_numa_nodes():
    fake = """
ip link set lo up
fake=$(mktemp -d)
for i in 0 1; do
    mkdir -p $fake/d$i/device
    echo $((1500 + 7500 * i)) > $fake/d$i/mtu
    echo $((1000 + 99000 * i)) > $fake/d$i/speed
    echo $i > $fake/d$i/device/numa_node
done
mount --bind $fake /sys/class/net
$WIMM check --local --nics 10.119.0.1,10.119.1.1 --json
rm -rf $fake
"""
    done = in_network(VETHS + fake)
    if "mount" in done.stderr:
        pytest.skip("no bind mounts here")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [n["device"] for n in result["nics"]] == ["d0", "d1"]
    assert [n["mtu_bytes"] for n in result["nics"]] == [1500, 9000]
    warnings = {(p["nic"], p["target_nic"]): "\n".join(p["warnings"]) for p in result["pairs"]}
    assert "MTU mismatch: d0 has 1500 bytes, the target's d1 9000" in warnings[0, 1]
    assert "cross-NUMA" in warnings[0, 1] and "cross-NUMA" in warnings[1, 0]
    assert "slow link" in warnings[0, 0] and "links of unequal speed" in warnings[1, 0]
    assert "MTU" not in warnings[0, 0] and "NUMA" not in warnings[1, 1]
    assert "measured, the link has 12.50" in warnings[1, 1]    # 100 Gbit/s, which lo is not
