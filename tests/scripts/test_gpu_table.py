# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/table.py, which nobody without a GPU runs."""
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("gpu_table", ROOT / "tests" / "gpu" / "table.py")
assert spec is not None and spec.loader is not None
table = importlib.util.module_from_spec(spec)
sys.modules["gpu_table"] = table
spec.loader.exec_module(table)

GOOD = {
    "round_watcher_p50": 4.2, "round_raw_p50": 3.0, "mirror_releases_checked": 1e6,
    "mirror_round": 6, "mirror_planted_release_seen": 3, "direct_releases_checked": 1e4,
    "pull_releases_checked": 1e4, "direct_planted_release_seen": 9,
    "pull_planted_release_seen": 9, "direct_single_256MiB": 2025, "copy_256MiB_engine": 2060,
    "direct_pages_16KiB_all_sms": 1791, "direct_pages_16KiB_64_sms": 1600,
    "direct_pages_4KiB_64_sms": 1421, "direct_8B_to_callback_driven_p50": 10.2,
    "direct_8B_to_callback_driven_p99": 24, "direct_8B_to_callback_threads_p50": 11.7,
    "direct_8B_to_callback_threads_p99": 45, "tcp_host_to_host_64MiB": 4,
    "tcp_gpu_to_host_64MiB": 4.1, "tcp_host_to_gpu_64MiB": 3.7, "tcp_gpu_to_gpu_64MiB": 4.9,
    "direct_random_seconds": 24, "pull_random_seconds": 12, "staged_random_seconds": 24,
    "direct_random_writes_checked": 5, "pull_random_writes_checked": 5,
    "staged_random_writes_checked": 5,
}

KV = ["# part kv: x", "| total, p50 | 1098.69 ms | <= 1117.33 | PASS |",
      "| the same, p90 | 109.52 us | | |", "# end kv: status 0, 20 s"]


def run_of(figures, lines=()):
    text = ["# 2026-11-30 NVIDIA H200, 580", "# part direct: x"]
    text += [f"figure {name} {value} us" for name, value in figures.items()]
    text += ["ok a case", *lines, "# end direct: status 0, 9 s", *KV,
             "# end memcheck: status 0, 5 s", "# end racecheck: skipped, not there",
             "# total 300 s"]
    return "\n".join(text)


def outcome(tmp_path, monkeypatch, capsys, text):
    log = tmp_path / "log"
    log.write_text(text)
    monkeypatch.setattr(sys, "argv", ["table.py", str(log)])
    code = table.main()
    return code, capsys.readouterr().out


def test_a_good_run_passes_with_every_target_beside_its_figure(tmp_path, monkeypatch, capsys):
    code, out = outcome(tmp_path, monkeypatch, capsys, run_of(GOOD))
    assert code == 0 and "| FAIL |" not in out
    assert "1.20 4.20 us, raw 3.00 us | <= 2 us | PASS" in out
    assert "| direct | 1 | status 0, 9 s |" in out
    assert "racecheck | skipped, not there | no error | SKIP" in out
    assert "kv: total, p50 | 1098.69 ms | <= 1117.33 | PASS" in out


@pytest.mark.parametrize("was, instead", [
    (KV[1], KV[1].replace("PASS", "FAIL")), (KV[1] + "\n", ""),
    ("\n".join(KV), "# end kv: status 77, 0 s")], ids=["missed", "no rows", "skipped"])
def test_a_cache_that_is_late_or_not_sent_fails_the_run(tmp_path, monkeypatch, capsys, was,
                                                         instead):
    text = run_of(GOOD)
    assert was in text
    code, out = outcome(tmp_path, monkeypatch, capsys, text.replace(was, instead))
    assert code == 1 and "1 targets missed" in out


@pytest.mark.parametrize("name, value", [
    ("round_watcher_p50", 5.1), ("direct_pages_4KiB_64_sms", 519), ("tcp_host_to_gpu_64MiB", 3.5),
    ("direct_single_256MiB", 1900), ("mirror_planted_release_seen", 0),
    ("pull_releases_checked", 9999), ("direct_8B_to_callback_threads_p50", 12.1)])
def test_a_missed_target_fails_the_run(tmp_path, monkeypatch, capsys, name, value):
    code, out = outcome(tmp_path, monkeypatch, capsys, run_of({**GOOD, name: value}))
    assert code == 1 and "1 targets missed" in out


def test_a_figure_that_is_not_there_fails_the_run(tmp_path, monkeypatch, capsys):
    figures = {name: value for name, value in GOOD.items() if name != "pull_releases_checked"}
    code, out = outcome(tmp_path, monkeypatch, capsys, run_of(figures))
    assert code == 1 and "no figure 'pull_releases_checked'" in out


@pytest.mark.parametrize("line", ["FAILED a case: x.c:1: y", "# end watch: status 124, 60 s"])
def test_a_failed_check_or_part_fails_the_run(tmp_path, monkeypatch, capsys, line):
    code, out = outcome(tmp_path, monkeypatch, capsys, run_of(GOOD, [line]))
    assert code == 1 and "1 checks or parts failed" in out
