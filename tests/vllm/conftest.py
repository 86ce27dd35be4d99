# SPDX-License-Identifier: Apache-2.0
"""Tests inside a real vLLM on the CPU. They need the environment that tests/vllm/env/make.sh makes,
and are skipped where it is not there."""
import json
import os
import queue
import subprocess
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENV = Path(os.environ.get("WIMM_VLLM_ENV", Path.home() / ".cache" / "wimm-vllm"))
PYTHON = ENV / "bin" / "python"
DEADLINE_S = int(os.environ.get("WIMM_TEST_DEADLINE_S", 240))


def environ(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"), **more}


def prompt(seed, length):
    """Token ids that no other seed has."""
    return [3 + (j * (7 + seed)) % 2000 for j in range(length)]


class Instance:
    """A vLLM instance in a process of its own."""

    def __init__(self, log, model, **options):
        self.log = log
        self._errors = log.open("wb")
        self._process = subprocess.Popen(
            [PYTHON, Path(__file__).parent / "instance.py",
             json.dumps({"model": str(model), **options})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env=environ())
        self._lines = queue.Queue()
        self._events = []
        self.address = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def tail(self):
        return self.log.read_text(errors="replace")[-3000:]

    def wait(self, event, deadline_s=DEADLINE_S, **match):
        """The first event of this kind with these fields; others stay for later."""
        def fits(one):
            return one["event"] == event and all(one[k] == v for k, v in match.items())

        end = time.monotonic() + deadline_s
        while True:
            for index, one in enumerate(self._events):
                if fits(one):
                    return self._events.pop(index)
            try:
                one = self._lines.get(timeout=max(end - time.monotonic(), 0.01))
            except queue.Empty:
                pytest.fail(f"no {event} {match} in {deadline_s} s\n{self.tail()}")
            if one is None:
                pytest.fail(f"the instance ended before {event} {match}\n{self.tail()}")
            self._events.append(one)

    def seen(self):
        """What was said and not waited for."""
        return list(self._events)

    def ready(self):
        said = self.wait("ready")
        self.address, self.blocks = said["address"], said["free"]
        self.kernel = said["kernel"]
        return self

    def say(self, what, **args):
        self._process.stdin.write(json.dumps({"do": what, **args}) + "\n")
        self._process.stdin.flush()

    def ask(self, what, event=None, **args):
        self.say(what, **args)
        return self.wait(event or what)

    def alone(self, name, ids, tokens=16):
        """Tokens that this instance computes by itself."""
        self.say("add", name=name, prompt=ids, tokens=tokens)
        return self.wait("done", name=name)["tokens"]

    def prefill(self, transfer, ids):
        self.say("add", name=f"P-{transfer}", prompt=ids, tokens=1,
                 params={"do_remote_decode": True, "transfer_id": transfer})

    def decode(self, transfer, ids, address, tokens=16):
        self.say("add", name=f"D-{transfer}", prompt=ids, tokens=tokens,
                 params={"do_remote_prefill": True, "transfer_id": transfer,
                         "remote_addresses": [address]})

    def wait_free(self, deadline_s=30):
        """Until no request is left; then the number of free blocks, by vLLM's own count."""
        end = time.monotonic() + deadline_s
        while True:
            said = self.ask("free")
            if not said["requests"] or time.monotonic() > end:
                assert not said["requests"], f"requests are left: {said}\n{self.tail()}"
                return said["blocks"]

    def killed(self):
        return self._process.wait(DEADLINE_S)

    def nothing_more(self):
        if not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass  # it was killed

    def close(self):
        self.nothing_more()
        if self._process.poll() is None:
            try:
                self._process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder of models by kind, made when first asked for."""
    if not (ENV / "complete").exists():
        pytest.skip(f"no vLLM environment in {ENV} (make check-vllm makes it)")
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            subprocess.run([PYTHON, Path(__file__).parent / "model.py", made[kind], kind],
                           check=True, env=environ(), capture_output=True)
        return made[kind]

    return get


@pytest.fixture(scope="module")
def start(models, tmp_path_factory):
    """Start instances; they end with the module."""
    started = []

    def begin(name, kind="gqa", **options):
        log = tmp_path_factory.mktemp("log") / f"{name}.log"
        started.append(Instance(log, models(kind), **options))
        return started[-1]

    yield begin
    for instance in started:
        instance.nothing_more()
    for instance in started:
        instance.close()
