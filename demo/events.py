# SPDX-License-Identifier: Apache-2.0
"""What the demo's processes tell the one that started them: one JSON object a line."""
import json
import sys
import time


def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


def fail(error):
    """End the process with a reason that its starter shows."""
    say("failed", text=f"{type(error).__name__}: {error}")
    sys.exit(1)


def now_ns():
    """A clock that all processes of one machine share."""
    return time.monotonic_ns()


class Text:
    """Says a generated text piece by piece, as soon as a piece can no longer change."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._ids = []
        self._shown = 0

    @property
    def started(self):
        return bool(self._ids)

    def token(self, index):
        self._ids.append(index)
        text = self._tokenizer.decode(self._ids)
        # Half a character at the end becomes whole with a later token.
        whole = len(text.rstrip("\N{REPLACEMENT CHARACTER}"))
        if whole > self._shown:
            say("text", text=text[self._shown:whole])
            self._shown = whole
