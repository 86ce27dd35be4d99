# SPDX-License-Identifier: Apache-2.0
"""scripts/gen_api.py: the page is what the headers say, and each function is on it."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import gen_api  # noqa: E402

HEADER = """#define WIMM_API x
/** Open a thing: begin.
 *  size  1..5.
 *  Returns: OK, E_INVAL.  Thread: any,
 *  also callbacks.  Blocks: yes, for a while.  Owns: nothing. */
WIMM_API wimm_status wimm_thing_open(int size);

/** What it takes. Returns, Thread, Blocks: as wimm_thing_open(). More words. */
struct wimm_args {
	int size;           /* a size */
};
#define WIMM_ARGS_INIT \\
	{ 1 }
WIMM_API int *wimm_thing_use(const struct wimm_args *args);

/** Set *thing to NULL, a | b. Thread: any. */
WIMM_API void wimm_thing_close(void);
"""


def page(tmp_path, text):
    (tmp_path / "thing.h").write_text(text)
    return gen_api.render(tmp_path)


def test_committed_page_is_what_the_headers_give():
    """Goal: a changed header without a new page fails here."""
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "gen_api.py"), "--check"],
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_exported_function_is_on_the_page():
    """Goal: no function without a word; the map of the library is the list of them."""
    exported = re.findall(r"^\t(wimm_\w+);$", (ROOT / "src" / "libwimm.map").read_text(), re.M)
    named = re.findall(r"^\| `(wimm_\w+)` \|", gen_api.PAGE.read_text(), re.M)
    assert len(exported) > 50 and sorted(named) == sorted(exported)


def test_comment_gives_a_sentence_a_thread_and_what_it_waits_for(tmp_path):
    """Goal: lines are joined, fields end where the next begins, references are followed."""
    text = page(tmp_path, HEADER)
    assert ("| `wimm_thing_open` | Open a thing: begin | any, also callbacks | yes, for a while |"
            in text)
    assert "| `wimm_thing_use` | What it takes | any, also callbacks | yes, for a while |" in text
    assert "| `wimm_thing_close` | Set \\*thing to NULL, a \\| b | any | - |" in text


@pytest.mark.parametrize("cut", ["/** Set *thing to NULL, a | b. Thread: any. */",
                                 "Thread: any. */\nWIMM_API void"])
def test_function_without_a_comment_is_refused(tmp_path, cut):
    """Goal: neither an absent comment nor one that says nothing of the call passes for one."""
    with pytest.raises(gen_api.Malformed, match="wimm_thing_close"):
        page(tmp_path, HEADER.replace(cut, cut.replace("Thread: any.", "")
                                      if "void" in cut else ""))
