"""Receivers for sinks under measurement: one replaces journald, one an OpenTelemetry collector.

Each is a process that reads and discards, so neither root nor a network is needed.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READER = """
import socket, sys
reader = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
reader.bind(sys.argv[1])
print("ready", flush=True)
while reader.recv(1 << 20):
    pass
"""

COLLECTOR = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def stand_in(script: str, *arguments: str) -> Iterator[str]:
    """Run a process that receives what is sent to it; yield the first line that it prints."""
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextmanager
def receivers() -> Iterator[tuple[Path, Path]]:
    """Run both receivers; yield a folder for recordings, and the path of the journal's socket."""
    with tempfile.TemporaryDirectory() as name:
        folder, journal = Path(name), Path(name) / "journal"
        with stand_in(READER, str(journal)), stand_in(COLLECTOR) as port:
            os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{port}"
            yield folder, journal
