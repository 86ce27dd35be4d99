# SPDX-License-Identifier: Apache-2.0
"""The table of a run of tests/gpu/run: each target with its figure and PASS or FAIL, then the other
figures, then what each part said. Ends with 1 if a target was missed or a check failed.

  table.py LOG
"""
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

MINUTES = 6


@dataclass
class Run:
    head: str = ""
    figures: dict[str, tuple[float, str]] = field(default_factory=dict)
    ok: dict[str, int] = field(default_factory=dict)        #: checks that passed, by part
    failed: list[str] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)      #: parts
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)  #: judged by the part
    total_s: int | None = None

    def __getitem__(self, name: str) -> float:
        return self.figures[name][0]


def read(text: str) -> Run:
    run, part = Run(), "start"
    for line in text.splitlines():
        if match := re.match(r"figure (\S+) (\S+) (.*)", line):
            run.figures[match[1]] = float(match[2]), match[3].strip()
        elif re.match(r"ok\s", line):
            run.ok[part] = run.ok.get(part, 0) + 1
        elif match := re.match(r"\| (.+) \| (.+) \| (.+) \| (PASS|FAIL) \|", line):
            run.rows.append((f"{part}: {match[1]}", match[2], match[3], match[4]))
        elif line.startswith("FAILED"):
            run.failed.append(f"{part}: {line[6:].strip()}")
        elif match := re.match(r"# part (\S+): ", line):
            part = match[1]
        elif match := re.match(r"# end (\S+): (.*)", line):
            run.ends[match[1]] = match[2]
            if not re.match(r"skipped|status (0|77),", match[2]):
                run.failed.append(f"{match[1]}: {match[2]}")
        elif match := re.match(r"# total (\d+) s", line):
            run.total_s = int(match[1])
        elif match := re.match(r"# (\d{4}-\d\d-\d\d .*)", line):
            run.head = match[1]
    return run


def at_least(least: float, unit: str) -> tuple[str, Callable[[float], bool]]:
    return f">= {least:,.10g} {unit}".strip(), lambda value: value >= least


def at_most(most: float, unit: str) -> tuple[str, Callable[[float], bool]]:
    return f"<= {most:,.10g} {unit}".strip(), lambda value: value <= most


def ratio(run: Run, name: str, of: str) -> float:
    return run[name] / run[of]


def slower(run: Run) -> float:
    """What memory of GPUs through slots can reach: the link's own rate, or 55 GB/s."""
    return min(run["tcp_host_to_host_64MiB"], 55.0)


