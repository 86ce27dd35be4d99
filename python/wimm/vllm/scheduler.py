# SPDX-License-Identifier: Apache-2.0
"""The half of the connector that sits beside vLLM's scheduler: decides, and tells the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from .plan import Load, Save, Step, is_decode, is_prefill, missing

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger(__name__)

_ENDED_WELL = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


class _Prompt:
    """A request that this side computes for another."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.transfer = str(request.kv_transfer_params.get("transfer_id") or request.request_id)
        self.preemptions = request.num_preemptions
        self.begun = False     #: the workers know of it
        self.failed = False


class Scheduler:
    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._addresses: list[str] = []
        self._prompts: dict[str, _Prompt] = {}
        self._asked: set[str] = set()    #: requests whose pages were asked for once
        self._loading: set[str] = set()  #: those of them that the workers have not reported
        self._next = Step()

    def set_addresses(self, addresses: list[str]) -> None:
        """Those of this instance's own ranks."""
        self._addresses = addresses

    # --- a request comes, and gets blocks ---

    def arrived(self, request: Request) -> None:
        if is_prefill(request.kv_transfer_params):
            self._prompts[request.request_id] = _Prompt(request)

    def matched(self, request: Request, computed: int) -> tuple[int, bool]:
        """How many tokens come from elsewhere. A request is asked for anew after a failed load: it
        is computed here then, or it would fail forever."""
        params = request.kv_transfer_params
        if not is_decode(params) or request.request_id in self._asked:
            return 0, False
        if lacks := missing(params):
            logger.warning("wimm: request %s is computed here: %s", request.request_id, lacks)
            self._asked.add(request.request_id)
            return 0, False
        count = request.num_prompt_tokens - computed
        return (count, True) if count > 0 else (0, False)

    def allocated(self, request: Request, blocks: KVCacheBlocks, external: int) -> None:
        params = request.kv_transfer_params
        if not is_decode(params) or external == 0 or request.request_id in self._asked:
            return
        first = request.num_prompt_tokens - external
        end = -(-request.num_prompt_tokens // self._page_tokens)
        ids = blocks.get_block_ids()[0][first // self._page_tokens:end]
        self._asked.add(request.request_id)
        self._loading.add(request.request_id)
        self._next.loads.append(Load(request.request_id, params["transfer_id"],
                                     params["remote_addresses"],
                                     request.num_prompt_tokens, first, list(ids)))

    # --- a step ---

    def step(self, output: SchedulerOutput) -> Step:
        """What the workers are to do in it."""
        step, self._next = self._next, Step()
        step.idle = output.total_num_scheduled_tokens == 0
        for prompt in self._prompts.values():
            if prompt.request.num_preemptions > prompt.preemptions and not prompt.failed:
                # Its blocks are gone, and with them what the decode side was to get.
                prompt.failed = True
                step.failures[prompt.request.request_id] = "the prompt was preempted"
        for new in output.scheduled_new_reqs:
            self._save(step, output, new.req_id, new.block_ids[0], new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for index, request in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[index]
            self._save(step, output, request, blocks[0] if blocks else [],
                       cached.num_computed_tokens[index])
        return step

    def _save(self, step: Step, output: SchedulerOutput, request: str, blocks: list[int],
              computed: int) -> None:
        prompt = self._prompts.get(request)
        if prompt is None or prompt.failed or computed >= prompt.request.num_prompt_tokens:
            return
        tokens = prompt.request.num_prompt_tokens
        end = min(computed + output.num_scheduled_tokens[request], tokens)
        prompt.begun = True
        step.saves.append(Save(request, prompt.transfer, list(blocks), end, tokens))

    # --- a request ends ---

    def finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks stay with the workers, and what the decode side has to know."""
        name = request.request_id
        self._asked.discard(name)
        if name in self._loading:
            self._next.cancels.append(name)
        prompt = self._prompts.pop(name, None)
        if prompt is None:
            return False, None
        if request.status not in _ENDED_WELL or not prompt.begun:
            told = self._next.failures if prompt.begun else self._next.refusals
            told[name if prompt.begun else prompt.transfer] = "given up at the prefill side"
            return prompt.begun, None
        return True, {"do_remote_prefill": True, "do_remote_decode": False,
                      "transfer_id": prompt.transfer, "remote_addresses": self._addresses}

    def reported(self, output: KVConnectorOutput) -> None:
        """What the workers have said."""
        self._loading -= set(output.finished_recving or ())
