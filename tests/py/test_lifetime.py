# SPDX-License-Identifier: Apache-2.0
"""Opening, closing in every order and at every moment, forking and leaving the interpreter."""
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from ctypes.util import find_library

import pytest
import wimm
from conftest import LIBRARY, ROOT, open_engine
from wimm import _calls

WAIT = 20


def test_import_changes_nothing_in_the_process():
    """Goal: importing loads no library, starts no thread, sets no handler, imports nothing big."""
    code = """if True:
        import atexit, gc, os, signal, sys, threading
        def state():
            maps = open("/proc/self/maps").read()
            return (threading.active_count(), len(os.listdir("/proc/self/task")),
                    [signal.getsignal(n) for n in signal.valid_signals()], atexit._ncallbacks(),
                    sys.unraisablehook, dict(os.environ), "libwimm" in maps,
                    len(os.listdir("/proc/self/fd")), os.getcwd())
        import ctypes, concurrent.futures, urllib.parse, tempfile  # whose own doings are not ours
        before = state()
        import wimm, wimm.rendezvous
        assert state() == before, (state(), before)
        assert not {"numpy", "torch", "asyncio"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60,
                   env={**os.environ, "PYTHONPATH": str(ROOT / "python")})


def test_library_choice_is_made_once(run_python, tmp_path):
    """Goal: use_library() is an override before the first use and an error after it."""
    run_python("""if True:
        wimm.Engine("sim").close()
        chosen = wimm._native._chosen
        wimm.use_library(chosen)
        try:
            wimm.use_library("/somewhere/else.so")
        except RuntimeError as problem:
            assert str(chosen) in str(problem)
        else:
            raise SystemExit(1)
    """)
    (tmp_path / "empty.so").write_bytes(b"")
    subprocess.run([sys.executable, "-c", f"""if True:
        import wimm
        for path in ({str(tmp_path / "empty.so")!r}, "/nowhere/libwimm.so"):
            wimm.use_library(path)
            try:
                wimm.Engine()
            except OSError:
                pass
            else:
                raise SystemExit(1)
    """], check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})


def test_library_of_something_else_is_refused_by_name(tmp_path):
    """Goal: a library that is not ours, of another version or too old is named, not called."""
    (tmp_path / "other.c").write_text("int other;\n")
    subprocess.run(["cc", "-shared", str(tmp_path / "other.c"), "-o", str(tmp_path / "other.so")],
                   check=True)
    from wimm import _native
    with pytest.raises(OSError, match="other.so has no wimm_version"):
        _native._load(tmp_path / "other.so")
    for number, problem in ((200, "version 0.2"), (101, None)):
        source = tmp_path / f"v{number}.c"
        source.write_text(f"unsigned wimm_version(void) {{ return {number}; }}\n")
        built = source.with_suffix(".so")
        subprocess.run(["cc", "-shared", str(source), "-o", str(built)], check=True)
        with pytest.raises(OSError, match=problem or "no wimm_engine_open: build it anew"):
            _native._load(built).wimm_engine_open(None, None)


def test_close_twice_and_use_after_it_are_harmless(provider):
    """Goal: closing is idempotent, for the engine and all it has; later calls are E_CLOSED."""
    engine = open_engine(provider)
    region = engine.register(bytearray(10))
    parts = [region, engine.open_remote(region.desc), engine.watcher(print),
             engine.recvs(print), engine.peer_group([engine.add_peer(engine.address)])
             if provider == "sim" else engine.register(bytearray(5))]
    engine.close()
    engine.close()
    assert engine.closed and all(part.closed for part in parts)
    for part in parts:
        part.close()
    for call in (engine.stats, lambda: engine.address, lambda: engine.register(bytearray(1)),
                 lambda: engine.expect(1, 1), lambda: engine.write(region, parts[1]),
                 lambda: engine.watcher(print)):
        with pytest.raises(wimm.Error) as caught:
            call()
        assert caught.value.code == wimm.Status.E_CLOSED


def test_close_settles_what_is_open(pair):
    """Goal: nobody waits for an engine that is gone; each operation ends once, and none is left."""
    silent = pair.a.add_peer(pair.b.address)
    operations = [pair.a.expect(1, 1), pair.a.send(silent, b"nobody takes it")]
    counts = dict.fromkeys(operations, 0)

    def count(operation):
        counts[operation] += 1

    for operation in operations:
        operation.add_done_callback(count)
    receiver = pair.a.recvs(print)
    pair.a.close()
    for operation in operations:
        with pytest.raises(wimm.Error) as caught:
            operation.result(0)
        assert caught.value.code == wimm.Status.E_CLOSED
    assert list(counts.values()) == [1, 1] and receiver.closed
    pair.b.close()
    assert not [target for _, target in _calls.remembered()
                if getattr(getattr(target, "__self__", None), "engine", None) in (pair.a, pair.b)]


def test_close_with_writes_in_flight_settles_each_once(provider):
    """Goal: bytes on their way at close neither crash nor hang nor vanish without an answer."""
    a, b = open_engine(provider), open_engine(provider)
    source, target = a.register(bytearray(1 << 20)), b.register(bytearray(1 << 20))
    remote = a.open_remote(target.desc)
    operations = [a.write(source, remote, imm=1, deadline=WAIT) for _ in range(50)]
    a.close()
    ends = [operation.exception(0) for operation in operations]
    assert all(end is None or end.code == wimm.Status.E_CLOSED for end in ends)
    b.close()


def test_close_from_one_thread_wakes_those_who_wait(pair):
    """Goal: a thread in result() is told when another one closes the engine."""
    expected, ended = pair.a.expect(1, 1), []

    def wait():
        try:
            expected.result(WAIT)
        except wimm.Error as problem:
            ended.append(problem.code)

    thread = threading.Thread(target=wait)
    thread.start()
    pair.a.close()
    thread.join(WAIT)
    assert ended == [wimm.Status.E_CLOSED]


def test_close_while_threads_submit_ends_them_with_an_error(pair):
    """Goal: a call never meets a closed engine: it is done or refused, and nothing crashes."""
    ends, begun = [], threading.Barrier(4)

    def submit():
        begun.wait(WAIT)
        try:
            while True:
                pair.a.write(pair.src_region, pair.remote, length=10)
        except wimm.Error as problem:
            ends.append(problem.code)

    threads = [threading.Thread(target=submit) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait(WAIT)
    pair.a.close()
    for thread in threads:
        thread.join(WAIT)
    assert len(ends) == 3 and set(ends) <= {wimm.Status.E_CLOSED, wimm.Status.E_INVAL}


class Silent:
    """The library, which forgets to settle what is open at close."""

    def __init__(self, library):
        self.library = library

    def __getattr__(self, name):
        if name == "wimm_expect_imm_count":
            return lambda *args: 0
        return getattr(self.library, name)


def test_close_without_an_answer_is_an_error_and_no_hang():
    """Goal: if the library broke its promise to settle everything, whoever waits is told so."""
    engine = open_engine("sim")
    engine._lib = Silent(engine._lib)
    operation = engine.expect(1, 1)
    engine.close()
    with pytest.raises(wimm.Error, match="without settling") as caught:
        operation.result(0)
    assert caught.value.code == wimm.Status.E_INTERNAL


def test_engine_forgotten_is_closed_with_a_warning(provider):
    """Goal: an engine that nobody can reach any more gives its port and threads back."""
    engine = open_engine(provider)
    engine.register(bytearray(10))
    alive = weakref.ref(engine)
    with pytest.warns(ResourceWarning, match="never closed"):
        del engine
        gc.collect()
    assert alive() is None


def test_engine_that_cannot_open_leaves_nothing(provider):
    """Goal: a failed open has no half-made object, no thread and no open file behind it."""
    tasks = len(os.listdir("/proc/self/task"))
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(wimm.Error):
            wimm.Engine(provider="no such provider", on_peer_event=print)
    gc.collect()
    assert len(os.listdir("/proc/self/task")) == tasks
    assert len(os.listdir("/proc/self/fd")) == files


def test_engines_opened_and_closed_leave_nothing(provider):
    """Goal: threads and files go with their engine."""
    open_engine(provider).close()
    tasks, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with open_engine(provider) as engine:
            engine.register(bytearray(100))
    assert len(os.listdir("/proc/self/task")) == tasks
    assert len(os.listdir("/proc/self/fd")) == files


USE = """
import gc
provider, how = sys.argv[1:]
def engine(**options):
    return wimm.Engine(provider, "127.0.0.1:0" if provider == "tcp" else None, **options)
