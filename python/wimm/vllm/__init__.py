# SPDX-License-Identifier: Apache-2.0
"""KvCache transfer for vLLM: a connector that writes the pages of a prompt from a prefill instance
into a decode instance, layer by layer while they are computed.

    --kv-transfer-config '{"kv_connector": "WimmConnector",
        "kv_connector_module_path": "wimm.vllm", "kv_role": "kv_producer"}'

docs/guide/vllm.md has the rest. Importing this imports vLLM.
"""

from __future__ import annotations

from .connector import WimmConnector

__all__ = ["WimmConnector"]
