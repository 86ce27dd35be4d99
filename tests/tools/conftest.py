# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command share: running it, and its one JSON object."""

import json
import os
import pathlib
import socket
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIMM = ROOT / os.environ.get("WIMM_BUILD", "build") / "tools" / "wimm"
LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_", "OMPI_", "SLURM_", "WIMM_")
DEADLINE_S = 120


def environment(**extra):
    """Without what a launcher or a user's settings may have left in it."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return {**clean, "WIMM_CONFIG": "/dev/null", **extra}


def start(*args, **extra):
    return subprocess.Popen([str(WIMM), *map(str, args)], env=environment(**extra), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process):
    """(exit status, standard output, standard error)"""
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"no end within {DEADLINE_S} s: {process.args}\n{out}\n{err}")
    return process.returncode, out, err


def run(*args, **extra):
    return finish(start(*args, **extra))


def run_json(*args, **extra):
    """The one object that a run prints; it must succeed."""
    status, out, err = run(*args, "--json", **extra)
    assert status == 0, err
    assert out.count("\n") == 1
    return json.loads(out)


def free_port():
    with socket.socket(socket.AF_INET6) as s:
        s.bind(("::", 0))
        return s.getsockname()[1]
