# SPDX-License-Identifier: Apache-2.0
"""The connector itself: vLLM makes it once beside its scheduler and once in each worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from .plan import Settings, Step
from .scheduler import Scheduler
from .shape import describe
from .stats import Stats
from .worker import Worker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


@dataclass
class Metadata(KVConnectorMetadata):
    """From the scheduler's half to the workers'."""

    step: Step


@dataclass
class Handshake(KVConnectorHandshakeMetadata):
    """From a worker's half to the scheduler's."""

    address: str


class WimmConnector(KVConnectorBase_V1):
    worker_class: type[Worker] = Worker

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole,
                 kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        parallel = vllm_config.parallel_config
        if parallel.pipeline_parallel_size != 1:
            raise ValueError("the wimm connector does not split a model into pipeline stages")
        self._settings = Settings.read(self._kv_transfer_config.kv_connector_extra_config or {})
        self._worker: Worker | None = None
        self._scheduler: Scheduler | None = None
        if role == KVConnectorRole.SCHEDULER:
            spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
            self._scheduler = Scheduler(spec.block_size)

    # --- beside the scheduler ---

    @property
    def _deciding(self) -> Scheduler:
        assert self._scheduler is not None
        return self._scheduler

    def set_xfer_handshake_metadata(
            self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        self._deciding.set_addresses([metadata[rank].address for rank in sorted(metadata)])

    def on_new_request(self, request: Request) -> None:
        self._deciding.arrived(request)

    def get_num_new_matched_tokens(self, request: Request,
                                   num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._deciding.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks,
                                 num_external_tokens: int) -> None:
        self._deciding.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return Metadata(self._deciding.step(scheduler_output))

    def request_finished(self, request: Request,
                         block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._deciding.finished(request)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._deciding.reported(connector_output)

    # --- in a worker ---

    @property
    def _moving(self) -> Worker:
        assert self._worker is not None, "register_kv_caches() comes first"
        return self._worker

    def _step(self) -> Step:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, Metadata)
        return metadata.step

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        config, rank = self._vllm_config, get_tensor_model_parallel_rank()
        parallel = config.parallel_config
        place = parallel.data_parallel_index * parallel.tensor_parallel_size + rank
        self._worker = self.worker_class(
            self._settings, describe(config, self._kv_cache_config, kv_caches, rank), place,
            config.scheduler_config.max_num_seqs)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return Handshake(self._moving.address)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, Metadata)
        self._moving.before_overwriting(kv_connector_metadata.step)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._moving.begin(self._step())

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        self._moving.load(self._step())

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass  # loads are through before vLLM schedules a request

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor,
                      attn_metadata: AttentionMetadata, **kwargs: Any) -> None:
        self._moving.layer_done(layer_name)

    def wait_for_save(self) -> None:
        self._moving.end()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        sent, received = self._moving.finished(finished_req_ids, self._step().idle)
        return sent or None, received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._moving.loads.take_bad_blocks()

    def get_kv_connector_stats(self) -> Stats | None:
        return self._worker.take_stats() if self._worker is not None else None  # vLLM asks both

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats(data=data or {})

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True
