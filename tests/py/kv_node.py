# SPDX-License-Identifier: Apache-2.0
"""A prefill or decode node of test_kv_elastic.py: commands on the standard input, events on the
standard output, one JSON object a line.

    kv_node.py LIBRARY PROVIDER prefill|decode

One thread owns everything; the engine's callbacks, and a reader of the commands, only put what they
hear into its queue.
"""
import json
import queue
import sys
import threading

import numpy as np

import wimm
from wimm import kv

LAYERS, HEADS, DIM, PAGE, PAGES = 6, 2, 8, 16, 96
POISON = 0xEEEEEEEE
DEADLINE = 60


def layout():
    return kv.Layout(layers=LAYERS, kv_heads=HEADS, head_dim=DIM, elem_bytes=4, page_tokens=PAGE,
                     pages=PAGES)


def content(seed, tokens):
    """[layer][token][K, V][head][dimension] of a prompt."""
    shape = (LAYERS, tokens, 2, HEADS, DIM)
    words = np.arange(np.prod(shape), dtype=np.uint32) * np.uint32(2654435761)
    return (words ^ np.uint32(seed * 40503 & 0x7FFFFFFF)).reshape(shape)


def parts(tokens, pages):
    """(page, its tokens, where they begin) of a prompt."""
    for i, page in enumerate(pages):
        yield page, min(PAGE, tokens - i * PAGE), i * PAGE


class Node:
    def __init__(self, provider, **cache):
        self.events = queue.Queue()
        self.memory = np.full((LAYERS, PAGES, 2, HEADS, PAGE, DIM), POISON, np.uint32)
        self.free = list(range(PAGES))
        self.open = {}
        self.engine = wimm.Engine(provider, "127.0.0.1:0" if provider == "tcp" else None)
        self.cache = kv.Cache(self.engine, self.engine.register(self.memory), layout(), **cache)
        self.quitting = False

    def say(self, event, **fields):
        print(json.dumps({"event": event, **fields}), flush=True)

    def take(self, count):
        pages, self.free = self.free[:count], self.free[count:]
        return pages

    def give(self, pages):
        self.free.extend(pages)

    def listen(self):
        for line in sys.stdin:
            command = json.loads(line)
            self.events.put((getattr(self, "do_" + command.pop("do")), command))

    def do_quit(self):
        self.quitting = True

    def idle(self):
        """Something to do while nothing is heard. Returns whether there was."""
        return False

    def run(self):
        threading.Thread(target=self.listen, daemon=True).start()
        self.say("ready", address=bytes(self.engine.address).hex())
        busy = False
        while not (self.quitting and not self.open):
            try:
                call, fields = self.events.get(block=not busy)
                call(**fields)
            except queue.Empty:
                pass
            busy = self.idle()
        self.say("left", free=len(self.free), pages=PAGES)
        self.engine.close()


class Prefill(Node):
    def __init__(self, provider):
        super().__init__(provider, on_request=lambda request: self.events.put(
            (self.serve, {"request": request})))
        self.held = False
        self.waiting = []

    def do_hold(self, on):
        """Compute nothing more, so that what is open stays half done."""
        self.held = on
        self.say("held", on=on)

    def serve(self, request):
        count = -(-request.tokens // PAGE)
        if count > len(self.free):
            self.waiting.append(request)
            return
        pages = self.take(count)
        seed = json.loads(request.note)["seed"]
        values = content(seed, request.tokens)
        for page, tokens, first in parts(request.tokens, pages):
            self.memory[:, page, :, :, :tokens] = (
                values[:, first:first + tokens].transpose(0, 2, 3, 1, 4))
        try:
            sender = self.cache.send(request, pages, deadline=DEADLINE)
        except wimm.Error:  # the decode side is gone, or has been told
            self.give(pages)
            return
        self.open[sender] = [pages, 0, seed]
        sender.ended.add_done_callback(
            lambda ended: self.events.put((self.ended, {"sender": sender})))

    def ended(self, sender):
        self.give(self.open.pop(sender)[0])
        sender.close()
        if self.waiting:
            self.serve(self.waiting.pop(0))

    def idle(self):
        """One more layer of whatever is open."""
        busy = False
        for sender, state in self.open.items():
            if state[1] < sender.steps and not (self.held and state[1] == sender.steps // 2):
                sender.bump()
                state[1] += 1
                busy = True
                if state[1] == sender.steps:
                    try:
                        sender.tail(state[2])
                    except wimm.Error:  # it has ended: its callback says so
                        pass
        return busy


class Decode(Node):
    def __init__(self, provider):
        super().__init__(provider, tail_room=16)

    def do_serve(self, id, seed, tokens, address):
        pages = self.take(-(-tokens // PAGE))
        self.memory[:, pages] = POISON
        problem = ""
        try:
            peer = self.engine.add_peer(bytes.fromhex(address))
            receiver = self.cache.receive(tokens, pages, peers=[peer], deadline=DEADLINE,
                                          note=json.dumps({"seed": seed}).encode())
        except wimm.Error as refused:
            self.give(pages)
            self.say("ended", id=id, error=str(refused), right=False)
            return
        self.open[id] = receiver
        try:
            self.engine.send(peer, receiver.request, deadline=DEADLINE)
        except wimm.Error as refused:  # the loss of the peer ends the receiver too
            problem = str(refused)
        receiver.ended.add_done_callback(lambda ended: self.events.put(
            (self.ended, {"id": id, "seed": seed, "tokens": tokens, "pages": pages,
                          "problem": problem})))

    def right(self, seed, tokens, pages):
        values = content(seed, tokens)
        for page, count, first in parts(tokens, pages):
            got = self.memory[:, page].transpose(0, 3, 1, 2, 4)
            if not np.array_equal(got[:, :count], values[:, first:first + count]):
                return False
            if np.any(got[:, count:] != POISON):
                return False
        return True

    def ended(self, id, seed, tokens, pages, problem):
        receiver, right = self.open[id], False
        try:
            ended = receiver.result(0)
            right = self.right(seed, tokens, pages) and ended.first_token == seed
        except wimm.Error as failed:
            problem = str(failed)
        quiet = receiver.give_up()

        def free(quiet):
            if quiet is not None and quiet.exception() is not None:
                return  # in quarantine: the pages are not ours again
            self.events.put((self.quiet, {"id": id, "pages": pages, "problem": problem,
                                          "right": right}))

        if quiet is None:
            free(None)
        else:
            quiet.add_done_callback(free)

    def quiet(self, id, pages, problem, right):
        self.give(pages)
        del self.open[id]
        self.say("ended", id=id, error=problem, right=right)


if __name__ == "__main__":
    wimm.use_library(sys.argv[1])
    {"prefill": Prefill, "decode": Decode}[sys.argv[3]](sys.argv[2]).run()
