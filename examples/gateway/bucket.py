"""The bucket of a subject (0..9999), as every lanemesh sidecar computes it. A lane owns the buckets start..start+size.

As a program: lines of scheme, salt, experiment, subject, separated by tabs, on the standard input; one bucket a line out.
Test yours against tests/vectors.json.
"""

import hashlib
import sys


def prefix(salt: str, experiment: str) -> bytes:
    """One SHA-256 block; compute it once per policy."""
    parts = [part.encode() for part in (salt, experiment)]
    head = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hashlib.sha256(head).digest() + bytes(32)


def bucket(prefix: bytes, subject: str) -> int:
    """With an empty prefix: the scheme `bare-subject`."""
    return int.from_bytes(hashlib.sha256(prefix + subject.encode()).digest()[:4], "big") % 10000


if __name__ == "__main__":
    sys.stdin.reconfigure(encoding="utf-8", newline="\n")
    for line in sys.stdin:
        scheme, salt, experiment, subject = line.rstrip("\n").split("\t")
        print(bucket(prefix(salt, experiment) if scheme == "prefixed" else b"", subject))