a, b = engine(on_peer_event=lambda event: None), engine()
source, target = a.register(bytes(1000), local_only=True), b.register(bytearray(1000))
remote = a.open_remote(target.desc)
expected = b.expect(1, 1, deadline=20)
a.write(source, remote, imm=1, deadline=20).result(20)
expected.result(20)
"""
CASE_212 = {
    "closed": "a.close(); b.close()",
    "left open": "",
    "with work open": "a.expect(1, 1); a.recvs(print); a.watcher(print).add(); "
                      "a.write(source, remote)",
    "in a function": "def main():\n  mine = engine()\n  mine.expect(1, 1)\nmain()",
    "in a cycle": "class Holder: pass\nh = Holder(); h.h = h; h.e = a; del a, h",
    "with callbacks at work": "def again(old, new):\n  try:\n    w.add()\n"
                              "  except wimm.Error:\n    pass\n"
                              "w = a.watcher(again)\nw.add()",
    "in a daemon thread": "import threading\nstarted = threading.Event()\n"
                          "def wait():\n  started.set()\n  a.expect(7, 1).exception()\n"
                          "threading.Thread(target=wait, daemon=True).start()\nstarted.wait()",
    "closed at exit by the user": "import atexit\natexit.register(a.close)",
    "exit in the middle": "sys.exit(0)",
    "without running atexit": "sys.stdout.flush(); os._exit(0)",
}


@pytest.mark.parametrize("how", CASE_212)
def test_case_212_exit_status_is_0_however_it_is_left(how, provider, run_python):
    """Goal: import, use, close or not, exit: status 0 and not a word on stderr."""
    done = run_python(f"import os, sys\n{USE}\n{CASE_212[how]}\n", provider, how)
    assert done.stderr == ""


def test_case_212_import_alone_exits_with_0(run_python):
    """Goal: an import without any use leaves quietly."""
    assert run_python("").stderr == ""


def test_case_212_nothing_is_loaded_twice_or_without_need(run_python):
    """Goal: one libwimm, and no verbs, libfabric or CUDA for a provider that needs none. Shows
    something only where they are installed."""
    if not find_library("ibverbs") or not find_library("fabric"):
        pytest.skip("ibverbs-providers or libfabric1 is not installed")
    run_python(f"""import sys
{USE}
mapped = {{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}}
assert len([path for path in mapped if "libwimm" in path]) == 1, mapped
assert not [path for path in mapped if any(word in path for word in
            ("verbs", "fabric", "rdma", "cuda", "efa"))], mapped
