"""Servers for tests: each a process of its own on a free port, gone when the test process is gone, however that ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# moto checks a key and then writes it: conditional writes are atomic only because one lock surrounds the whole application.
# It fails with a KeyError where S3 answers NoSuchUpload; that is mended here.
# The server ends with its parent: when the pipe on its stdin closes, or (a fork may hold the pipe) its parent has changed.
_MOTO = """
import os, sys, threading, time

parent = os.getppid()
def follow_pipe():
    sys.stdin.buffer.read()
    os._exit(0)
def follow_parent():
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)
for follow in (follow_pipe, follow_parent):
    threading.Thread(target=follow, daemon=True).start()

import logging
from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

logging.getLogger("werkzeug").setLevel(logging.ERROR)
application, lock = create_backend_app("s3"), threading.Lock()

no_upload = b"<Error><Code>NoSuchUpload</Code><Message>The specified upload does not exist.</Message></Error>"

def one_at_a_time(environ, start_response):
    with lock:
        try:
            return [b"".join(application(environ, start_response))]
        except KeyError:
            if "uploadId=" not in environ.get("QUERY_STRING", ""):
                raise
            start_response("404 Not Found", [("Content-Type", "application/xml"), ("Content-Length", str(len(no_upload)))])
            return [no_upload]

class KeepAlive(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def log_request(self, *args):
        pass

server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=KeepAlive)
print(server.port, flush=True)
server.serve_forever()
"""


@contextmanager
def moto_server() -> Iterator[str]:
    """An S3 server in memory; gives its endpoint URL."""
    process = subprocess.Popen([sys.executable, "-c", _MOTO], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"the moto server did not start: exit code {process.wait(10)}")
        yield f"http://127.0.0.1:{int(port)}"
    finally:
        process.kill()
        process.communicate()
