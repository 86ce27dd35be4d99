#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the tests of a Meson build folder and print one line a test case:
"PASS program:case", "FAIL program:case: reason" or "SKIP program:case: reason".

A program that ends badly without having named a failed case is itself one failure. "--without
PATTERN" leaves out tests whose name fits the pattern; other arguments after the folder go to "meson
test".
"""

import argparse
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys

CASE = re.compile(r"^\[( +OK |  FAILED  |  SKIPPED )\] (?!\d+ test\(s\))(\S+)")
REASON = re.compile(r"^skipped: (.+)")
# Of cmocka's assertions, and of the sanitizers.
ERROR = re.compile(r"^\[  ERROR   \] --- (?!Failure!)(.+)")
PLACE = re.compile(r"^\[   LINE   \] --- (.+?): error: Failure!")
SANITIZER = re.compile(r"^SUMMARY: (.+)|^.*(runtime error: .+)")
SANITIZERS = {
    "ASAN_OPTIONS": "allocator_may_return_null=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "allocator_may_return_null=1:second_deadlock_stack=1:suppressions="
                    + str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "tsan.supp"),
}


def cases_of(record):
    """(kind, case, reason) of each case a program has reported."""
    found, reason, seen = [], "", set()
    text = record.get("stdout") or ""
    text += "\n" + (record.get("stderr") or "")
    for line in text.splitlines():
        if match := REASON.match(line):
            reason = match[1]
        match = CASE.match(line)
        if not match or (match[1], match[2]) in seen:
            continue
        seen.add((match[1], match[2]))
        kind = {"OK": "PASS", "FAILED": "FAIL", "SKIPPED": "SKIP"}[match[1].strip()]
        found.append((kind, match[2], reason))
        if kind == "SKIP":
            reason = ""
    return found, reason


def why_failed(record, case=""):
    """": REASON" of a case, or of the whole program; nothing where none was printed."""
    text = (record.get("stdout") or "") + "\n" + (record.get("stderr") or "")
    said, inside, where = [], False, ""
    for line in text.splitlines():
        if line.startswith("[ RUN      ] "):
            inside = line.split()[-1] == case
        if match := SANITIZER.match(line):
            said.append(match[1] or match[2])
        elif inside and (match := ERROR.match(line)):
            said.append(match[1])
        elif inside and (match := PLACE.match(line)):
            where = f" at {match[1]}"
    return f": {said[0]}{where}" if said else where and f": failed{where}"


def report(record):
    """Prints the lines of one program; true when something of it failed."""
    name = record["name"].split(" / ")[-1]  # Meson puts "project:suite / " in front
    cases, reason = cases_of(record)
    failed = record["result"] in ("FAIL", "ERROR", "TIMEOUT", "INTERRUPT", "UNEXPECTEDPASS")
    named = False
    for kind, case, why in cases:
        named = named or kind == "FAIL"
        more = f": {why or 'no reason given'}" if kind == "SKIP" else ""
        print(f"{kind} {name}:{case}" + (why_failed(record, case) if kind == "FAIL" else more))
    if record["result"] == "SKIP" and not any(kind == "SKIP" for kind, _, _ in cases):
        print(f"SKIP {name}: {reason or 'no reason given'}")
    elif failed and not named:
        print(f"FAIL {name} ({record['result']}, status {record.get('returncode')})"
              + why_failed(record))
    elif not cases and not failed:
        print(f"PASS {name}")
    if failed:
        text = (record.get("stdout") or "") + (record.get("stderr") or "")
        print("".join(f"    {line}\n" for line in text.splitlines()[-80:]), end="")
    return failed or named


def names_without(build, patterns):
    """What "meson test" is to run, or nothing when that is everything."""
    if not patterns:
        return []
    listed = subprocess.run(["meson", "test", "-C", str(build), "--no-rebuild", "--list"],
                            check=True, capture_output=True, text=True).stdout.splitlines()
    names = [line.split(" / ")[-1] for line in listed if " / " in line]
    return [name for name in names
            if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--without", action="append", default=[], metavar="PATTERN")
    args, rest = parser.parse_known_args()
    build = args.build
    env = dict(os.environ)
    for key, value in SANITIZERS.items():
        env.setdefault(key, value)
    # Most tests wait more than they compute.
    env.setdefault("MESON_TESTTHREADS", str((os.cpu_count() or 1) * 3 // 2))
    log = build / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    status = subprocess.run(["meson", "test", "-C", str(build), "--no-rebuild", *rest,
                             *names_without(build, args.without)],
                            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if not log.exists():
        print(status.stdout)
        return 1
    records = [json.loads(line) for line in log.read_text().splitlines() if line.strip()]
    if not records:
        print(status.stdout + "no test was run")
        return 1
    bad = [report(record) for record in records]
    if status.returncode != 0 and not any(bad):
        print(status.stdout)
        return 1
    return 1 if any(bad) else 0


if __name__ == "__main__":
    sys.exit(main())
