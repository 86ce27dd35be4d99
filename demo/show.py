# SPDX-License-Identifier: Apache-2.0
"""How the demo looks on a terminal, and in a file."""
import shutil
import sys
import textwrap

LABEL = 10


class Screen:
    """Lines with a label in front. A bar and growing text only where there is a terminal."""

    def __init__(self, out=None):
        self._out = out or sys.stdout
        self.live = self._out.isatty()
        self.width = min(shutil.get_terminal_size((96, 24)).columns, 100)
        self._column = 0

    def write(self, text):
        self._out.write(text)
        self._out.flush()

    def line(self, text=""):
        self.write(text + "\n")

    def labelled(self, label, text):
        """A paragraph beside its label."""
        room = max(20, self.width - LABEL - 2)
        for index, part in enumerate(textwrap.wrap(text, room) or [""]):
            self.line(f"{label if index == 0 else '':{LABEL}}{part}")

    def bar(self, label, done, total, note=""):
        if not self.live:
            return
        room = max(10, self.width - LABEL - len(note) - 12)
        full = room * done // total
        drawn = "#" * full + "." * (room - full)
        self.write(f"\r{label:{LABEL}}[{drawn}] {100 * done // total:3d} % {note}")
        if done == total:
            self.erase()

    def erase(self):
        if self.live:
            self.write("\r" + " " * (self.width - 1) + "\r")

    def grow(self, text):
        """Text that appears as it is generated, wrapped at the width."""
        for char in text.replace("\n", " "):
            if self._column == 0:
                if char == " ":
                    continue
                self.write(" " * LABEL)
            self.write(char)
            self._column += 1
            if self._column > self.width - LABEL - 16 and char == " ":
                self.write("\n")
                self._column = 0

    def end_text(self):
        if self._column:
            self.write("\n")
            self._column = 0

    def table(self, rows):
        """(what, value, remark) each."""
        wide = max(len(what) for what, _, _ in rows) + 1
        value = max(len(value) for _, value, _ in rows) + 2
        for what, number, remark in rows:
            self.line(f"  {what:{wide}}{number:>{value}}  {remark}".rstrip())


def size(count_bytes):
    """Bytes as people say them, 1 MB = 10^6."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count_bytes >= least:
            return f"{count_bytes / least:,.1f} {unit}"
    return f"{count_bytes} B"


def duration(ns):
    """A time with three figures or more, in the unit that fits."""
    if ns < 10e6:
        return f"{ns / 1e3:,.0f} us"
    if ns < 1e9:
        return f"{ns / 1e6:,.1f} ms"
    return f"{ns / 1e9:,.2f} s"
