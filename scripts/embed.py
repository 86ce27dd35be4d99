#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""embed.py IN OUT [NAME]: OUT becomes C with the bytes of IN behind the function NAME()."""

import pathlib
import sys


def main():
    data = pathlib.Path(sys.argv[1]).read_bytes()
    name = sys.argv[3] if len(sys.argv) > 3 else "kernels_image"
    lines = [", ".join(str(b) for b in data[i:i + 24]) for i in range(0, len(data), 24)]
    text = "\n".join([
        "/* SPDX-License-Identifier: Apache-2.0 */",
        f"const void *{name}(void);",
        "static const _Alignas(64) unsigned char image[] = {", ",\n".join(lines), "};",
        f"const void *{name}(void)", "{", "\treturn image;", "}", ""])
    pathlib.Path(sys.argv[2]).write_text(text)


if __name__ == "__main__":
    main()
