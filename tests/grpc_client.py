"""A gRPC client on grpcio, for tests: all kinds of calls through the proxy at the given port. Ends with 0 when all went well."""

import sys
import threading
from concurrent import futures

import grpc


def channel(authority):
    return grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}", options=[("grpc.default_authority", authority)])


def method(kind, name, over=None):
    return getattr(over or echo, kind)(f"/test.Echo/{name}")


def code_of(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


echo = channel("echo")

answer, call = method("unary_unary", "Unary").with_call(b"hello", timeout=10)
assert answer == b"re: hello", answer
assert ("x-cost", "7") in call.trailing_metadata(), call.trailing_metadata()

# A streamed message is here before the next one is sent: the server waits for this acknowledgement.
acknowledge = method("unary_unary", "Acknowledge")
numbers = []
for message in method("unary_stream", "Count")(b"a 20", timeout=30):
    numbers.append(int(message))
    acknowledge(f"a {numbers[-1]}".encode(), timeout=10)
assert numbers == list(range(20)), numbers

assert method("stream_unary", "Collect")(iter([b"a", b"b", b"c"]), timeout=10) == b"a+b+c"

answered = threading.Semaphore(1)


def words():
    for n in range(20):
        # The next word only after the answer to the one before.
        assert answered.acquire(timeout=10)
        yield str(n).encode()


heard = []
for message in method("stream_stream", "Talk")(words(), timeout=30):
    heard.append(message)
    answered.release()
assert heard == [f"re: {n}".encode() for n in range(20)], heard

code, details = code_of(method("unary_unary", "Refuse"), b"", timeout=10)
assert (code, details) == (grpc.StatusCode.NOT_FOUND, "no such thing: 100 %\u00e9"), (code, details)
assert code_of(method("unary_unary", "Sleep"), b"5", timeout=0.3)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
assert len(method("unary_unary", "Large")(b"3000000", timeout=20)) == 3_000_000

# The proxy's own errors, as statuses with words.
for authority in ("nowhere", "refusing"):
    code, details = code_of(method("unary_unary", "Unary", channel(authority)), b"x", timeout=10)
    assert code == grpc.StatusCode.UNAVAILABLE, (authority, code, details)
    assert details.startswith("lanemesh: "), details

# Many at once on one channel.
with futures.ThreadPoolExecutor(max_workers=50) as pool:
    unary = method("unary_unary", "Unary")
    answers = list(pool.map(lambda n: unary(str(n).encode(), timeout=20), range(500)))
assert answers == [f"re: {n}".encode() for n in range(500)]
print("ok")
