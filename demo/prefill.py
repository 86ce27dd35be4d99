# SPDX-License-Identifier: Apache-2.0
"""The prefill process: computes prompts that decode asks for, and sends each layer's pages off as
soon as they are final. Started by demo.main; prints events, one JSON object a line."""
import argparse
import queue
import sys
import threading

import numpy as np

from demo import events, model, reference, side

PROMPT, AGAIN = b"P", b"A"  # the first byte of a request's note


class Prefill:
    def __init__(self, args):
        self.args = args
        self.model, _ = reference.open_model(args.model)
        self.requests = queue.Queue()
        self.side = side.Side(args, self.model, args.tokens_max, on_request=self.requests.put)
        self.steps = 0

    def compute(self, request):
        """A prompt, chunk by chunk: on_kv is called when a layer's K and V are final."""
        ids = np.frombuffer(request.note[1:], np.uint32).tolist()
        ours = self.side.pages_of(request.tokens)
        if self.args.lose_page:
            # Another page is sent in its place: every immediate arrives, the bytes do not.
            ours[len(ours) // 2] = ours[len(ours) // 2 - 1]
        sender = self.side.kv.send(request, ours, chunk_tokens=self.args.chunk,
                                   at_end=self.args.at_end, deadline=side.DEADLINE_S)
        begun = last_bump = events.now_ns()

        def on_kv(layer, start, stop):
            nonlocal last_bump
            last_bump = events.now_ns()
            sender.bump()
            if self.args.progress:
                self.steps += 1
                events.say("step", done=self.steps, total=sender.steps)

        logits = self.model.prefill(ids, self.side.cache, self.side.table, on_kv, self.args.chunk)
        first = model.greedy(logits)
        computed = events.now_ns()
        sender.tail(first, np.ascontiguousarray(logits))
        sent = sender.result(side.DEADLINE_S)
        sender.close()
        events.say("sent", bytes=sent.bytes, immediates=sent.immediates, begun_ns=begun,
                   last_bump_ns=last_bump, computed_ns=computed)

    def send_again(self, request):
        """The pages that are here already, all at once: what the wire alone can do."""
        sender = self.side.kv.send(request, self.side.pages_of(request.tokens),
                                   deadline=side.DEADLINE_S)
        begun = events.now_ns()
        sender.bump(sender.steps)
        sent = sender.result(side.DEADLINE_S)
        sender.close()
        events.say("sent", bytes=sent.bytes, immediates=sent.immediates, begun_ns=begun)

    def run(self):
        events.say("listening", address=str(self.side.engine.address))
        threading.Thread(target=self.wait_for_the_end, daemon=True).start()
        while (request := self.requests.get()) is not None:
            if request.note[:1] == PROMPT:
                self.compute(request)
            elif request.note[:1] == AGAIN:
                self.send_again(request)

    def wait_for_the_end(self):
        """The starter closes our standard input when there is nothing more to do."""
        sys.stdin.buffer.read()
        self.requests.put(None)


def main():
    parser = argparse.ArgumentParser()
    side.add_arguments(parser)
    parser.add_argument("--chunk", type=int, default=model.CHUNK_TOKENS)
    parser.add_argument("--tokens-max", type=int, required=True)
    parser.add_argument("--at-end", action="store_true", help="send nothing before the last layer")
    parser.add_argument("--lose-page", action="store_true", help="send a wrong page, for a test")
    parser.add_argument("--progress", action="store_true")
    try:
        prefill = Prefill(parser.parse_args())
        prefill.run()
        prefill.side.engine.close()
    except Exception as error:  # whatever it is, the starter is to show it
        events.fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
