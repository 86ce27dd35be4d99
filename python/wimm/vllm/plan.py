# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's half of the connector tells the workers' half, step by step, and the
settings that both read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Load:
    """A request of the decode side whose pages are to come."""

    request: str           #: vLLM's id
    transfer: str          #: the id that both sides know
    addresses: list[str]   #: of the prefill ranks
    tokens: int            #: of the whole prompt
    first_token: int       #: those before it are here
    blocks: list[int]      #: of the tokens from first_token on


@dataclass
class Save:
    """A stretch of a prompt that the prefill side computes in this step."""

    request: str
    transfer: str
    blocks: list[int]      #: those that are new since the request's last stretch
    end: int               #: tokens before it are final after this step
    tokens: int            #: of the whole prompt


@dataclass
class Step:
    """One step of the engine."""

    idle: bool = True      #: no forward pass
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)    #: loads whose request was aborted
    failures: dict[str, str] = field(default_factory=dict)  #: saves by request: what went wrong
    refusals: dict[str, str] = field(default_factory=dict)  #: transfers that will not begin


@dataclass(frozen=True)
class Settings:
    """kv_connector_extra_config."""

    provider: str | None = None   #: wimm's; None: as its own settings say
    nics: str | None = None       #: "HOST:PORT" or several with commas; rank r listens at PORT + r
    heartbeat: float = 1.0        #: seconds between signs of life of a peer
    peer_timeout: float = 10.0    #: seconds of silence that mean a peer is dead
    load_timeout: float = 120.0   #: seconds for a prompt's pages to come, its computation included
    lease: float = 120.0          #: seconds that finished pages wait for the decode side

    @classmethod
    def read(cls, extra: dict[str, Any]) -> Settings:
        known = cls.__dataclass_fields__
        unknown = sorted(set(extra) - set(known))
        if unknown:
            raise ValueError(f"kv_connector_extra_config has {', '.join(unknown)}: the wimm "
                             f"connector knows {', '.join(known)}")
        return cls(**extra)

    def nics_of(self, rank: int) -> str | None:
        """The NICs of one rank: a port that is given counts up with the ranks."""
        if self.nics is None:
            return None
        parts = []
        for nic in self.nics.split(","):
            host, _, port = nic.strip().rpartition(":")
            if host and port.isdigit() and int(port):
                nic = f"{host}:{int(port) + rank}"
            parts.append(nic.strip())
        return ",".join(parts)


def whole_pages(tokens: int, page_tokens: int) -> int:
    """What wimm is told in place of a prompt's length: pages travel whole, since how K and V lie in
    one is the kernel's affair, and a part of the bytes may be a part of every token."""
    return -(-tokens // page_tokens) * page_tokens


def is_prefill(params: dict[str, Any] | None) -> bool:
    """Whether a request's kv_transfer_params make this the side that computes."""
    return bool(params and params.get("do_remote_decode"))


def is_decode(params: dict[str, Any] | None) -> bool:
    """Whether they make it the side that the pages come to."""
    return bool(params and params.get("do_remote_prefill"))


def missing(params: dict[str, Any]) -> str:
    """What a decode side's params lack; "" where nothing."""
    addresses = params.get("remote_addresses")
    if not isinstance(params.get("transfer_id"), str):
        return "kv_transfer_params has no transfer_id that is a string"
    if not isinstance(addresses, list) or not addresses or \
            not all(isinstance(address, str) for address in addresses):
        return "kv_transfer_params has no remote_addresses that is a list of strings"
    return ""
