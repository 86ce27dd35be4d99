#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the parts of one level of scripts/parts.txt one after the other and add up what they report.

A part is a command. Its output is read for result lines of cmocka, of pytest and of our scripts
("PASS name", "FAIL name", "SKIP name: reason"); a part without any counts as one test by its exit
status (77 = skipped). The last line is "N passed, N failed, N skipped".
"""

import argparse
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIP_STATUS = 77
TAIL_LINES = 60
WHY_CHARS = 160


@dataclasses.dataclass
class Part:
    name: str
    level: str
    limit_s: int
    command: str


@dataclasses.dataclass
class Outcome:
    passed: list = dataclasses.field(default_factory=list)
    failed: list = dataclasses.field(default_factory=list)
    skipped: list = dataclasses.field(default_factory=list)  # (name, reason)
    why: dict = dataclasses.field(default_factory=dict)  # of a failed one, where it was said

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.why.update(other.why)


def load(path):
    """Parts and the required prefixes, as (level, prefix, part or "" for all of the level)."""
    parts, required = [], []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        fields = line.split(None, 3)
        if fields[0] == "require" and len(fields) >= 3 and not fields[2].isdigit():
            inside = fields[3].split() if len(fields) == 4 else [""]
            required += [(fields[1], fields[2], part) for part in inside]
        elif len(fields) == 4 and fields[2].isdigit():
            parts.append(Part(fields[0], fields[1], int(fields[2]), fields[3]))
        else:
            sys.exit(f"{path}:{number}: want 'name level limit_s command' or "
                     "'require level prefix [part ...]'")
    names = [part.name for part in parts]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        sys.exit(f"{path}: part named twice: {', '.join(sorted(twice))}")
    known = {(part.level, part.name) for part in parts}
    for level, prefix, part in required:
        if part and (level, part) not in known:
            sys.exit(f"{path}: {prefix} is required of {part}, which level {level} does not have")
    return parts, required


RESULTS = [
    (re.compile(r"^\[       OK \] (\S+)"), "passed"),
    (re.compile(r"^\[  FAILED  \] (?!\d+ test\(s\))(\S+)"), "failed"),
    (re.compile(r"^\[  SKIPPED \] (?!\d+ test\(s\))(\S+)"), "skipped"),
    (re.compile(r"^PASS (\S+)"), "passed"),
    (re.compile(r"^FAIL (\S+?)(?::? +(.*))?$"), "failed"),
    (re.compile(r"^SKIP (\S+?)(?::\s+(.*))?$"), "skipped"),
]
REASON = re.compile(r"^skipped: (.+)")
PYTEST_SKIP = re.compile(r"^SKIPPED \[(\d+)\] (\S+?):\d+: (.*)")
PYTEST_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - (.*))?$")
PYTEST_TOTAL = re.compile(r"^=* ?((?:\d+ \w+,? ?)+) in [\d.]+s")


def read_pytest_total(text, name, outcome):
    """Adds the counts of pytest's last line; its skips and failures have come by name before."""
    counts = {word.rstrip("s"): int(n) for n, word in re.findall(r"(\d+) (\w+)", text)}
    outcome.passed += [f"{name}:pytest"] * (counts.get("passed", 0) + counts.get("xfailed", 0))
    bad = counts.get("failed", 0) + counts.get("error", 0) + counts.get("xpassed", 0)
    told = sum(1 for failed in outcome.failed if failed.startswith(f"{name}:"))
    outcome.failed += [f"{name}:pytest"] * max(bad - told, 0)
    told = sum(1 for skip in outcome.skipped if skip[0].startswith(f"{name}:"))
    rest = counts.get("skipped", 0) - told
    outcome.skipped += [(f"{name}:pytest", "no reason shown; run pytest with -rs")] * max(rest, 0)


def read_results(lines, name):
    outcome = Outcome()
    reason = ""
    for line in lines:
        line = line.rstrip("\n")
        if match := REASON.match(line):
            reason = match[1]
        if match := PYTEST_SKIP.match(line):
            outcome.skipped += [(f"{name}:{match[2]}", match[3])] * int(match[1])
        elif match := PYTEST_FAILED.match(line):
            outcome.failed.append(f"{name}:{match[1]}")
            outcome.why[outcome.failed[-1]] = match[2]
        elif match := PYTEST_TOTAL.match(line):
            read_pytest_total(match[1], name, outcome)
        for pattern, kind in RESULTS:
            match = pattern.match(line)
            if not match:
                continue
            if kind == "skipped":
                given = match[2] if pattern.groups > 1 and match[2] else reason
                skip = (match[1], given or "no reason given")
                if skip[0] not in [known for known, _ in outcome.skipped]:  # cmocka lists twice
                    outcome.skipped.append(skip)
                reason = ""
            elif kind == "failed":
                if match[1] not in outcome.failed:  # cmocka lists failures twice
                    outcome.failed.append(match[1])
                if pattern.groups > 1 and match[2]:
                    outcome.why[match[1]] = match[2]
            else:
                outcome.passed.append(match[1])
            break
    return outcome


