"""A gRPC server on grpcio, for tests: no generated code, messages are bytes. Prints its port; ends when its input does."""

import sys
import threading
import time
from concurrent import futures

import grpc

seen = {}
lock = threading.Lock()


def event(name):
    with lock:
        return seen.setdefault(name, threading.Event())


def unary(request, context):
    context.set_trailing_metadata((("x-cost", "7"),))
    return b"re: " + request


def count(request, context):
    """Says the next number only after the one before was acknowledged by a call of its own."""
    name, most = request.decode().split()
    for n in range(int(most)):
        yield str(n).encode()
        if not event(f"{name} {n}").wait(10):
            context.abort(grpc.StatusCode.ABORTED, f"{n} was not acknowledged")


def acknowledge(request, context):
    event(request.decode()).set()
    return b""


def collect(requests, context):
    return b"+".join(requests)


def talk(requests, context):
    for request in requests:
        yield b"re: " + request


def refuse(request, context):
    context.abort(grpc.StatusCode.NOT_FOUND, "no such thing: 100 %\u00e9")


def sleep(request, context):
    time.sleep(float(request))
    return b"slept"


def large(request, context):
    return b"x" * int(request)


handlers = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Acknowledge": grpc.unary_unary_rpc_method_handler(acknowledge),
    "Collect": grpc.stream_unary_rpc_method_handler(collect),
    "Talk": grpc.stream_stream_rpc_method_handler(talk),
    "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
    "Sleep": grpc.unary_unary_rpc_method_handler(sleep),
    "Large": grpc.unary_unary_rpc_method_handler(large),
}
server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
sys.stdin.read()
