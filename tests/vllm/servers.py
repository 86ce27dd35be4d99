# SPDX-License-Identifier: Apache-2.0
"""vLLM's API servers as processes, and a proxy that calls prefill and decode at once."""
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
import uuid
from pathlib import Path

from conftest import DEADLINE_S, PYTHON, environ

HOST = "127.0.0.1"
FLAGS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8",
         "--max-num-batched-tokens", "1024", "--seed", "0", "--kv-cache-memory-bytes",
         str(64 << 20), "--no-enable-prefix-caching", "--disable-uvicorn-access-log")


def free_port():
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return listener.getsockname()[1]


def wait_until(check, what, deadline_s=DEADLINE_S, tail=lambda: ""):
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, f"not {what} within {deadline_s} s\n{tail()}"
        pause.wait(0.05)


class Server:
    """An API server. Its processes are one group: the engine outlives a server that is killed."""

    def __init__(self, log, model, transfer, *flags, **env):
        self.log, self.model, self.transfer = log, model, transfer
        self.flags, self.env = flags, env
        self.port = free_port()
        self.start()

    def start(self):
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model),
                 "--served-model-name", "tiny", "--host", HOST, "--port", str(self.port), *FLAGS,
                 *self.flags, "--kv-transfer-config", json.dumps(self.transfer)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environ(**{"VLLM_ENABLE_V1_MULTIPROCESSING": "1",
                               "VLLM_CPU_OMP_THREADS_BIND": "nobind", **self.env}))

    def tail(self):
        return self.log.read_text(errors="replace")[-4000:]

    def _answers(self):
        assert self._process.poll() is None, f"the server has ended\n{self.tail()}"
        try:
            return self.get("/health")[0] == 200
        except OSError:
            return False

    def ready(self):
        wait_until(self._answers, "ready", 2 * DEADLINE_S, self.tail)
        return self

    def get(self, path):
        link = http.client.HTTPConnection(HOST, self.port, timeout=DEADLINE_S)
        link.request("GET", path)
        answer = link.getresponse()
        return answer.status, answer.read().decode()

    def post(self, body, begun=None):
        """The text and its kv_transfer_params; begun() is called with the first byte."""
        link = http.client.HTTPConnection(HOST, self.port, timeout=DEADLINE_S)
        stream = begun is not None
        link.request("POST", "/v1/completions", json.dumps({
            "model": "tiny", "temperature": 0, "ignore_eos": True, "stream": stream, **body}),
            {"Content-Type": "application/json"})
        answer = link.getresponse()
        if not stream:
            data = answer.read()
            if answer.status != 200:
                raise OSError(f"status {answer.status}: {data[:300]!r}")
            said = json.loads(data)
            return said["choices"][0]["text"], said.get("kv_transfer_params")
        text = ""
        for line in answer:
            if line.startswith(b"data: {"):
                text = text or begun() or ""
                text += json.loads(line[6:])["choices"][0]["text"]
        return text, None

    def usage(self):
        """The share of its blocks that vLLM counts as used, as of a step that came just now."""
        self.post({"prompt": [5, 6, 7], "max_tokens": 1})
        _, text = self.get("/metrics")
        return max(float(line.split()[-1]) for line in text.splitlines()
                   if line.startswith("vllm:kv_cache_usage_perc"))

    def kill(self):
        """All its processes, at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def stop(self):
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                pass
        self.kill()


def wimm_transfer(role, port, on_failure="recompute", **extra):
    return {"kv_connector": "WimmConnector", "kv_connector_module_path": "wimm.vllm",
            "kv_role": role, "kv_load_failure_policy": on_failure,
            "kv_connector_extra_config": {"nics": f"{HOST}:{port}", **extra}}


class Proxy:
    """Sends a prompt to prefill and decode at the same time; the answer is decode's."""

    def __init__(self, prefill, decode, addresses):
        self.prefill, self.decode, self.addresses = prefill, decode, addresses

    def _prefill(self, prompt, transfer):
        try:
            self.prefill.post({"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {
                "do_remote_decode": True, "transfer_id": transfer}})
        except (OSError, http.client.HTTPException):
            pass  # decode finds out by itself

    def complete(self, prompt, tokens=16, begun=None):
        transfer = uuid.uuid4().hex
        helper = threading.Thread(target=self._prefill, args=(prompt, transfer))
        helper.start()
        try:
            return self.decode.post({
                "prompt": prompt, "max_tokens": tokens, "kv_transfer_params": {
                    "do_remote_prefill": True, "transfer_id": transfer,
                    "remote_addresses": self.addresses}}, begun)[0]
        finally:
            helper.join()


def in_parallel(count, work, jobs):
    """work(job) for each job by so many threads; the results in order, exceptions among them."""
    results, left = [None] * len(jobs), list(enumerate(jobs))[::-1]
    lock = threading.Lock()

    def run():
        while True:
            with lock:
                if not left:
                    return
                index, job = left.pop()
            try:
                results[index] = work(job)
            except Exception as problem:  # the caller looks at it
                results[index] = problem

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def log_of(factory, name):
    return Path(factory.mktemp("log")) / f"{name}.log"
