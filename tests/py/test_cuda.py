# SPDX-License-Identifier: Apache-2.0
"""Memory of CUDA, over a driver made of ordinary memory: what is taken, and that a write begins
after the work that its stream holds. Each test is a program of its own: the driver stays in a
process."""
import os

import pytest
from conftest import LIBRARY, ROOT

FAKE = LIBRARY.parents[1] / "tests" / "fake" / "libfake_cuda.so"
PRELUDE = """
import ctypes, sys
import wimm
import fake_cuda
from fake_cuda import Array, Memory, Stream, Tensor, let_it_look
WAIT = 60
a, b = wimm.Engine("host"), wimm.Engine("host")
target = Tensor()
remote = a.open_remote(b.register(target).desc)
def refused(call, code, *words):
    try:
        call()
    except wimm.Error as problem:
        assert problem.code == wimm.Status[code], problem
        assert all(word in problem.text for word in words), problem.text
    else:
        raise AssertionError("accepted")
"""


@pytest.fixture
def run_cuda(run_python):
    def run(code):
        if not FAKE.exists():
            pytest.skip(f"no {FAKE.name} in this build")
        path = str(ROOT / "tests" / "py")
        environ = {**os.environ, "WIMM_CUDA_LIBRARY": str(FAKE)}
        run_python(f"import sys; sys.path.insert(0, {path!r})\n{PRELUDE}\n{code}\n"
                   f"a.close(); b.close(); assert 'torch' not in sys.modules", environ=environ)

    return run


@pytest.mark.parametrize("kind", ["Tensor", "Array"])
def test_write_begins_after_the_work_of_its_owners_stream(run_cuda, kind):
    """Goal: neither a byte nor an immediate leaves while the tensor's stream is held up, and what
    arrives is what the work queued before has made."""
    run_cuda(f"""
source = {kind}()
region = a.register(source)
assert region.device == "cuda:0"
for value in range(1, 6):
    source.stream.hold()
    source.fill(value)
    write = a.write(region, remote, imm=1, deadline=WAIT)
    let_it_look()
    assert not write.done() and b.poll_imm(1) == value - 1 and target.bytes[0] == value - 1
    source.stream.release()
    assert write.result(WAIT).bytes == 4096
    assert set(target.bytes) == {{value}}, value
if hasattr(source, "asked"):
    assert source.asked[0] == -1 and all(stream > 2 for stream in source.asked[1:])
""")


def test_write_of_a_tuple_waits_for_no_stream(run_cuda):
    """Goal: what an omitted wait does is seen: the bytes of before are sent. (The other tests could
    not fail else.) The same for -1."""
    run_cuda("""
source = Tensor()
bare = a.register((source.pointer, 4096, "cuda"))
source.fill(1)
source.stream.hold()
source.fill(2)
a.write(bare, remote, imm=1, deadline=WAIT).result(WAIT)
assert target.bytes[0] == 1
target.bytes[0] = 0
a.write(a.register(source), remote, imm=1, stream=-1, deadline=WAIT).result(WAIT)
assert target.bytes[0] == 1
""")


@pytest.mark.parametrize("name", ["number", "torch", "cupy", "method", "attribute"])
def test_write_begins_after_the_stream_that_is_named(run_cuda, name):
    """Goal: each way to name a stream is understood, and goes before the owner's."""
    run_cuda(f"""
class Named: pass
source, other = Array(), Stream()
handle, named = other.cuda_stream, Named()
named.__dict__.update({{"torch": {{"cuda_stream": handle}}, "cupy": {{"ptr": handle}},
    "method": {{"__cuda_stream__": lambda: (0, handle)}},
    "attribute": {{"__cuda_stream__": (0, handle)}}}}.get({name!r}, {{}}))
region = a.register(source, local_only=True)
source.stream.hold()
other.hold()
write = a.write(region, remote, imm=1, stream=handle if {name!r} == "number" else named)
let_it_look()
assert not write.done()
other.release()
write.result(WAIT)
source.stream.release()
""")


def test_pages_and_scatter_begin_after_the_stream(run_cuda):
    """Goal: the other writes honour streams as well."""
    run_cuda("""
source = Tensor()
region = a.register(source)
source.stream.hold()
source.fill(9)
pages = a.write_pages(region, [1, 0], remote, [0, 1], page_bytes=100, imm=1)
slices = a.scatter(region, [(remote, 0, 200, 100), (remote, 0, 300, 100)], imm=1)
let_it_look()
assert not pages.done() and not slices.done() and b.poll_imm(1) == 0
source.stream.release()
pages.result(WAIT), slices.result(WAIT)
assert set(target.bytes[:400]) == {9} and target.bytes[400] == 0 and b.poll_imm(1) == 4
""")


