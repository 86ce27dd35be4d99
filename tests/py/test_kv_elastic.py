# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode nodes that come, drain and die under a steady load: real processes."""
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import LIBRARY, ROOT

WAIT = 120
LOAD = 8  # requests under way at a time
SCALE = int(os.environ.get("WIMM_TEST_SCALE", "1"))
REQUESTS = 6 * SCALE  # that end in each stage


class Node:
    def __init__(self, role, provider, events):
        path = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
        self.role, self.address, self.load, self.left, self.held = role, None, 0, None, False
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/py/kv_node.py"), str(LIBRARY), provider, role],
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._listen, args=(events,), daemon=True).start()

    def _listen(self, events):
        for line in self.process.stdout:
            events.put((self, json.loads(line)))
        events.put((self, {"event": "gone"}))

    def tell(self, do, **fields):
        self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self.process.stdin.flush()


class Cluster:
    """A router in front of the nodes."""

    def __init__(self, provider):
        self.provider = provider
        self.events = queue.Queue()
        self.nodes = []       # that take requests
        self.all = []
        self.under_way = {}   # id: (prefill, decode)
        self.failed = {}      # id: error
        self.ended = 0
        self.next = 1
        self.random = random.Random(5)

    def of(self, role):
        return [node for node in self.nodes if node.role == role]

    def join(self, role, count=1):
        """Nodes that take requests as soon as they are up."""
        self.all += [Node(role, self.provider, self.events) for _ in range(count)]

    def drain(self, role, count=1):
        """The oldest take no more, and leave when what they have is over."""
        for node in self.of(role)[:count]:
            self.nodes.remove(node)
            self._let_go(node)

    def _let_go(self, node):
        if node not in self.nodes and node.load == 0 and node.left is None:
            node.left = False
            node.tell("quit")

    def send(self):
        prefill = min(self.of("prefill"), key=lambda node: node.load)
        decode = min(self.of("decode"), key=lambda node: node.load)
        self.under_way[self.next] = (prefill, decode)
        prefill.load += 1
        decode.load += 1
        decode.tell("serve", id=self.next, seed=self.next, address=prefill.address,
                    tokens=self.random.randint(1, 100))
        self.next += 1

    def _over(self, id):
        for node in self.under_way.pop(id):
            node.load -= 1
            self._let_go(node)

    def _hear(self, until):
        node, event = self.events.get(timeout=max(until - time.monotonic(), 0.001))
        kind = event["event"]
        if kind == "ready":
            node.address = event["address"]
            self.nodes.append(node)
        elif kind == "ended":
            assert event["error"] or event["right"], f"request {event['id']}: wrong bytes"
            if event["error"]:
                self.failed[event["id"]] = event["error"]
            self.ended += 1
            self._over(event["id"])
        elif kind == "held":
            node.held = event["on"]
        elif kind == "left":
            assert event["free"] == event["pages"], f"a {node.role} node leaked pages"
            node.left = True
        elif kind == "gone":
            assert node.left or node.left == "killed", f"a {node.role} node ended by itself"

    def run(self, done, load=LOAD):
        """Keep the load up until done()."""
        until = time.monotonic() + WAIT
        while True:
            while len(self.under_way) < load and self.of("prefill") and self.of("decode"):
                self.send()
            if done():
                return
            self._hear(until)

    def stage(self, prefill, decode):
        """Both numbers reached, and some requests served with them."""
        self.run(lambda: len(self.of("prefill")) == prefill and len(self.of("decode")) == decode)
        goal = self.ended + REQUESTS
        self.run(lambda: self.ended >= goal)

    def settle(self):
        self.run(lambda: not self.under_way, load=0)

    def hold(self, nodes):
        """From now on these compute half of what they are asked for."""
        for node in nodes:
            node.tell("hold", on=True)
        self.run(lambda: all(node.held for node in nodes), load=0)

    def kill(self, node):
        node.left = "killed"
        self.nodes.remove(node)
        node.process.send_signal(signal.SIGKILL)

    def end(self):
        self.settle()
        for role in ("prefill", "decode"):
            self.drain(role, len(self.of(role)))
        self.run(lambda: all(node.left for node in self.all), load=0)
        for node in self.all:
            node.process.stdin.close()
            assert node.process.wait(WAIT) == (-signal.SIGKILL if node.left == "killed" else 0)


@pytest.fixture(params=["host", "tcp"])
def cluster(request):
    made = Cluster(request.param)
    yield made
    for node in made.all:
        if node.process.poll() is None:
            node.process.kill()
        node.process.wait()


def test_kv_elastic_nodes_join_and_drain_under_load(cluster):
    """Goal: 1 to 4 to 2 prefill nodes and 2 to 3 to 1 decode nodes: no request fails, no byte is
    wrong, each node that leaves has all its pages back."""
    cluster.join("prefill")
    cluster.join("decode", 2)
    cluster.stage(1, 2)
    cluster.join("prefill", 3)
    cluster.join("decode")
    cluster.stage(4, 3)
    cluster.drain("prefill", 2)
    cluster.drain("decode", 2)
    cluster.stage(2, 1)
    cluster.end()
    assert not cluster.failed
    assert cluster.ended == cluster.next - 1 >= 3 * REQUESTS


def test_case_31_kv_killed_nodes_fail_their_own_requests_only(cluster):
    """Goal: with requests half done a prefill node is killed: those fail with its loss, long before
    their deadline, and no other; a replacement serves without a restart of anybody. Then the same
    with a decode node: the prefill nodes have their pages back."""
    cluster.join("prefill", 2)
    cluster.join("decode", 2)
    cluster.stage(2, 2)
    cluster.settle()
    victim = cluster.of("prefill")[0]
    cluster.hold([victim])
    cluster.run(lambda: victim.load >= LOAD // 2)
    doomed = {id for id, pair in cluster.under_way.items() if victim in pair}
    cluster.kill(victim)
    cluster.join("prefill")
    cluster.run(lambda: not doomed & cluster.under_way.keys())
    assert cluster.failed.keys() == doomed
    assert not any("E_TIMEOUT" in error for error in cluster.failed.values())
    cluster.stage(2, 2)
    cluster.settle()
    victim = cluster.of("decode")[0]
    cluster.hold(cluster.of("prefill"))
    cluster.run(lambda: len(cluster.under_way) == LOAD)
    assert victim.load != 0
    cluster.kill(victim)
    for id in [id for id, pair in cluster.under_way.items() if victim in pair]:
        cluster._over(id)
    for node in cluster.of("prefill"):
        node.tell("hold", on=False)
    cluster.stage(2, 1)
    cluster.end()
    assert cluster.failed.keys() == doomed
