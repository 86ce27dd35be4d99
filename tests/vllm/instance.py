# SPDX-License-Identifier: Apache-2.0
"""One vLLM instance in one process, steered by JSON lines on standard input; says JSON lines on
standard output. It steps the engine whenever there is something to do, as a server would.

Run by tests/vllm/conftest.py in the environment that has vLLM.
"""
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import queue
import signal
import sys
import threading
import zlib

import torch

import wimm
from wimm import kv
from wimm.operation import Operation
from wimm.vllm.stats import Stats

_WRITTEN = 4  # KV_BLOB_WRITTEN of src/kv/blob.h
_SHORT = b"wimm.vllm "  # how the connector's own messages begin; the others are wimm.kv's
_saying = threading.Lock()  # the engine's callback thread has things to say, too


def say(event, **what):
    with _saying:
        print(json.dumps({"event": event, **what}), file=sys.__stdout__, flush=True)


class Faults:
    """What goes wrong on purpose. They change this process's objects, not the package."""

    def __init__(self, worker):
        self.worker = worker
        self.source = worker.saves._source
        self.layer_done = worker.saves.layer_done
        self.cancelled = worker.saves.cancelled
        self.give_up, self.fence_peer = kv.Receiver.give_up, worker.engine.fence_peer
        self.receive, self.send = worker.cache.receive, worker.engine.send
        self.held = []
        self.go = threading.Event()

    def clear(self):
        saves = self.worker.saves
        saves._source, saves.layer_done = self.source, self.layer_done
        saves.cancelled = self.cancelled
        kv.Receiver.give_up, self.worker.engine.fence_peer = self.give_up, self.fence_peer
        self.worker.cache.receive, self.worker.engine.send = self.receive, self.send
        self.go.set()
        for args in self.held:
            with self.worker.lock:
                self.cancelled(*args)
        self.held = []

    def drop(self):
        """No page's bytes are sent: the null block goes in its place, every immediate arrives."""
        self.worker.saves._source = lambda *args: [0] * len(self.source(*args))

    def lose(self, page):
        """One page's bytes are not sent."""
        def source(job, first, end):
            blocks = self.source(job, first, end)
            if first <= page < first + len(blocks):
                blocks[page - first] = 0
            return blocks

        self.worker.saves._source = source

    def die_after_layer(self, layer):
        """This process is gone between two layers of a prompt."""
        def layer_done(index):
            self.layer_done(index)
            if index == layer and self.worker.saves._active:
                os.kill(os.getpid(), signal.SIGKILL)

        self.worker.saves.layer_done = layer_done

    def stop_after_layer(self, layer, passes=1):
        """A forward pass stands still there, until "go" comes: the n-th of a prompt."""
        left = [passes]

        def layer_done(index):
            self.layer_done(index)
            left[0] -= index == layer and bool(self.worker.saves._active)
            if index == layer and left[0] == 0:
                say("stopped")
                self.go.wait(60)

        self.go.clear()
        self.worker.saves.layer_done = layer_done

    def quarantine(self):
        """Who is given up is silent, and nobody knows whether it writes, until this is cleared."""
        def keep_out(peer):
            ended = Operation(self.worker.engine, "fence", ())
            ended._settle(wimm.Status.E_QUARANTINED, wimm.Done(0, peer, 0, 0, 0, 0))
            return ended

        def give_up(receiver):
            quiet, told = self.give_up(receiver), concurrent.futures.Future()
            peer = next(one.peers[0] for one in self.worker.loads._open.values()
                        if one.given_up is receiver)
            quiet.add_done_callback(lambda _: told.set_exception(keep_out(peer).exception(0)))
            return told

        def fence_peer(peer, block=None):
            say("fence asked")
            return keep_out(peer)

        kv.Receiver.give_up, self.worker.engine.fence_peer = give_up, fence_peer

    def refuse(self, step):
        """The engine refuses what decode does for a load. "receive", "send": the peer is lost, but
        the event that says so has not come yet. "model": prefill has another one."""
        def receive(*args, **more):
            raise wimm.Error(wimm.Status.E_PEER_LOST, "lost a moment ago")

        def other_model(*args, prefill, **more):
            tag = prefill.model_tag ^ 1
            return self.receive(*args, prefill=dataclasses.replace(prefill, model_tag=tag), **more)

        def send(peer, data, **more):
            if not data.startswith(_SHORT):
                raise wimm.Error(wimm.Status.E_PEER_LOST, "lost a moment ago", peer)
            return self.send(peer, data, **more)

        if step == "send":
            self.worker.engine.send = send
        else:
            self.worker.cache.receive = receive if step == "receive" else other_model

    def hold_cancels(self):
        """Nobody is told that nothing writes for them any more, until this is cleared."""
        def cancelled(*args):
            self.held.append(args)
            say("cancel held")

        self.worker.saves.cancelled = cancelled


