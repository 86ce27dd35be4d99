# SPDX-License-Identifier: Apache-2.0
"""Runs the demo's processes, shows what they say, and collects it."""
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

from demo import reference

ROOT = Path(__file__).resolve().parent.parent
_SILENCE_S = 600
_END_S = 30


class ChildError(Exception):
    """A process of the demo has ended badly; the text is for people."""


@dataclass(frozen=True)
class Job:
    """What is computed, the same in every process."""
    kind: str      # "real" or "seeded"
    dtype: str
    chunk: int
    tokens: int    # generated at most
    prompt: Path   # token ids
    prompt_count: int
    folder: Path   # where results go

    def options(self):
        return ["--model", self.kind, "--dtype", self.dtype]


@dataclass(frozen=True)
class Link:
    """What lies between the two processes. Pairs: prefill's, decode's."""
    name: str
    provider: str = "tcp"   # host between processes of one machine
    nics: tuple = (None, None)
    prefix: tuple = ((), ())            # before the programs' command lines
    settings: dict = field(default_factory=dict)

    def options(self, side):
        nics = ["--nics", self.nics[side]] if self.nics[side] is not None else []
        return ["--provider", self.provider, *nics]


@dataclass
class Alone:
    run: reference.Run
    first_token_ns: int


@dataclass
class HandOff:
    run: reference.Run
    pages: int
    bytes: int           # of the pages and the tail
    tail_bytes: int
    immediates: int
    first_token_ns: int  # from the request to the complete count
    exposed_ns: int      # from the first token's computation to the complete count
    since_bump_ns: int   # from the last layer's bump to the complete count
    burst_bytes: int = 0
    burst_ns: int = 0    # from the bump of all layers at once to the complete count
    burst_equal: bool = True


class _Child:
    """A process whose standard output is events, which go into `events` as (child, event); None
    comes last. Leaving the block ends it."""

    def __init__(self, events, module, *args, prefix=(), settings=None):
        self.name = module.rsplit(".", 1)[-1]
        self._events = events
        self._errors = tempfile.TemporaryFile()
        paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                   **(settings or {})}
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", module, *map(str, args)], cwd=ROOT, env=environ,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            try:
                self._events.put((self, json.loads(line)))
            except ValueError:
                self._events.put((self, {"event": "failed", "text": f"it printed {line[:200]!r}"}))
        self._events.put((self, None))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.nothing_more()
        self._process.stdout.close()
        self._errors.close()

    def nothing_more(self):
        """Close its standard input, which ends it if it waits for work."""
        if not self._process.stdin.closed:
            self._process.stdin.close()

    def check_end(self):
        status = self._process.wait(_END_S)
        if status:
            raise ChildError(f"{self.name} ended with status {status}{self.said()}")

    def said(self):
        """The end of its standard error."""
        self._errors.seek(0)
        text = self._errors.read()[-3000:].decode(errors="replace").strip()
        return f"\n{text}" if text else ""


def _events(events):
    """What children say, until one has ended; then (child, None). Failures raise."""
    while True:
        try:
            child, event = events.get(timeout=_SILENCE_S)
        except queue.Empty:
            raise ChildError(f"the processes have said nothing for {_SILENCE_S} s") from None
        if event is None:
            child.check_end()
        elif event["event"] == "failed":
            raise ChildError(f"{child.name}: {event['text']}{child.said()}")
        yield child, event


def _wait_for(events, name):
    for child, event in _events(events):
        if event is None:
            raise ChildError(f"{child.name} ended without \"{name}\"{child.said()}")
        if event["event"] == name:
            return event
    return None


def _follow(screen, events, until, doing, text=True):
    """Show progress and text, and return all other events by name, until a child has ended."""
    found = {}
    for child, event in _events(events):
        if event is None:
            if child is until:
                break
            raise ChildError(f"{child.name} ended before {until.name}{child.said()}")
        if event["event"] == "step":
            screen.bar("", event["done"], event["total"], doing)
        elif event["event"] == "text":
            if text:
                screen.grow(event["text"])
        else:
            found.setdefault(event["event"], []).append(event)
    screen.end_text()
    return found


def run_alone(screen, job):
    """One process computes everything."""
    out, events = job.folder / "alone.npz", queue.Queue()
    with _Child(events, "demo.alone", *job.options(), "--chunk", job.chunk, "--prompt", job.prompt,
                "--tokens", job.tokens, "--out", out, *_progress(screen)) as child:
        found = _follow(screen, events, child, "computing")
    first, = found["first"]
    return Alone(reference.Run.load(out), first["first_ns"] - first["begun_ns"])


def run_hand_off(screen, job, link, *, at_end=False, lose_page=False, burst=False, text=True):
    """Prefill in one process, decode in another.

    at_end  nothing is sent before the last layer.   burst  measure the pages alone as well
    lose_page  for a test: one page's bytes are not sent
    """
    out, events = job.folder / "handed-off.npz", queue.Queue()
    flags = [*_progress(screen), *(["--at-end"] if at_end else []),
             *(["--lose-page"] if lose_page else [])]
    with _Child(events, "demo.prefill", *job.options(), *link.options(0), "--chunk", job.chunk,
                "--seed", 1, "--tokens-max", job.prompt_count, *flags, prefix=link.prefix[0],
                settings=link.settings) as prefill:
        address = _wait_for(events, "listening")["address"]
        with _Child(events, "demo.decode", *job.options(), *link.options(1), "--seed", 2,
                    "--peer", address, "--prompt", job.prompt, "--tokens", job.tokens,
                    "--out", out, *(["--burst"] if burst else []), prefix=link.prefix[1],
                    settings=link.settings) as decode:
            found = _follow(screen, events, decode, "computing and sending", text)
        prefill.nothing_more()
        for name, more in _follow(screen, events, prefill, "").items():
            found.setdefault(name, []).extend(more)
    return _result(reference.Run.load(out), found)


def _progress(screen):
    return ["--progress"] if screen.live else []


def _result(run, found):
    sent, received = found["sent"][0], found["received"][0]
    done = received["complete_ns"]
    result = HandOff(run, received["pages"], received["bytes"], received["tail_bytes"],
                     received["immediates"], done - received["asked_ns"],
                     done - sent["computed_ns"], done - sent["last_bump_ns"])
    if "burst" in found:
        burst = found["burst"][0]
        result.burst_bytes, result.burst_equal = burst["bytes"], burst["equal"]
        result.burst_ns = burst["complete_ns"] - found["sent"][1]["begun_ns"]
    return result
