"""A Prometheus behind a name and a password: they are sent, and never shown."""

import json
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from hicache_dbg.tracer.cli.main import main
from hicache_dbg.tracer.dashboards.live import Prometheus, PrometheusError

SECRET = "p@ss word"
GIVEN = f"Basic {b64encode(f'reader:{SECRET}'.encode()).decode()}"


class _Guarded(BaseHTTPRequestHandler):
    """Answers whoever names itself; sends the paths under /elsewhere on to localhost."""

    def do_GET(self) -> None:
        given = self.headers["Authorization"]
        if self.path.startswith("/elsewhere"):
            self.send_response(302)
            port = self.headers["Host"].rpartition(":")[2]
            self.send_header("Location", f"http://localhost:{port}/open")
            self.end_headers()
            return
        data = [str(given)] if self.path.startswith("/open") else ["x"]
        self.send_response(200 if given == GIVEN or self.path.startswith("/open") else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"data": data}).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base has it
        """Say nothing."""


@pytest.fixture
def guarded() -> Iterator[str]:
    """The address of a server that asks for a name and a password, without them."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Guarded) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_name_and_the_password_of_an_address_are_sent(guarded: str) -> None:
    """They may be quoted as URLs are."""
    url = f"http://reader:p%40ss%20word@{guarded}"
    assert Prometheus(url).label_values("up", "job") == ["x"]
    with pytest.raises(PrometheusError, match=rf"^http://{guarded} refused: status 401"):
        Prometheus(f"http://reader:wrong@{guarded}").label_values("up", "job")


def test_another_host_does_not_learn_the_password(guarded: str) -> None:
    """A server may redirect to one."""
    url = f"http://reader:p%40ss%20word@{guarded}/elsewhere"
    assert Prometheus(url).label_values("up", "job") == ["None"]


@pytest.mark.parametrize("verb", ["check", "preview"])
@pytest.mark.parametrize(
    "address", ["http://me:hunter2@[::1", "http://me:hunter2@127.0.0.1:1", "me:hunter2@127.0.0.1:1"]
)
def test_no_error_shows_the_password(
    capsys: pytest.CaptureFixture[str], verb: str, address: str
) -> None:
    """Whether nobody answers, or it is no address at all."""
    assert main(["dashboards", verb, "--prometheus", address]) in {2, 3}
    shown = capsys.readouterr()
    assert "hicache-dbg: " in shown.err
    assert "hunter2" not in shown.out + shown.err
