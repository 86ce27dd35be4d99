# SPDX-License-Identifier: Apache-2.0
"""The process that computes everything alone, for demo.main to compare with."""
import argparse
import sys

import numpy as np

from demo import events, model, paged, reference


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("real", "seeded"), default="real")
    parser.add_argument("--dtype", choices=paged.DTYPES, default="float32")
    parser.add_argument("--chunk", type=int, default=model.CHUNK_TOKENS)
    parser.add_argument("--prompt", required=True, help="token ids, a .npy file")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--out", required=True, help="where the Run goes")
    parser.add_argument("--progress", action="store_true")
    args = parser.parse_args()
    try:
        mod, _ = reference.open_model(args.model)
        ids = np.load(args.prompt).tolist()
        chunks = -(-len(ids) // args.chunk)
        steps = 0

        def on_kv(layer, start, stop):
            nonlocal steps
            steps += 1
            if args.progress:
                events.say("step", done=steps, total=chunks * mod.config.layers)

        text = events.Text(mod.tokenizer)
        begun = events.now_ns()

        def on_token(index):
            if not text.started:
                events.say("first", begun_ns=begun, first_ns=events.now_ns())
            text.token(index)

        run = reference.run_alone(mod, ids, args.tokens, args.dtype, chunk_tokens=args.chunk,
                                  on_kv=on_kv, on_token=on_token)
        run.save(args.out)
        events.say("done")
    except Exception as error:  # whatever it is, the starter is to show it
        events.fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
