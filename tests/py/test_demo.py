# SPDX-License-Identifier: Apache-2.0
"""The demo as a newcomer runs it, with the stand-in model, and its parts."""
import io
import os
import queue
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

import demo  # noqa: F401  (sets the number of BLAS threads before numpy is imported)

import numpy as np

from demo import events, handoff, hosts, main, paged, reference, show

TIMEOUT_S = 240


def run_demo(*args, status=0):
    """Output of demo.main with the stand-in; short unless args say otherwise."""
    command = [sys.executable, "-m", "demo.main", "--model", "seeded", "--days", "2",
               "--tokens", "5", *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert done.returncode == status, done.stdout + done.stderr
    return done


needs_library = pytest.mark.skipif(not (ROOT / "build" / "src" / "libwimm.so").exists(),
                                   reason="the demo runs with the library in build/")


@needs_library
def test_demo_hands_over_every_bit():
    # Goal: two processes over this machine's memory, then over a slow socket: pages, logits and
    # text equal those of one process, the table is there, nothing pretends to be the real model,
    # and no progress bar goes into a file.
    out = run_demo("--rate", "50000000").stdout
    lines = out.splitlines()
    assert "NOT A LANGUAGE MODEL" in lines[0] and "NOT A LANGUAGE MODEL" in lines[-1]
    for what in ("K/V pages", "logits", "text"):
        assert re.search(rf"^  {what} +equal ", out, re.M), out
    tokens = int(re.search(r"prompt +(\d+) tokens", out)[1])
    pages = 8 * paged.page_count(tokens)
    assert re.search(rf"^  pages +{pages} ", out, re.M), out
    assert re.search(rf"^  immediates +{2 * pages + 1:,} ", out, re.M), out
    assert re.search(r"^  GB/s +\d+\.\d\d .*bytes equal$", out, re.M), out
    assert re.search(r"^  transfer not hidden +[\d,]+ us ", out, re.M), out
    assert re.search(r"^  layer by layer .*K/V, logits, text equal$", out, re.M), out
    assert re.search(r"^  all at the end .*K/V, logits, text equal$", out, re.M), out
    assert "all of it is equal" in out
    assert "\r" not in out and "[#" not in out


AUTO = """
import pathlib, sys
import demo  # first: it fixes the number of BLAS threads
from demo import fetch, main
fetch.CACHE = pathlib.Path(sys.argv.pop(1))
sys.exit(main.main())
"""


@needs_library
def test_demo_without_a_reachable_package_is_a_stand_in_from_the_first_line_on(tmp_path):
    # Goal: no model in the cache and no way to get one: the demo runs with the stand-in, and the
    # first and the last line say so and why.
    command = [sys.executable, "-c", AUTO, str(tmp_path), "--days", "2", "--tokens", "3",
               "--rate", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "python"),
                               "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for line in (lines[0], lines[-1]):
        assert main.STAND_IN in line and "cannot be downloaded" in line, done.stdout
    assert "all of it is equal" in done.stdout
    assert "downloading" in done.stderr and "downloading" not in done.stdout
    assert not list(tmp_path.iterdir())


@needs_library
def test_demo_notices_a_lost_page():
    # Goal: one page's bytes are not sent while every immediate arrives: the comparison says so,
    # names the page, and the exit status is 1. The text may well be the same.
    out = run_demo("--lose-page", "--rate", "0", status=1).stdout
    assert re.search(r"^  K/V pages +DIFFERENT ", out, re.M), out
    assert re.search(r"^  logits +DIFFERENT ", out, re.M), out
    assert "the first K/V page that differs: layer 0, tokens" in out
    assert "NOT EQUAL" in out


@needs_library
def test_demo_with_float16_pages_over_tcp_agrees():
    # Goal: halved pages and another provider take the same way.
    out = run_demo("--dtype", "float16", "--provider", "tcp", "--rate", "0").stdout
    assert "tcp on 127.0.0.1" in out
    assert "all of it is equal" in out


@needs_library
def test_demo_that_cannot_run_says_why():
    # Goal: a process of it that fails is shown with its reason; status 2 is neither yes nor no.
    done = run_demo("--provider", "tcp", "--nics", "203.0.113.77:0", "--rate", "0", status=2)
    assert "the demo did not run" in done.stderr and "203.0.113.77" in done.stderr


@needs_library
def test_demo_between_two_hosts_leaves_no_namespace():
    # Goal: two namespaces with four NICs each, made and removed by the demo.
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces take root and iproute2")
    out = run_demo("--hosts", "--rate", "50000000").stdout
    assert f"{hosts.LINKS} NICs" in out and "all of it is equal" in out
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    owners = re.findall(r"^wimm-demo-(\d+)-", listed.stdout, re.M)
    assert all(os.path.exists(f"/proc/{owner}") for owner in owners), listed.stdout


def test_demo_hosts_without_root_say_so(monkeypatch):
    # Goal: no half-made network, a sentence instead.
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(hosts.HostsError, match="root"):
        with hosts.Hosts():
            pass


# --- parts ---

def runs_that_differ_at(layer, token):
    kv = np.zeros((2, 2, 1, 40, 4), np.float32)
    other = kv.copy()
    other[layer, 1, 0, token, 3] = -0.0
    return kv, other


@pytest.mark.parametrize("layer, token, page", [(0, 0, 0), (1, 15, 0), (1, 16, 1), (0, 39, 2)])
def test_demo_finds_the_page_of_a_single_bit(layer, token, page):
    # Goal: the comparison is by bit, page by page; the last page may be short.
    assert main.wrong_pages(*runs_that_differ_at(layer, token)) == [(layer, page)]


def test_demo_of_unequal_lengths_is_different():
    # Goal: fewer tokens are a difference, not a crash.
    kv = np.zeros((2, 2, 1, 40, 4), np.float32)
    assert main.wrong_pages(kv, kv[:, :, :, :39]) != []


def test_demo_run_survives_its_file(tmp_path):
    # Goal: what decode writes is what main compares, bit for bit.
    run = reference.Run(3, [1, 2], np.array([[0.5, -0.0]], np.float32),
                        np.full((1, 2, 1, 4, 2), np.nan, np.float16))
    run.save(tmp_path / "run.npz")
    assert reference.differing(run, reference.Run.load(tmp_path / "run.npz")) == []


class _Bytes:
    """A tokenizer whose tokens are single bytes."""

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


def test_demo_text_shows_no_half_character(capsys):
    # Goal: a character made of several tokens appears once, whole.
    text = events.Text(_Bytes())
    assert not text.started
    for byte in "a\N{EURO SIGN}b".encode():
        text.token(byte)
    said = re.findall(r'"text": "(.*?)"', capsys.readouterr().out)
    assert text.started and said == ["a", "\\u20ac", "b"]


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_demo_screen_draws_a_bar_on_a_terminal_only():
    # Goal: a bar that is wiped when full; in a file nothing of it.
    terminal, file = _Terminal(), io.StringIO()
    for out in (terminal, file):
        screen = show.Screen(out)
        screen.bar("", 1, 2, "computing")
        screen.bar("", 2, 2, "computing")
        screen.grow("  some text that is long enough to be wrapped " * 4)
        screen.end_text()
    assert " 50 % computing" in terminal.getvalue()
    assert "\r" not in file.getvalue()
    assert all(line.startswith(" " * show.LABEL) for line in file.getvalue().splitlines())
    assert max(map(len, file.getvalue().splitlines())) <= 100


@pytest.mark.parametrize("ns, text", [(1_234_567, "1,235 us"), (12_345_678, "12.3 ms"),
                                      (2_345_678_901, "2.35 s")])
def test_demo_durations_read_as_people_say_them(ns, text):
    # Goal: the unit fits the number.
    assert show.duration(ns) == text


def test_demo_sizes_count_in_tens():
    # Goal: 10^6 bytes are 1 MB.
    assert [show.size(n) for n in (12, 1_500, 2_000_000, 3e9)] == ["12 B", "1.5 kB", "2.0 MB",
                                                                   "3.0 GB"]


def test_demo_child_that_prints_rubbish_is_a_failure():
    # Goal: what a process says is read as events; anything else ends the demo with its words.
    said = queue.Queue()
    with handoff._Child(said, "this"):  # a module that prints a poem
        with pytest.raises(handoff.ChildError, match="The Zen of Python"):
            list(handoff._events(said))


def test_demo_child_that_fails_shows_its_errors():
    # Goal: the end of its standard error is in the message.
    said = queue.Queue()
    with handoff._Child(said, "no_such_module"):
        with pytest.raises(handoff.ChildError, match="no_such_module"):
            list(handoff._events(said))