#: What, its figure, how it is shown beside what it is held against, and the target.
TARGETS: list[tuple[str, Callable[[Run], float], Callable[[Run], str],
                    tuple[str, Callable[[float], bool]]]] = [
    ("watcher: a whole round over the raw one of a spinning loop, p50",
     lambda r: r["round_watcher_p50"] - r["round_raw_p50"],
     lambda r: f"{r['round_watcher_p50']:.2f} us, raw {r['round_raw_p50']:.2f} us",
     at_most(2, "us")),
    ("a kernel released by a mirror, one process, two streams: rounds without a stale word",
     lambda r: r["mirror_releases_checked"], lambda r: f"{r['mirror_round']:.1f} us a round",
     at_least(1e6, "rounds")),
    ("a planted early release in one process: words seen wrong",
     lambda r: r["mirror_planted_release_seen"], lambda r: "", at_least(1, "")),
    ("a kernel released by immediates of another process: rounds, push",
     lambda r: r["direct_releases_checked"], lambda r: "", at_least(1e4, "rounds")),
    ("the same, pull", lambda r: r["pull_releases_checked"], lambda r: "",
     at_least(1e4, "rounds")),
    ("a planted early release between processes: words seen wrong",
     lambda r: min(r["direct_planted_release_seen"], r["pull_planted_release_seen"]),
     lambda r: "push and pull", at_least(1, "")),
    ("a single write of 256 MiB against cudaMemcpy within the card",
     lambda r: ratio(r, "direct_single_256MiB", "copy_256MiB_engine"),
     lambda r: f"{r['direct_single_256MiB']:.0f} of {r['copy_256MiB_engine']:.0f} GB/s",
     at_least(0.95, "")),
    ("pages of 16 KiB, all SMs", lambda r: r["direct_pages_16KiB_all_sms"], lambda r: "GB/s",
     at_least(1400, "GB/s")),
    ("pages of 16 KiB, 64 SMs", lambda r: r["direct_pages_16KiB_64_sms"], lambda r: "GB/s",
     at_least(850, "GB/s")),
    ("pages of 4 KiB, 64 SMs", lambda r: r["direct_pages_4KiB_64_sms"], lambda r: "GB/s",
     at_least(520, "GB/s")),
    ("8 B + immediate to the receiver's callback, driven, p50",
     lambda r: r["direct_8B_to_callback_driven_p50"],
     lambda r: f"p99 {r['direct_8B_to_callback_driven_p99']:.1f} us", at_most(12, "us")),
    ("8 B + immediate to the receiver's callback, own threads, p50",
     lambda r: r["direct_8B_to_callback_threads_p50"],
     lambda r: f"p99 {r['direct_8B_to_callback_threads_p99']:.1f} us", at_most(12, "us")),
    *[(f"through slots over tcp, {what}, against the link from host to host",
       lambda r, name=name: r[name] / slower(r),
       lambda r, name=name: f"{r[name]:.2f} of {slower(r):.2f} GB/s", at_least(0.9, ""))
      for what, name in (("GPU to host", "tcp_gpu_to_host_64MiB"),
                         ("host to GPU", "tcp_host_to_gpu_64MiB"),
                         ("GPU to GPU", "tcp_gpu_to_gpu_64MiB"))],
    ("random lengths and places, checked by kernels",
     lambda r: r["direct_random_seconds"] + r["pull_random_seconds"] + r["staged_random_seconds"],
     lambda r: f"{r['direct_random_writes_checked']:,.0f} push, "
               f"{r['pull_random_writes_checked']:,.0f} pull, "
               f"{r['staged_random_writes_checked']:,.0f} staged writes right",
     at_least(60, "s")),
]


def target_rows(run: Run) -> list[tuple[str, str, str, str]]:
    rows = []
    for what, figure, beside, (limit, good) in TARGETS:
        try:
            value = figure(run)
        except KeyError as missing:
            rows.append((what, f"no figure {missing}", limit, "FAIL"))
            continue
        shown = f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
        rows.append((what, f"{shown} {beside(run)}".strip(), limit,
                     "PASS" if good(value) else "FAIL"))
    rows += run.rows
    if not any(row[0].startswith("kv: ") for row in run.rows):
        rows.append(("kv: a cache layer by layer", run.ends.get("kv", "did not run"), "", "FAIL"))
    for tool in ("memcheck", "racecheck"):
        end = run.ends.get(tool, "did not run")
        rows.append((f"compute-sanitizer, {tool}", end, "no error",
                     "SKIP" if end.startswith("skipped") else
                     "PASS" if end.startswith("status 0,") else "FAIL"))
    if run.total_s is not None:
        rows.append(("all of it", f"{run.total_s} s", f"< {MINUTES * 60} s",
                     "PASS" if run.total_s < MINUTES * 60 else "FAIL"))
    return rows


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    run = read(Path(sys.argv[1]).read_text())
    rows = target_rows(run)
    print(f"\n## {run.head}\n\n| what | figure | target | |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print("\n| other figures | |\n|---|---|")
    for name, (value, unit) in run.figures.items():
        print(f"| {name} | {value:,.2f} {unit} |")
    print("\n| part | checks passed | end |\n|---|---|---|")
    for part, end in run.ends.items():
        print(f"| {part} | {run.ok.get(part, 0)} | {end} |")
    for line in run.failed:
        print(f"\nFAILED {line}")
    missed = sum(row[3] == "FAIL" for row in rows)
    print(f"\n{missed} targets missed, {len(run.failed)} checks or parts failed")
    return int(missed > 0 or bool(run.failed))


if __name__ == "__main__":
    sys.exit(main())
