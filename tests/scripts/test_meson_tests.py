# SPDX-License-Identifier: Apache-2.0
"""scripts/meson_tests.py names every case; a program that dies silently is a failure."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("meson_tests", ROOT / "scripts" / "meson_tests.py")
meson_tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(meson_tests)


def lines_of(capsys, result, stdout="", stderr="", returncode=0, name="u/x"):
    bad = meson_tests.report({"name": name, "result": result, "stdout": stdout, "stderr": stderr,
                              "returncode": returncode})
    return bad, [line for line in capsys.readouterr().out.splitlines() if line[:1] != " "]


def test_cases_of_both_streams_are_named_once(capsys):
    bad, lines = lines_of(
        capsys, "FAIL", "[       OK ] a\nskipped: no NIC: eth1\n[  SKIPPED ] b\n",
        "[  FAILED  ] c\n[  SKIPPED ] 1 test(s), listed below:\n[  SKIPPED ] b\n"
        "[  FAILED  ] 1 test(s), listed below:\n[  FAILED  ] c\n", 1)
    assert bad
    assert lines == ["PASS u/x:a", "SKIP u/x:b: no NIC: eth1", "FAIL u/x:c"]


def test_program_that_dies_after_passing_is_a_failure(capsys):
    bad, lines = lines_of(capsys, "FAIL", "[       OK ] a\n", "", -11)
    assert bad
    assert lines == ["PASS u/x:a", "FAIL u/x (FAIL, status -11)"]


def test_failed_case_is_told_with_its_assertion(capsys):
    out = ("[ RUN      ] a\n[       OK ] a\n[ RUN      ] b\n[  ERROR   ] --- 0x1 != 0x2\n"
           "[   LINE   ] --- ../tests/x.c:12: error: Failure!\n[  FAILED  ] b\n")
    assert lines_of(capsys, "FAIL", out, "", 1)[1] == [
        "PASS u/x:a", "FAIL u/x:b: 0x1 != 0x2 at ../tests/x.c:12"]


def test_program_that_a_sanitizer_ends_is_told_with_its_summary(capsys):
    out = "[       OK ] a\nSUMMARY: ThreadSanitizer: data race x.c:3 in f\n"
    assert lines_of(capsys, "FAIL", out, "", 66)[1] == [
        "PASS u/x:a", "FAIL u/x (FAIL, status 66): ThreadSanitizer: data race x.c:3 in f"]


def test_program_over_its_time_is_a_failure(capsys):
    assert lines_of(capsys, "TIMEOUT", returncode=-9) == (
        True, ["FAIL u/x (TIMEOUT, status -9)"])


def test_program_that_skips_gives_its_reason(capsys):
    assert lines_of(capsys, "SKIP", "skipped: no KVM\n", returncode=77) == (
        False, ["SKIP u/x: no KVM"])


def test_program_without_cases_counts_as_one(capsys):
    assert lines_of(capsys, "OK") == (False, ["PASS u/x"])


def test_name_is_without_the_project_and_suite(capsys):
    assert lines_of(capsys, "OK", name="wimm:unit / u/x") == (False, ["PASS u/x"])