def stop(process):
    """Ends the part's whole process group: its tests may have started processes of their own."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sig)
        except ProcessLookupError:
            return
        try:
            process.wait(10)
            return
        except subprocess.TimeoutExpired:
            continue


def run(part, log_path):
    """The part's exit status, or None when it ran over its limit."""
    with open(log_path, "wb") as log:
        process = subprocess.Popen(["bash", "-c", part.command], cwd=ROOT, stdout=log,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   start_new_session=True)
        try:
            return process.wait(part.limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                stop(process)


def judge(part, status, lines):
    outcome = read_results(lines, part.name)
    counted = outcome.passed or outcome.failed or outcome.skipped
    if status is None:
        outcome.failed.append(f"{part.name} (over its limit of {part.limit_s} s)")
    elif status == SKIP_STATUS and not outcome.failed:
        if not outcome.skipped:
            reasons = [match[1] for line in lines if (match := REASON.match(line))]
            outcome.skipped.append((part.name, reasons[-1] if reasons else "no reason given"))
    elif status != 0 and not outcome.failed:
        outcome.failed.append(f"{part.name} (exit status {status})")
    elif status == 0 and not counted:
        outcome.passed.append(part.name)
    return outcome


def check_required(required, outcomes):
    """A provider that is listed must have passed something and skipped nothing: in each part that
    the line names, else in all of the level together. `outcomes`: that of each part."""
    problems = []
    for prefix, part in required:
        seen = [outcomes[part]] if part else outcomes.values()
        what = f"required {prefix}" + (f" in {part}" if part else "")
        for outcome in seen:
            problems += [f"{what} was skipped: {name}: {reason}"
                         for name, reason in outcome.skipped if name.startswith(prefix)]
        if not any(name.startswith(prefix) for outcome in seen for name in outcome.passed):
            problems.append(f"{what}: no test of it has passed")
    return problems


def summary(times, total, out):
    out.write("\ntime of each part\n")
    for name, seconds in times:
        out.write(f"  {seconds:8.1f} s  {name}\n")
    out.write(f"  {sum(seconds for _, seconds in times):8.1f} s  together\n")
    if total.skipped:
        out.write("\nskipped, by reason\n")
        for reason in sorted({reason for _, reason in total.skipped}):
            names = [name for name, why in total.skipped if why == reason]
            shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            out.write(f"  {reason}: {shown}\n")
    if total.failed:
        out.write("\nfailed\n")
        for name in total.failed:
            why = total.why.get(name)
            out.write(f"  {name}" + (f": {why[:WHY_CHARS]}" if why else "") + "\n")
    out.write(f"\n{len(total.passed)} passed, {len(total.failed)} failed, "
              f"{len(total.skipped)} skipped\n")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("level", help="check, deep, soak, vm-full: the level to run")
    parser.add_argument("--only", action="append", default=[], metavar="PART",
                        help="only this part (may be given several times)")
    parser.add_argument("--list", action="store_true", help="print the parts and stop")
    parser.add_argument("--parts", type=pathlib.Path, default=ROOT / "scripts" / "parts.txt")
    parser.add_argument("--logs", type=pathlib.Path, default=ROOT / "build-logs")
    return parser.parse_args()


def main():
    args = parse_args()
    parts, required = load(args.parts)
    parts = [part for part in parts if part.level == args.level]
    required = [(prefix, part) for level, prefix, part in required if level == args.level]
    if args.only:
        unknown = set(args.only) - {part.name for part in parts}
        if unknown:
            sys.exit(f"no part {', '.join(sorted(unknown))} in level {args.level}")
        parts = [part for part in parts if part.name in args.only]
        required = [(prefix, part) for prefix, part in required if part in args.only]
    if not parts:
        sys.exit(f"level {args.level} has no parts in {args.parts}")
    if args.list:
        for part in parts:
            print(f"{part.name:20} {part.limit_s:5} s  {part.command}")
        return 0
    args.logs.mkdir(parents=True, exist_ok=True)
    outcomes, total, times = {}, Outcome(), []
    for part in parts:
        print(f"== {part.name}", flush=True)
        log_path = args.logs / f"{part.name}.log"
        start = time.monotonic()
        status = run(part, log_path)
        seconds = time.monotonic() - start
        lines = log_path.read_text(errors="replace").splitlines()
        outcome = judge(part, status, lines)
        if outcome.failed:
            print("\n".join(lines[-TAIL_LINES:]))
            print(f"   whole output: {log_path}")
        print(f"   {seconds:.1f} s: {len(outcome.passed)} passed, {len(outcome.failed)} failed, "
              f"{len(outcome.skipped)} skipped", flush=True)
        times.append((part.name, seconds))
        outcomes[part.name] = outcome
        total.add(outcome)
    total.failed += check_required(required, outcomes)
    summary(times, total, sys.stdout)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
