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


def run(tmp_path, *lines, only=()):
    parts = tmp_path / "parts.txt"
    parts.write_text("".join(line.replace("\n", " ") + "\n" for line in lines))
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "run_parts.py"), "check",
                           "--parts", str(parts), "--logs", str(tmp_path / "logs"),
                           *(f"--only={part}" for part in only)],
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


def test_failures_are_listed_with_what_was_said_of_them(tmp_path):
    status, out = run(tmp_path, "u check 20 echo 'FAIL a/b:c: 1 != 2'; "
                      "echo 'FAIL a/d (TIMEOUT, status -9)'; exit 1",
                      "py check 20 echo 'FAILED t/x.py::y[a b] - no: z'; "
                      "echo '1 failed, 2 passed in 3.2s'; exit 1")
    assert (status, out[-1]) == (1, "2 passed, 3 failed, 0 skipped")
    assert out[-5:-2] == ["  a/b:c: 1 != 2", "  a/d: (TIMEOUT, status -9)",
                          "  py:t/x.py::y[a b]: no: z"]


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


TWO = ("a check 20 echo 'PASS c/tcp:x'; echo 'PASS c/sim:x'", "b check 20 echo 'PASS c/sim:x'")


def test_required_prefix_must_pass_in_each_part_that_its_line_names(tmp_path):
    status, out = run(tmp_path, *TWO, "require check c/tcp")
    assert (status, out[-1]) == (0, "3 passed, 0 failed, 0 skipped")
    status, out = run(tmp_path, *TWO, "require check c/tcp a b", "require check c/sim a b")
    assert (status, out[-1]) == (1, "3 passed, 1 failed, 0 skipped")
    assert "  required c/tcp in b: no test of it has passed" in out


def test_required_prefix_skipped_in_one_named_part_fails_the_run(tmp_path):
    status, out = run(tmp_path, TWO[0], "b check 20 echo 'PASS c/tcp:x'; echo 'SKIP c/tcp:y: why'",
                      "require check c/tcp a", "require check c/tcp b")
    assert (status, out[-1]) == (1, "3 passed, 1 failed, 1 skipped")
    assert "  required c/tcp in b was skipped: c/tcp:y: why" in out


def test_required_part_that_cannot_run_fails_the_run(tmp_path):
    status, out = run(tmp_path, "vm check 20 echo 'skipped: no kernel'; exit 77",
                      "require check c/verbs vm")
    assert (status, out[-1]) == (1, "0 passed, 1 failed, 1 skipped")


def test_requirement_of_a_part_holds_when_it_is_run_alone(tmp_path):
    lines = (*TWO, "require check c/tcp a b", "require check c/other")
    assert run(tmp_path, *lines, only=["a"])[0] == 0
    assert run(tmp_path, *lines, only=["b"])[0] == 1


def test_requirement_of_a_part_that_is_not_there_is_refused(tmp_path):
    status, out = run(tmp_path, *TWO, "require check c/tcp c")
    assert status != 0 and "c/tcp is required of c, which level check does not have" in out[-1]


def listed(level):
    """What the tree's list requires, as (prefix, part)."""
    lines = (ROOT / "scripts" / "parts.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line.startswith(f"require {level} ")]
    return {(row[2], part) for row in rows for part in row[3:] or [""]}


def test_tree_s_deep_parts_may_skip_no_provider():
    for part in ("asan", "tsan"):
        for suite in ("contract", "faults"):
            for provider in ("host", "sim", "tcp", "tcp-routed"):
                assert (f"{suite}/{provider}", part) in listed("deep")
    assert {("contract/verbs", "vm-loss"), ("vm/verbs", "vm-loss")} <= listed("deep")


def test_list_that_is_malformed_or_empty_is_refused(tmp_path):
    assert run(tmp_path, "name check notanumber true")[0] != 0
    assert run(tmp_path, "a check 5 true", "a check 5 true")[0] != 0
    assert run(tmp_path, "a deep 5 true")[0] != 0


def test_list_of_the_tree_is_well_formed():
    for level in ("check", "deep", "soak"):
        done = subprocess.run([sys.executable, str(ROOT / "scripts" / "run_parts.py"), level,
                               "--list"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout
