# SPDX-License-Identifier: Apache-2.0
"""`wimm`, `wimm info`: what a person and a program read about this machine."""

import re
import subprocess
import sys

from conftest import ROOT, run, run_json


def table_names():
    """Names in the table of settings."""
    text = (ROOT / "src" / "base" / "config_table.h").read_text()
    return re.findall(r'^\tX\(\w+, "(\w+)"', text, re.M)


def test_info_json_has_providers_limits_and_settings():
    info = run_json("info")
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["version"])
    providers = {p["name"]: p for p in info["providers"]}
    assert providers["tcp"]["in_build"] and providers["tcp"]["nics"]
    for nic in providers["tcp"]["nics"]:
        assert nic["status"] == "OK"
        assert nic["device"] and nic["capabilities"]["post_depth"] > 0
        assert nic["numa_node"] is None or nic["numa_node"] >= 0
    for name in ("verbs", "fabric", "host"):
        if not providers[name]["in_build"]:
            assert providers[name]["state"] == "not in this build"
    cuda = {m["kind"]: m["state"] for m in info["memory"]}["cuda"]
    assert cuda == "ready" or "cuda" in cuda
    limits = {limit["name"]: limit for limit in info["limits"]}
    assert "ulimit -l" in limits["RLIMIT_MEMLOCK"]["fix"]
    assert "ulimit -n" in limits["RLIMIT_NOFILE"]["fix"]


def test_info_lists_every_setting_of_the_table_with_its_source():
    info = run_json("info", WIMM_SPIN_US="7", WIMM_NICS="127.0.0.1")
    rows = {row["name"]: row for row in info["settings"]}
    assert list(rows) == table_names()
    assert (rows["spin_us"]["value"], rows["spin_us"]["source"]) == (7, "environment")
    assert (rows["nics"]["value"], rows["nics"]["source"]) == ("127.0.0.1", "environment")
    assert (rows["provider"]["value"], rows["provider"]["source"]) == ("tcp", "default")
    for row in rows.values():
        assert row["env"] == "WIMM_" + row["name"].upper()
        assert len(row["help"]) > 10


def test_info_text_names_what_the_json_has():
    status, out, _ = run("info", WIMM_POST_BATCH="9")
    assert status == 0
    for words in ("Providers", "tcp", "not in this build", "RLIMIT_NOFILE", "post_batch = 9",
                  "1 of ", "Peers of this machine", "wimm_alloc() is shared"):
        assert words in out


def test_info_says_what_happens_to_peers_of_this_machine():
    info = run_json("info")
    assert info["same_host"]["setting"] == "auto"
    assert "through its memory" in info["same_host"]["meaning"]
    off = run_json("info", WIMM_SAME_HOST="off", WIMM_HOST_WAY="ring")
    assert "over NICs" in off["same_host"]["meaning"]
    host = next(p for p in off["providers"] if p["name"] == "host")
    assert host["nics"][0]["note"] == "memory goes through the ring: setting host_way"


def test_info_settings_text_gives_range_default_and_meaning():
    status, out, _ = run("info", "--settings")
    assert status == 0
    for name in table_names():
        assert f"  {name}  (WIMM_{name.upper()})" in out
    assert "now 20 us from default; default 20; 0 to 1000000" in out


def test_wimm_without_or_with_a_wrong_command_says_what_there_is():
    status, out, err = run()
    assert (status, out) == (2, "") and "wimm perf" in err
    status, out, err = run("prf")
    assert (status, out) == (2, "") and 'there is no command "prf"' in err
    status, out, _ = run("--help")
    assert status == 0 and "wimm info" in out
    status, out, _ = run("--version")
    assert status == 0 and re.fullmatch(r"wimm \d+\.\d+\.\d+\n", out)
    status, _, err = run("info", "more")
    assert status == 2 and '"more" is too much' in err


def test_settings_page_is_what_the_library_says():
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "gen_settings.py"), "--check"],
                          check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
