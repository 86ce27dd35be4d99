# SPDX-License-Identifier: Apache-2.0
"""What vLLM prints of this connector's transfers, beside its own figures."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

_SUMS = ("prompts_sent", "bytes_sent", "asked_early", "sending_s", "exposed_s", "loads_come",
         "loads_failed")


@dataclass
class Stats(KVConnectorStats):
    """Sums over what has ended since they were taken.

    asked_early  prompts whose request was here before they were computed: layer by layer
    sending_s    from the first layer that could leave to the end
    exposed_s    of that, what came after the prompt was computed; the rest is hidden behind it
    """

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data: dict[str, float] = dict.fromkeys(_SUMS, 0)

    def add(self, **more: float) -> None:
        for name, value in more.items():
            self.data[name] += value

    def aggregate(self, other: KVConnectorStats) -> Stats:
        self.add(**other.data)
        return self

    def is_empty(self) -> bool:
        return not any(self.data.values())

    def reduce(self) -> dict[str, float]:
        """What is printed."""
        d = self.data
        said: dict[str, float] = {}
        if count := d["prompts_sent"]:
            share = d["exposed_s"] / d["sending_s"] if d["sending_s"] else 1
            said = {"prompts sent": count, "MB sent": round(d["bytes_sent"] / 1e6, 3),
                    "layer by layer": d["asked_early"],
                    "ms from the first layer to the end": round(d["sending_s"] / count * 1e3, 3),
                    "ms after the last layer": round(d["exposed_s"] / count * 1e3, 3),
                    "hidden %": round(100 - 100 * share, 1)}
        return {**said, "loads come": d["loads_come"], "loads failed": d["loads_failed"]}
