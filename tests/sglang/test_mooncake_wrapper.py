# SPDX-License-Identifier: Apache-2.0
"""SGLang's own wrapper of Mooncake, over wimm.compat.mooncake."""
import numpy as np
import pytest
from conftest import LIBRARY


@pytest.fixture
def wrapper(sglang, monkeypatch):
    import sys

    import wimm
    from wimm.compat import mooncake

    wimm.use_library(LIBRARY)
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    if "mooncake.engine" not in sys.modules:
        mooncake.install()
    from sglang.srt.distributed.device_communicators import mooncake_transfer_engine

    return mooncake_transfer_engine.MooncakeTransferEngine


def test_mooncake_wrapper_of_sglang_moves_bytes(wrapper):
    """Goal: every call that the published wrapper makes is there and does what it says."""
    sender, receiver = wrapper("127.0.0.1"), wrapper("127.0.0.1")
    assert sender.get_ib_device() == "" and sender.get_engine() is not None
    assert sender.get_session_id() != receiver.get_session_id()
    src = np.arange(1024, dtype=np.uint8)
    dst = [np.zeros(1024, np.uint8) for _ in range(3)]
    at = [array.ctypes.data for array in dst]
    sender.register(src.ctypes.data, 1024)
    assert receiver.batch_register(at[:2], [1024, 1024]) == 0
    receiver.register(at[2], 1024)
    session = receiver.get_session_id()
    assert sender.send_probe(session) == 0
    assert sender.transfer_sync(session, src.ctypes.data, at[2], 1024) == 0
    assert sender.batch_transfer_sync(session, [src.ctypes.data, src.ctypes.data + 8], at[:2],
                                      [100, 200]) == 0
    assert np.array_equal(dst[2], src)
    assert np.array_equal(dst[0][:100], src[:100]) and not dst[0][100:].any()
    assert np.array_equal(dst[1][:200], src[8:208]) and not dst[1][200:].any()
    receiver.deregister(at[2])
    assert receiver.batch_deregister(at[:2]) == 0
    with pytest.raises(RuntimeError, match="ret=-1"):
        receiver.deregister(at[2])
    with pytest.raises(RuntimeError, match="ret=-1"):
        sender.register(src.ctypes.data, 1024)
    assert sender.transfer_sync(session, src.ctypes.data, at[0], 8) < 0
    receiver.engine.close()
    assert sender.send_probe(session) < 0
    sender.engine.close()