""", "tcp", "")


def test_exit_status_of_the_program_is_kept(run_python):
    """Goal: an open engine changes no exit status: not of sys.exit, not of an exception."""
    run_python(f"import sys\n{USE}\nsys.exit(7)\n", "sim", "", status=7)
    done = run_python(f"import sys\n{USE}\nraise ValueError('mine')\n", "sim", "", status=1)
    assert done.stderr.strip().endswith("ValueError: mine")


@pytest.mark.parametrize("waiting", [
    "a.expect(7, 1).result()",
    "a._lib = Full(a._lib); a.write(source, remote)",
], ids=["for an operation", "for room in the queue"])
def test_ctrl_c_ends_a_wait(waiting):
    """Goal: a signal is served while Python waits, and the engine can be closed afterwards."""
    code = f"""if True:
    import sys
    import wimm
    wimm.use_library({str(LIBRARY)!r})
    class Full:
        def __init__(self, library):
            self.library = library
        def __getattr__(self, name):
            if name == "wimm_submit_single_write":
                return lambda *args: wimm.Status.AGAIN
            return getattr(self.library, name)
    with wimm.Engine("sim") as a:
        source = a.register(bytearray(8))
        remote = a.open_remote(source.desc)
        try:
            print("waiting", flush=True)
            {waiting}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    # A shell's background jobs ignore the signal, and so would this child of theirs.
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                               env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    try:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=WAIT)[0] == "interrupted\n"
        assert process.returncode == 0
    finally:
        process.kill()


def test_fork_child_is_refused_and_parent_goes_on(provider, run_python):
    """Goal: in the child each call fails with E_FORKED and leaving it is quiet; the parent's engine
    does not notice."""
    done = run_python(f"""import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own of 3.12 and later, at fork
{USE}
region, watcher, pending = a.register(bytearray(10)), a.watcher(print), a.expect(9, 1)
with engine() as c:
    child = os.fork()
    if child == 0:
        calls = [lambda: a.stats(), lambda: a.address, lambda: a.register(bytearray(10)),
                 lambda: a.write(source, remote), lambda: a.expect(1, 1), lambda: a.close(),
                 lambda: region.close(), lambda: watcher.add(), lambda: watcher.close(),
                 lambda: pending.result(), lambda: pending.exception(1), lambda: pending.cancel(),
                 lambda: a.open_remote(target.desc), lambda: a.poll_imm(1)]
        codes = []
        for call in calls:
            try:
                call()
                codes.append(None)
            except wimm.Error as problem:
                codes.append(problem.code)
        assert codes == [wimm.Status.E_FORKED] * len(calls), codes
        with engine() as mine:  # the child may have one of its own
            mine.register(bytearray(10))
        sys.exit(0)  # through the with block and atexit, as a program that forgot to _exit
assert os.waitpid(child, 0)[1] == 0
expected = b.expect(1, 1, deadline=20)
a.write(source, remote, imm=1, deadline=20).result(20)
expected.result(20)
""", provider, "")
    assert done.stderr == ""


def test_fork_by_multiprocessing_is_survived(run_python):
    """Goal: worker processes forked while engines are open work and end as ever."""
    done = run_python(f"""import multiprocessing, sys
{USE}
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, [-1, 2]) == [1, 2]
a.write(source, remote, deadline=20).result(20)
""", "tcp", "")
    assert done.stderr == ""
