#!/usr/bin/env python3
"""The contracts of lanemesh, written a second time: buckets, hashes, rings, record bytes.

    python3 tests/vectors.py check tests/vectors.json    recomputes every answer in the file
    python3 tests/vectors.py write tests/vectors.json    writes the file anew from the questions below

Needs the package `xxhash` (pip install xxhash). Shares nothing with the Rust code but the definitions in REQUIREMENTS L1, R2.
"""

import hashlib
import json
import sys

import xxhash

KEY_SEED = int.from_bytes(b"lanemesh", "big")
ADMISSION_SEED = int.from_bytes(b"lm-admit", "big")


def bucket(scheme, salt, experiment, subject):
    message = subject.encode()
    if scheme == "prefixed":
        parts = [part.encode() for part in (salt, experiment)]
        head = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        message = hashlib.sha256(head).digest() + bytes(32) + message
    return int.from_bytes(hashlib.sha256(message).digest()[:4], "big") % 10000


def key_hash(key):
    return xxhash.xxh3_64_intdigest(key.encode(), KEY_SEED)


def point(instance, index):
    return xxhash.xxh3_64_intdigest(instance.encode() + index.to_bytes(4, "little"))


def points_of(weight):
    return max(1, (256 * weight + 50) // 100) if weight else 0


def admission(hashed_key, instance):
    return xxhash.xxh3_64_intdigest(hashed_key.to_bytes(8, "little") + instance.encode(), ADMISSION_SEED) >> 32


def order(points, hashed_key):
    """Distinct owners clockwise; equal points by instance id."""
    points = sorted(points)
    start = sum(1 for hashed, _ in points if hashed < hashed_key)
    return list(dict.fromkeys(owner for _, owner in points[start:] + points[:start]))


def ring(instances):
    return [(point(i["id"], n), i["id"]) for i in instances for n in range(points_of(i["weight"]))]


# Record bytes: postcard 1 (https://postcard.jamesmunns.com/wire-format), fields in this order.


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def text(value):
    return varint(len(value.encode())) + value.encode()


def option(value, encode):
    return b"\0" if value is None else b"\1" + encode(value)


def choice(*names):
    return lambda value: varint(names.index(value))


def drain(value):
    return text(value["by"]) + varint(value["at"]) + text(value["reason"])


def tags(value):
    pairs = sorted(value.items(), key=lambda pair: pair[0].encode())
    return varint(len(pairs)) + b"".join(text(key) + text(tag) for key, tag in pairs)


RECORD = [
    ("owner", text), ("generation", varint), ("sequence", varint), ("id", text), ("service", text), ("host", text),
    ("port", varint), ("protocol", choice("http1", "h2c", "grpc", "tcp")), ("env", text), ("region", text),
    ("zone", text), ("version", text), ("lane", text), ("weight", varint),
    ("health", choice("passing", "warning", "critical")), ("drain", lambda value: option(value, drain)), ("tags", tags),
    ("capacity", lambda value: option(value, varint)), ("updated_at", varint), ("removed", lambda value: bytes([value])),
    ("load", lambda value: option(value, lambda load: varint(load["percent"]) + bytes([load["share"]]))),
    ("counted", lambda value: bytes([value])),
]  # fmt: skip


def record_bytes(record):
    assert list(record) == [name for name, _ in RECORD], "fields, in order"
    return b"".join(encode(record[name]) for name, encode in RECORD).hex()


# The questions.

SUBJECTS = ["", "u1", "user-42", "ünïcødé-用户-🙂", "x" * 55, "x" * 56, "x" * 63, "x" * 64, "x" * 119, "x" * 120, "tenant\x1fuser"]
NAMES = [("", ""), ("s1", "checkout"), ("ab", "c"), ("a", "bc"), ("größe", "опыт"), ("s" * 64, "e" * 64)]
KEYS = ["", "u1", "user-42", "ünïcødé-用户-🙂", "x" * 16, "x" * 17, "x" * 128, "x" * 129, "x" * 240, "x" * 241, "x" * 1000]
INSTANCES = ["a", "orders-0", "orders-1", "pod_3.zone-1", "x" * 63]
WEIGHTS = [0, 1, 2, 50, 70, 99, 100, 101, 250, 1600]


def fleet(*weights):
    return [{"id": f"orders-{n}", "weight": weight} for n, weight in enumerate(weights)]


FLEETS = [fleet(100), fleet(100, 100, 100, 100), fleet(0, 1, 70, 100, 1600), fleet(0, 0), fleet(*[100] * 12), fleet(1, 1)]
TIES = [(50, "c"), (10, "b"), (50, "a"), (50, "b"), (2**64 - 1, "c"), (2**64 - 1, "a")]

PLAIN = {
    "owner": "n1", "generation": 1, "sequence": 1, "id": "orders-0", "service": "orders", "host": "10.0.0.7",
    "port": 8080, "protocol": "http1", "env": "default", "region": "default", "zone": "default", "version": "v1",
    "lane": "stable", "weight": 100, "health": "critical", "drain": None, "tags": {}, "capacity": None,
    "updated_at": 0, "removed": False, "load": None, "counted": False,
}  # fmt: skip
FULL = PLAIN | {
    "owner": "pod-7.eu", "generation": 300, "sequence": 2**40, "id": "orders-7", "host": "fd00::7", "port": 65535,
    "protocol": "grpc", "env": "prod", "region": "eu", "zone": "eu-1", "version": "1.4.0-rc.1+ab12", "lane": "canary",
    "weight": 1600, "health": "warning", "drain": {"by": "ann", "at": 1767225600000, "reason": "Umzug: größer"},
    "tags": {"b": "2", "a": "größe", "empty": ""}, "capacity": 70000, "updated_at": 1767225600123, "removed": True,
    "load": {"percent": 300, "share": 70}, "counted": True,
}  # fmt: skip


def hexed(number, digits=16):
    return f"{number:0{digits}x}"


def answers():
    tie_keys = [0, 10, 11, 50, 51, 2**64 - 1]
    return {
        "about": "Contracts of lanemesh: the same answers on every node, in every version, for ever. Definitions: the doc"
        " comments of src/lanes/bucket.rs and src/routing/ring/mod.rs. Written by tests/vectors.py; hashes are hexadecimal.",
        "bucket": [
            {"scheme": scheme, "salt": salt, "experiment": experiment, "subject": s, "bucket": bucket(scheme, salt, experiment, s)}
            for scheme, names in (("prefixed", NAMES), ("bare-subject", NAMES[:1]))
            for salt, experiment in names
            for s in SUBJECTS
        ],
        "key_hash": [{"key": key, "hash": hexed(key_hash(key))} for key in KEYS],
        "points_of_weight": [{"weight": weight, "points": points_of(weight)} for weight in WEIGHTS],
        "points": [{"id": i, "index": n, "hash": hexed(point(i, n))} for i in INSTANCES for n in (0, 1, 255, 256, 4095)],
        "admission_hash": [
            {"key": key, "id": i, "hash": hexed(admission(key_hash(key), i), 8)} for key in KEYS[:4] for i in INSTANCES
        ],
        "failover": [
            {"instances": instances, "orders": [{"key": key, "order": order(ring(instances), key_hash(key))} for key in KEYS]}
            for instances in FLEETS
        ],
        "ties": {
            "points": [{"hash": hexed(hashed), "id": i} for hashed, i in TIES],
            "orders": [{"key_hash": hexed(key), "order": order(TIES, key)} for key in tie_keys],
        },
        "record": [{"record": record, "bytes": record_bytes(record)} for record in (PLAIN, FULL)],
    }


def main():
    verb, path = sys.argv[1:]
    if verb == "write":
        with open(path, "w", encoding="utf-8") as file:
            json.dump(answers(), file, ensure_ascii=False, indent=1)
            file.write("\n")
        return
    with open(path, encoding="utf-8") as file:
        stored = json.load(file)
    wrong = [name for name, answer in answers().items() if stored.get(name) != answer]
    if wrong or set(stored) != set(answers()):
        sys.exit(f"{path} differs from what Python computes: {', '.join(wrong) or 'unknown parts'}")
    print("all answers agree")


main()
