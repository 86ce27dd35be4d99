# SPDX-License-Identifier: Apache-2.0
"""SGLang's disaggregation backend over wimm. It needs SGLang: its classes are children of those."""

from .backend import KVBootstrapServer, KVManager, KVReceiver, KVSender

__all__ = ["KVBootstrapServer", "KVManager", "KVReceiver", "KVSender"]
