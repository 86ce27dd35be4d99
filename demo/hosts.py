# SPDX-License-Identifier: Apache-2.0
"""Two hosts on one machine: network namespaces that veth pairs join, made and removed here.

Each namespace has LINKS interfaces, which wimm takes for as many NICs. A rate is a token bucket of
the kernel's (tc tbf) on every interface. It takes root.
"""
import os
import re
import subprocess

LINKS = 4
_BURST_BYTES = 65536


class HostsError(Exception):
    """What is missing, for people."""


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostsError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class Hosts:
    """with Hosts(rate) as hosts: hosts.command(side), hosts.nics(side); side 0 and 1.

    rate_bytes_s  of all links together; None: as fast as they go
    name          tells several of one process apart
    """

    def __init__(self, rate_bytes_s=None, name="fast"):
        self._rate = rate_bytes_s
        self._names = [f"wimm-demo-{os.getpid()}-{name}-{side}" for side in "ab"]

    def __enter__(self):
        if os.geteuid() != 0:
            raise HostsError("making network namespaces takes root: run it with sudo, or run "
                             "`make demo`, which needs no rights")
        try:
            self._remove_stale()
            self._make()
        except FileNotFoundError as error:
            raise HostsError(f"{error.filename} is not installed (Debian: apt-get install "
                             "iproute2)") from None
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *exc):
        self._remove()

    def command(self, side):
        """What to put in front of a program's command line to run it there."""
        return ("ip", "netns", "exec", self._names[side])

    def nics(self, side):
        return ",".join(f"{self._address(link, side)}:0" for link in range(LINKS))

    @staticmethod
    def _address(link, side):
        return f"10.213.{link}.{side + 1}"

    def _make(self):
        for name in self._names:
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for link in range(LINKS):
            _run("ip", "-n", self._names[0], "link", "add", f"nic{link}", "type", "veth", "peer",
                 "name", f"nic{link}", "netns", self._names[1])
            for side, name in enumerate(self._names):
                _run("ip", "-n", name, "address", "add", f"{self._address(link, side)}/24", "dev",
                     f"nic{link}")
                _run("ip", "-n", name, "link", "set", f"nic{link}", "up")
                if self._rate is not None:
                    _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", f"nic{link}",
                         "root", "tbf", "rate", f"{8 * self._rate // LINKS}bit", "burst",
                         str(_BURST_BYTES), "latency", "100ms")

    def _remove(self):
        for name in self._names:
            # Its ends of the pairs go with it, and the other ends with them.
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    @staticmethod
    def _remove_stale():
        """Those of a demo that was killed."""
        for name in re.findall(r"^wimm-demo-\d+-\w+-[ab]", _run("ip", "netns", "list"), re.M):
            if not os.path.exists(f"/proc/{name.split('-')[2]}"):
                subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