def test_write_that_waits_ends_by_cancel_deadline_and_close(run_cuda):
    """Goal: the operation settles once, whatever its stream does."""
    run_cuda("""
source = Tensor()
region = a.register(source)
source.stream.hold()
cancelled = a.write(region, remote, imm=1)
assert cancelled.cancel()
refused(lambda: cancelled.result(WAIT), "E_CANCELLED")
late = a.write(region, remote, imm=1, deadline=0.01)
refused(lambda: late.result(WAIT), "E_TIMEOUT")
closed = a.write(region, remote, imm=1)
a.close()
refused(lambda: closed.result(WAIT), "E_CLOSED")
source.stream.release()
assert target.bytes[0] == 0 and b.poll_imm(1) == 0
""")


def test_held_tensor_delays_no_other(run_cuda):
    """Goal: the engine's streams are not one queue in which tensors wait for each other."""
    run_cuda("""
held, free = Tensor(), Tensor()
held.stream.hold()
first = a.write(a.register(held), remote, imm=1)
for _ in range(40):
    a.write(a.register(free), remote, imm=1, deadline=WAIT).result(WAIT)
assert not first.done()
held.stream.release()
first.result(WAIT)
""")


def test_child_of_a_fork_leaves_streams_alone(run_cuda):
    """Goal: a write in the child is refused before its tensor is asked for a stream, and the parent
    goes on."""
    run_cuda("""
import os
source = Tensor()
region = a.register(source)
asked = source.asked
child = os.fork()
if child == 0:
    try:
        a.write(region, remote, imm=1)
    except wimm.Error as problem:
        os._exit(0 if problem.code == wimm.Status.E_FORKED and source.asked == asked else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
a.write(region, remote, imm=1, deadline=WAIT).result(WAIT)
""")


def test_register_cuda_refuses_what_it_cannot_use(run_cuda):
    """Goal: gaps, masks, constants and a wrong device are errors that say what to do."""
    run_cuda("""
def changed(**changes):
    made = Array()
    made.changes = changes
    return made
refused(lambda: a.register(changed(strides=(8,))), "E_INVAL", "contiguous")
refused(lambda: a.register(changed(shape=(8, 4), strides=(4, 32))), "E_INVAL", "contiguous")
refused(lambda: a.register(changed(mask=object())), "E_INVAL", "mask")
assert a.register(changed(shape=(8, 4), strides=(16, 4))).length == 128
frozen = changed(data=(Memory().pointer, True))
refused(lambda: a.register(frozen), "E_INVAL", "local_only")
assert a.register(frozen, local_only=True).length == 4096
host, card = ctypes.create_string_buffer(64), Memory().pointer
refused(lambda: a.register((ctypes.addressof(host), 64, "cuda")), "E_INVAL", "on cpu")
refused(lambda: a.register((card, 64, "cpu")), "E_INVAL", "cuda:0")
refused(lambda: a.register((card, 64, "cuda:1")), "E_INVAL", "cuda:0")
refused(lambda: a.register((card, 64, "rocm")), "E_UNSUPPORTED", "rocm")
assert a.register((card, 64, "cuda:0")).device == "cuda:0"
refused(lambda: a.send(remote.peer, Tensor()), "E_UNSUPPORTED", "host")
refused(lambda: a.mirror(1, Tensor()), "E_UNSUPPORTED", "host")
for nonsense, kind in (("x", TypeError), (-2, ValueError), (1.5, TypeError)):
    try:
        a.write(a.register(Array()), remote, stream=nonsense)
    except kind:
        continue
    raise AssertionError(nonsense)
""")


def test_array_without_a_stream(run_cuda):
    """Goal: version 3 may say that nothing is to be waited for; before it, all blocking streams are
    waited for by the default one."""
    run_cuda("""
source = Array()
region = a.register(source)
source.stream.hold()
source.changes = {"stream": None}
a.write(region, remote, imm=1, deadline=WAIT).result(WAIT)
source.changes = {"version": 2}
a.write(region, remote, imm=1, deadline=WAIT).result(WAIT)
default = Stream()
default.cuda_stream = 1
default.hold()
write = a.write(region, remote, imm=1)
let_it_look()
assert not write.done()
default.release()
write.result(WAIT)
""")
