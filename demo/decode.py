# SPDX-License-Identifier: Apache-2.0
"""The decode process: asks for a prompt's pages, waits for the count of immediates alone, continues
the text from the pages. Started by demo.main; prints events, one JSON object a line."""
import argparse
import sys
import threading

import numpy as np

from demo import events, prefill, reference, side


class Decode:
    def __init__(self, args):
        self.args = args
        self.model, _ = reference.open_model(args.model)
        self.ids = np.load(args.prompt)
        self.side = side.Side(args, self.model, len(self.ids) + args.tokens)
        self.peer = self.side.engine.add_peer(args.peer)
        # An empty message: the session is up before anything is timed.
        self.side.engine.send(self.peer, b"", deadline=side.DEADLINE_S).result()

    def ask(self, kind, note=b"", tail=True):
        """Have the prompt's pages sent. Returns (how it ended, asked ns, complete ns)."""
        count = len(self.ids)
        receiver = self.side.kv.receive(count, self.side.pages_of(count), tail=tail,
                                        peers=[self.peer], note=kind + note,
                                        deadline=side.DEADLINE_S)
        complete = []
        known = threading.Event()

        def note_time(_):
            complete.append(events.now_ns())
            known.set()

        receiver.ended.add_done_callback(note_time)
        asked = events.now_ns()
        self.side.engine.send(self.peer, receiver.request, deadline=side.DEADLINE_S)
        known.wait(side.DEADLINE_S)
        ended = receiver.result(0)
        receiver.close()
        return ended, asked, complete[0]

    def answer(self):
        """The hand-off, then the text from it. Returns a Run like that of one process alone."""
        ended, asked, complete = self.ask(prefill.PROMPT, self.ids.tobytes())
        events.say("received", asked_ns=asked, complete_ns=complete, bytes=ended.bytes,
                   immediates=ended.immediates, tail_bytes=len(ended.tail),
                   pages=len(self.side.pages_of(len(self.ids))) * self.side.layout.layers)
        first = np.frombuffer(ended.tail, np.float32)
        ids, later = self.model.generate(ended.first_token, len(self.ids), self.side.cache,
                                         self.side.table, self.args.tokens,
                                         events.Text(self.model.tokenizer).token)
        return reference.Run(len(self.ids), ids, np.stack([first, *later]),
                             self.side.cache.tokens(self.side.table, len(self.ids) + len(ids) - 1))

    def burst(self, run):
        """All pages once more, into poisoned memory, with nothing to hide behind."""
        self.side.poison()
        ended, _, complete = self.ask(prefill.AGAIN, tail=False)
        there = self.side.cache.tokens(self.side.table, len(self.ids))
        equal = there.tobytes() == run.kv[:, :, :, :len(self.ids)].tobytes()
        events.say("burst", complete_ns=complete, bytes=ended.bytes, equal=equal)


def main():
    parser = argparse.ArgumentParser()
    side.add_arguments(parser)
    parser.add_argument("--peer", required=True, help="the prefill side's address")
    parser.add_argument("--prompt", required=True, help="token ids, a .npy file")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--out", required=True, help="where the Run goes")
    parser.add_argument("--burst", action="store_true", help="measure the pages alone as well")
    args = parser.parse_args()
    try:
        decode = Decode(args)
        run = decode.answer()
        run.save(args.out)
        events.say("done")
        if args.burst:
            decode.burst(run)
        decode.side.engine.close()
    except Exception as error:  # whatever it is, the starter is to show it
        events.fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
