# SPDX-License-Identifier: Apache-2.0
"""SmolLM2's tokenizer, from the tables in its GGUF file, with the standard library alone.

Text is cut in two stages: every numeric character stands alone, then GPT-2's pattern cuts what lies
between. The stages cannot be one pattern: in "a  5" the two spaces end a piece of their own and
form one token, whereas one pattern would see the digit behind them and part them. Each word's
UTF-8 bytes, spelt in GPT-2's printable alphabet, are then merged pair by pair, lowest rank first.
"""
import re
import unicodedata
from itertools import pairwise

_SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
# With every numeric character in a piece of its own, [^\W_]+ is a run of letters, or that one.
_WORDS = re.compile(
    rf"'(?:s|t|re|ve|m|ll|d)| ?[^\W_]+| ?(?:[^\w{_SPACE}]|_)+"
    rf"|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+")
_DIGITS = re.compile("([0-9])")
_CACHED_WORDS_MAX = 65536
_CONTROL = 3  # the token type of a token that stands for no text
_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def _byte_alphabet():
    """GPT-2's spelling of the 256 bytes: printable ones are themselves, others count from 256."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable},
            **{byte: chr(256 + index) for index, byte in enumerate(rest)}}


_SPELT = _byte_alphabet()


def _isolate_numerals(text):
    if text.isascii():
        return [piece for piece in _DIGITS.split(text) if piece]
    pieces = [""]
    for char in text:
        if unicodedata.category(char)[0] == "N":
            pieces += [char, ""]
        else:
            pieces[-1] += char
    return [piece for piece in pieces if piece]


def split_words(text):
    """The pieces whose bytes are merged among themselves only."""
    return [word for piece in _isolate_numerals(text) for word in _WORDS.findall(piece)]


class Tokenizer:
    """keys: the metadata of the GGUF file."""

    def __init__(self, keys):
        if (keys["tokenizer.ggml.model"], keys["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
            raise ValueError("the tokenizer is {tokenizer.ggml.model}/{tokenizer.ggml.pre}, "
                             "not gpt2/smollm".format_map(keys))
        self._tokens = keys["tokenizer.ggml.tokens"]
        self._ids = {token: index for index, token in enumerate(self._tokens)}
        self._ranks = {tuple(merge.split(" ")): rank
                       for rank, merge in enumerate(keys["tokenizer.ggml.merges"])}
        self._control = {index for index, kind in enumerate(keys["tokenizer.ggml.token_type"])
                         if kind == _CONTROL}
        # A byte without a token of its own vanishes, as it does in every other implementation.
        self._spelt = {byte: char for byte, char in _SPELT.items() if char in self._ids}
        self._bytes = {char: byte for byte, char in _SPELT.items()}
        self._start_id = keys["tokenizer.ggml.bos_token_id"]
        self.eos_id = keys["tokenizer.ggml.eos_token_id"]
        self.vocab_count = len(self._tokens)
        self._cache = {}

    def _merge(self, word):
        parts = [self._spelt[byte] for byte in word.encode() if byte in self._spelt]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: self._ranks.get(pair, float("inf")))
            if best not in self._ranks:
                break
            merged, index = [], 0
            while index < len(parts):
                if tuple(parts[index:index + 2]) == best:
                    merged.append(parts[index] + parts[index + 1])
                    index += 2
                else:
                    merged.append(parts[index])
                    index += 1
            parts = merged
        return [self._ids[part] for part in parts]

    def encode(self, text):
        """Token ids of plain text; "<|im_end|>" in it is text like any other."""
        ids = []
        for word in split_words(text):
            found = self._cache.get(word)
            if found is None:
                if len(self._cache) >= _CACHED_WORDS_MAX:
                    self._cache.clear()
                found = self._cache[word] = self._merge(word)
            ids += found
        return ids

    def encode_chat(self, user, system=_SYSTEM):
        """Token ids of a conversation (ChatML) in which the assistant speaks next."""
        ids = []
        for role, content in (("system", system), ("user", user)):
            ids += [self._start_id, *self.encode(f"{role}\n{content}"), self.eos_id]
            ids += self.encode("\n")
        return ids + [self._start_id, *self.encode("assistant\n")]

    def decode(self, ids):
        """The text of the ids; control tokens have none, half a character becomes U+FFFD."""
        spelt = "".join(self._tokens[index] for index in ids if index not in self._control)
        return bytes(self._bytes[char] for char in spelt).decode(errors="replace")