class Instance:
    def __init__(self, options):
        from vllm import LLM
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        extra, on_failure = options.pop("extra", {}), options.pop("on_failure", "recompute")
        self.llm = LLM(**{
            "dtype": "float32", "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 8,
            "max_num_batched_tokens": 1024, "seed": 0, "kv_cache_memory_bytes": 64 << 20,
            "enable_prefix_caching": False, **options, "kv_transfer_config": {
                "kv_connector": "WimmConnector", "kv_connector_module_path": "wimm.vllm",
                "kv_role": "kv_both",
                "kv_load_failure_policy": on_failure,
                "kv_connector_extra_config": {"nics": "127.0.0.1:0", **extra}}})
        self.engine = self.llm.llm_engine
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self.worker = get_kv_transfer_group()._worker
        self.faults = Faults(self.worker)
        self.commands = queue.Queue()
        self.sums = {}    # by transfer: of the pages, layer by layer
        self.blocks = {}  # by transfer
        self.stats = Stats()
        self._watch()

    def _watch(self):
        """Note where pages lie and what they hold, when all are there and when all have gone."""
        loads, saves = self.worker.loads, self.worker.saves
        report, drop, opened = loads._report, saves._drop_if_over, saves._open
        take_message, take_stats = self.worker.cache.take_message, self.worker.take_stats

        def opens(job, request):
            done = opened(job, request)
            say("serving", transfer=job.transfer, final=job.final, layers=saves._layers_done)
            return done

        def reported(loading):
            load = loading.load
            self.blocks[load.transfer] = list(load.blocks)
            self.sums[load.transfer] = self.sums_of(load.blocks)
            say("loaded", transfer=load.transfer, failed=loading.failed, blocks=load.blocks,
                bad=loading.bad_blocks(), first_token=load.first_token)
            report(loading)

        def dropped(job):
            if job.held_since is not None and job.over() and job.transfer not in self.sums:
                self.blocks[job.transfer] = list(job.blocks)
                self.sums[job.transfer] = self.sums_of(job.blocks)
            drop(job)

        def took_message(peer, data):
            took = take_message(peer, data)
            if data[4] == _WRITTEN:
                say("heard how far prefill is")
            return took

        def took_stats():
            taken = take_stats()
            if taken is not None:
                self.stats.aggregate(taken)
            return taken

        loads._report, saves._drop_if_over, saves._open = reported, dropped, opens
        self.worker.cache.take_message, self.worker.take_stats = took_message, took_stats

    def sums_of(self, blocks):
        tensors = self.worker.shape.keep
        return [[zlib.crc32(t[block].contiguous().view(torch.uint8).numpy()) for block in blocks]
                for t in tensors]

    def kernel(self):
        """The attention kernel that vLLM has chosen."""
        runner = self.engine.engine_core.engine_core.model_executor.driver_worker.model_runner
        return runner.attn_groups[0][0].backend.get_name()

    def free_blocks(self):
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def add(self, name, prompt, tokens, params=None):
        from vllm import SamplingParams

        self.engine.add_request(name, {"prompt_token_ids": prompt}, SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True,
            extra_args={"kv_transfer_params": params} if params else None))

    def command(self, name, args):
        if name == "add":
            self.add(**args)
        elif name == "abort":
            self.engine.abort_request([args["name"]])
        elif name == "free":
            say("free", blocks=self.free_blocks(), requests=len(self.scheduler.requests),
                states=[r.status.name for r in self.scheduler.requests.values()])
        elif name == "sums":
            transfer = args["transfer"]
            say("sums", sums=self.sums[transfer], blocks=self.blocks[transfer])
        elif name == "stats":
            self.worker.take_stats()
            say("stats", sums=self.stats.data, says=self.stats.reduce())
            self.stats.reset()
        elif name == "reset":
            self.llm.reset_prefix_cache()
            say("reset")
        elif name == "fault":
            if not args.pop("keep", False):
                self.faults.clear()
            getattr(self.faults, args.pop("kind"))(**args)
            say("fault")
        else:
            raise ValueError(name)

    def run(self):
        threading.Thread(target=self.read, daemon=True).start()
        say("ready", address=self.worker.address, free=self.free_blocks(), kernel=self.kernel())
        while True:
            busy = self.scheduler.has_requests()
            try:
                command = self.commands.get(block=not busy)
            except queue.Empty:
                pass
            else:
                if command is None:
                    return
                self.command(command.pop("do"), command)
            if self.scheduler.has_requests():
                for output in self.engine.step():
                    if output.finished:
                        one = output.outputs[0]
                        say("done", name=output.request_id, tokens=list(one.token_ids),
                            reason=one.finish_reason, params=output.kv_transfer_params)

    def read(self):
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "go":  # for a pass that stands still
                self.faults.go.set()
            else:
                self.commands.put(command)
        self.commands.put(None)


def main():
    with contextlib.redirect_stdout(sys.stderr):
        instance = Instance(json.loads(sys.argv[1]))
        instance.run()
        instance.worker.close()


if __name__ == "__main__":
    main()
