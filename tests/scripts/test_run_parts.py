# SPDX-License-Identifier: Apache-2.0
"""scripts/run_parts.py counts what its parts report, and cannot end green over a failure."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

CMOCKA = r"""printf '%s\n' '[==========] Running 4 test(s).' '[ RUN      ] a_b_c' \
'[       OK ] a_b_c' '[ RUN      ] d_e_f' 'skipped: no second NIC' '[  SKIPPED ] d_e_f' \
'[  FAILED  ] g_h_i' \
'[==========] 4 test(s) run.' '[  PASSED  ] 1 test(s).' '[  FAILED  ] 1 test(s), listed below:' \
'[  FAILED  ] g_h_i' '[  SKIPPED ] 1 test(s), listed below:' '[  SKIPPED ] d_e_f'; exit 1"""
PYTEST = r"""printf '%s\n' 'SKIPPED [2] tests/x.py:5: no GPU' '3 passed, 2 skipped in 0.10s'"""


def run(tmp_path, *lines):
    parts = tmp_path / "parts.txt"
    parts.write_text("".join(line.replace("\n", " ") + "\n" for line in lines))
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "run_parts.py"), "check",
                           "--parts", str(parts), "--logs", str(tmp_path / "logs")],
                          capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.splitlines() or done.stderr.splitlines()


def test_cmocka_lines_are_counted_once_each(tmp_path):
    status, out = run(tmp_path, f"unit check 20 {CMOCKA}".replace("\\\n", ""))
    assert (status, out[-1]) == (1, "1 passed, 1 failed, 1 skipped")
    assert "  no second NIC: d_e_f" in out
    assert "  g_h_i" in out


def test_pytest_totals_and_reasons_are_counted(tmp_path):
    status, out = run(tmp_path, f"py check 20 {PYTEST}")
    assert (status, out[-1]) == (0, "3 passed, 0 failed, 2 skipped")
    assert any(line.startswith("  no GPU: ") for line in out)


def test_pytest_failure_is_counted(tmp_path):
    status, out = run(tmp_path, "py check 20 echo '1 failed, 2 passed, 1 error in 3.2s'; exit 1")
    assert (status, out[-1]) == (1, "2 passed, 2 failed, 0 skipped")


def test_our_own_lines_keep_names_with_colons(tmp_path):
    status, out = run(tmp_path, "u check 20 echo 'PASS a/b:c'; echo 'SKIP a/b:d: no NIC: x'")
    assert (status, out[-1]) == (0, "1 passed, 0 failed, 1 skipped")
    assert "  no NIC: x: a/b:d" in out


def test_part_without_results_counts_by_its_status(tmp_path):
    status, out = run(tmp_path, "good check 20 true", "bad check 20 exit 3",
                      "skip check 20 echo 'skipped: no KVM'; exit 77", "other deep 20 exit 1")
    assert (status, out[-1]) == (1, "1 passed, 1 failed, 1 skipped")
    assert "  bad (exit status 3)" in out
    assert "  no KVM: skip" in out


def test_bad_status_after_passed_tests_is_a_failure(tmp_path):
    status, out = run(tmp_path, "u check 20 echo 'PASS x'; exit 139")
    assert (status, out[-1]) == (1, "1 passed, 1 failed, 0 skipped")


def test_part_over_its_limit_is_ended_and_failed(tmp_path):
    status, out = run(tmp_path, "slow check 1 echo 'PASS x'; cat <(tail -f /dev/null)")
    assert (status, out[-1]) == (1, "1 passed, 1 failed, 0 skipped")
    assert "  slow (over its limit of 1 s)" in out


def test_required_prefix_that_was_skipped_fails_the_run(tmp_path):
    status, out = run(tmp_path, "u check 20 echo 'PASS c/tcp:a'; echo 'SKIP c/tcp:b: no net'",
                      "require check c/tcp")
    assert (status, out[-1]) == (1, "1 passed, 1 failed, 1 skipped")


def test_required_prefix_that_never_ran_fails_the_run(tmp_path):
    status, out = run(tmp_path, "u check 20 echo 'PASS c/tcp:a'", "require check c/sim",
                      "require check c/tcp", "require deep c/verbs")
    assert (status, out[-1]) == (1, "1 passed, 1 failed, 0 skipped")
    assert "  required c/sim: no test of it has passed" in out


def test_list_that_is_malformed_or_empty_is_refused(tmp_path):
    assert run(tmp_path, "name check notanumber true")[0] != 0
    assert run(tmp_path, "a check 5 true", "a check 5 true")[0] != 0
    assert run(tmp_path, "a deep 5 true")[0] != 0


def test_list_of_the_tree_is_well_formed():
    for level in ("check", "deep", "soak"):
        done = subprocess.run([sys.executable, str(ROOT / "scripts" / "run_parts.py"), level,
                               "--list"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout
