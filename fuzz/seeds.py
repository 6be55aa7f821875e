#!/usr/bin/env python3
"""Inputs that fuzzing has found worth keeping, one a line in seeds/TARGET.txt, with \\n, \\r, \\\\ and \\xNN for what can't be seen.

    seeds.py TARGET DIR    writes them out, a file each, for `cargo fuzz run TARGET DIR`
"""

import hashlib
import pathlib
import re
import sys

ESCAPES = {b"\\n": b"\n", b"\\r": b"\r", b"\\\\": b"\\"}


def plain(line):
    """The bytes that a line stands for."""
    escape = re.compile(rb"\\(?:x[0-9a-f]{2}|[nr\\])")
    return escape.sub(lambda found: ESCAPES.get(found[0]) or bytes.fromhex(found[0][2:].decode()), line)


def main(target, directory):
    seeds = pathlib.Path(__file__).parent / "seeds" / f"{target}.txt"
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for line in seeds.read_bytes().split(b"\n")[:-1]:
        seed = plain(line)
        (directory / hashlib.sha1(seed).hexdigest()).write_bytes(seed)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
