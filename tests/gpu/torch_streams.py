# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch between two processes of one machine with a GPU: a write begins after the
kernels that its tensor's stream holds, without anybody waiting for them. Prints rows as the
programs beside it do.

  torch_streams.py [--library FILE] [--rounds N] [--provider host|tcp] [--bytes N]

77 and the reason where there is no torch or no GPU.
"""
import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
SLEEP_CYCLES = 200_000   # of the card: about a tenth of a millisecond
WAIT = 60
failed = False


def check(what, good, figure=""):
    global failed
    failed = failed or not good
    print(f"{'ok' if good else 'FAILED':7} {what} {figure}".rstrip(), flush=True)


def open_engine(provider):
    import wimm

    return wimm.Engine(provider, nics="127.0.0.1:0" if provider == "tcp" else None)


def receiver(provider, length):
    """Looks at what has arrived by kernels launched after the immediate; answers line by line."""
    import torch

    engine = open_engine(provider)
    target = torch.zeros(length, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    print(engine.register(target).desc.hex(), flush=True)
    for line in sys.stdin:
        value, count = map(int, line.split())
        engine.expect(1, count, deadline=WAIT).result(WAIT)
        print(int((target != value).sum().item()), flush=True)
        target.fill_(255)
        torch.cuda.synchronize()
        print("ready", flush=True)
    engine.close()


class Peer:
    def __init__(self, options):
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--receive", "--library", options.library, "--provider",
             options.provider, "--bytes", str(options.bytes)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        self.desc = bytes.fromhex(self._process.stdout.readline())

    def wrong_bytes(self, value, count, write):
        """Bytes that are not `value` once `count` immediates of write() have arrived."""
        self._process.stdin.write(f"{value} {count}\n")
        self._process.stdin.flush()
        write()
        wrong = int(self._process.stdout.readline())
        assert self._process.stdout.readline() == "ready\n"
        return wrong

    def close(self):
        self._process.stdin.close()
        self._process.wait(WAIT)


def rounds(name, count, peer, tensor, stream, write, immediates=1):
    """Rounds that came out wrong, of `count` with a slow kernel, a fill and a write."""
    import torch

    stale, called = 0, []
    for i in range(count):
        value = i % 250 + 1

        def one():
            with torch.cuda.stream(stream):
                torch.cuda._sleep(SLEEP_CYCLES)
                tensor.fill_(value)
                from_s = time.perf_counter()
                operation = write()
                called.append(time.perf_counter() - from_s)
            operation.result(WAIT)

        stale += peer.wrong_bytes(value, immediates, one) != 0
    called.sort()
    print(f"        {name}: {count} rounds, {stale} stale, a write takes "
          f"{called[count // 2] * 1e6:.0f} us to submit (p50)", flush=True)
    return stale


class Handle:
    """A pointer with the stream of torch, as Numba or CuPy would show an array."""

    def __init__(self, tensor, stream):
        self._tensor = tensor
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape), "typestr": "|u1", "version": 3,
            "data": (tensor.data_ptr(), False), "stream": stream.cuda_stream or 1}


def captures(engine, remote, peer, length):
    """A graph may be captured while a write waits, and is no stream to wait for."""
    import torch
    import wimm

    source = torch.zeros(length, dtype=torch.uint8, device="cuda")
    other = torch.zeros(64, dtype=torch.uint8, device="cuda")
    region, small = engine.register(source), engine.register(other)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    refused, made = [], threading.Event()

    def write():
        with torch.cuda.stream(stream):
            torch.cuda._sleep(400_000_000)      # a fifth of a second
            source.fill_(77)
            operation = engine.write(region, remote, imm=1, deadline=WAIT)
        # Not `with torch.cuda.graph()`, which waits for the card first.
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin(capture_error_mode="global")
            other.fill_(5)
            try:
                engine.write(small, remote, imm=1, deadline=WAIT,
                             stream=torch.cuda.current_stream())
            except wimm.Error as problem:
                refused.append(problem)
            time.sleep(0.1)                     # the engine looks at the other stream meanwhile
            graph.capture_end()
        made.set()
        operation.result(WAIT)

    torch.cuda.synchronize()
    wrong = peer.wrong_bytes(77, 1, write)
    check("a write that waits while a graph is captured", wrong == 0 and made.is_set())
    check("a stream under capture is refused",
          bool(refused) and refused[0].code == wimm.Status.E_UNSUPPORTED,
          refused[0].text if refused else "")
    other.zero_()
    graph.replay()
    torch.cuda.synchronize()
    check("the captured graph runs", bool((other == 5).all().item()))


def sender(options):
    import torch

    engine = open_engine(options.provider)
    peer = Peer(options)
    remote = engine.open_remote(peer.desc)
    source = torch.zeros(options.bytes, dtype=torch.uint8, device="cuda")
    region = engine.register(source)
    stream, default = torch.cuda.Stream(), torch.cuda.default_stream()
    n = options.rounds

    def write(**named):
        return lambda: engine.write(region, remote, imm=1, deadline=WAIT, **named)

    print(f"# torch {torch.__version__}, {torch.cuda.get_device_name()}, provider "
          f"{options.provider}, regions on {region.device}", flush=True)
    check("the stream of a tensor is honoured",
          rounds("DLPack, a stream", n, peer, source, stream, write()) == 0)
    check("the default stream of a tensor is honoured",
          rounds("DLPack, default stream", n // 10, peer, source, default, write()) == 0)
    check("a stream that is named is honoured",
          rounds("stream=", n // 10, peer, source, stream, write(stream=stream)) == 0)
    bare = engine.register((source.data_ptr(), options.bytes, "cuda"))
    check("a pointer's stream is honoured", rounds(
        "pointer, stream=", n // 10, peer, source, stream,
        lambda: engine.write(bare, remote, imm=1, deadline=WAIT, stream=stream.cuda_stream)) == 0)
    array = engine.register(Handle(source, stream))
    check("the stream of a CUDA array is honoured", rounds(
        "__cuda_array_interface__", n // 10, peer, source, stream,
        lambda: engine.write(array, remote, imm=1, deadline=WAIT)) == 0)
    pages = list(range(256))
    check("the stream of pages is honoured", rounds(
        "256 pages", n // 10, peer, source, stream,
        lambda: engine.write_pages(region, pages, remote, pages, page_bytes=options.bytes // 256,
                                   imm=1, deadline=WAIT), 256) == 0)
    stale = rounds("planted: no wait", 20, peer, source, stream, write(stream=-1))
    check("an omitted wait is seen", stale > 0, f"{stale} of 20 rounds were stale")
    torch.cuda.synchronize()
    captures(engine, remote, peer, options.bytes)
    peer.close()
    engine.close()
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--library", default=str(ROOT / "build" / "src" / "libwimm.so"))
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--provider", default="host", choices=["host", "tcp"])
    parser.add_argument("--bytes", type=int, default=1 << 20)
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.provider == "tcp":
        os.environ["WIMM_SAME_HOST"] = "off"    # so that it goes through slots
    try:
        import torch
    except ImportError:
        print("skipped: no torch")
        return 77
    if not torch.cuda.is_available():
        print("skipped: torch sees no GPU")
        return 77
    import wimm

    wimm.use_library(options.library)
    if options.receive:
        return receiver(options.provider, options.bytes)
    return sender(options)


if __name__ == "__main__":
    sys.exit(main())
