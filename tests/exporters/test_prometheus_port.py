"""Ports and registries that a Prometheus sink shares with others."""

import os
import signal
import socket
import urllib.request
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, Counter
from tests.exporters.samples import copied
from tests.exporters.scrapes import PATH, samples, scrape, value

from hicache_dbg.exporters.prometheus import PrometheusSink
from hicache_dbg.exporters.prometheus_port import Port
from hicache_dbg.tracer.sink import SinkError


def test_a_second_sink_on_one_registry_goes_on_counting(
    registry: CollectorRegistry, serve: Callable[..., PrometheusSink], port: int
) -> None:
    """A second sink neither fails nor resets: the counters belong to the registry."""
    first = PrometheusSink(registry)
    first.emit([copied()])
    first.close()
    serve().emit([copied()])
    assert value(samples(scrape(port)), "copies_total", **PATH) == 2


def test_a_port_in_use_is_said_once_and_costs_no_count(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """With the port taken the sink keeps counting; one log line names the port, and a failure is counted."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        sink = PrometheusSink(registry, port=taken, address="127.0.0.1")
        with pytest.raises(SinkError) as caught:
            sink.emit([copied()])
        sink.emit([copied()])
        sink.close()
    assert caught.value.lost == 0
    assert registry.get_sample_value("hicache_dbg_copies_total", PATH) == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"hicache-dbg: metrics are not served on 127.0.0.1:{taken}: Address already in use"
    ]
    assert len(sink.problems) == 1


def test_a_rank_beyond_the_last_port_counts_unserved(registry: CollectorRegistry) -> None:
    """Rank 9 of a server with base port 65530 has no port: this is logged, and everything is counted."""
    sink = PrometheusSink(registry, port=65539, address="127.0.0.1")
    assert len(sink.problems) == 1
    assert "127.0.0.1:65539" in sink.problems[0]
    assert "65535" in sink.problems[0]
    with pytest.raises(SinkError, match="65539") as caught:
        sink.emit([copied()])
    assert caught.value.lost == 0
    assert registry.get_sample_value("hicache_dbg_copies_total", PATH) == 1


def test_a_port_that_becomes_free_is_served(registry: CollectorRegistry) -> None:
    """A taken port is retried once immediately, then every five seconds, until it can be served."""
    now = [100.0]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1]
        port = Port("127.0.0.1", number, lambda: registry, clock=lambda: now[0])
        assert [port.open() for _ in range(4)] == [False, False, True, True]
    now[0] += 4.9
    assert port.open()
    with pytest.raises(OSError, match="refused"):
        scrape(number)
    now[0] += 0.2
    assert port.open()
    scrape(number)
    port.close()


def test_names_that_another_owner_registered_do_not_stop_the_host(
    registry: CollectorRegistry, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """If our names are taken, the sink keeps and serves its own registry, and says so."""
    Counter("hicache_dbg_findings", "another's", registry=registry)
    sink = PrometheusSink(registry, port=port, address="127.0.0.1")
    sink.emit([copied()])
    assert value(samples(scrape(port)), "copies_total", **PATH) == 1
    sink.close()
    assert registry.get_sample_value("hicache_dbg_copies_total", PATH) is None
    assert "Duplicated timeseries" in caplog.text


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_closes_without_the_servers_thread(
    serve: Callable[..., PrometheusSink], port: int
) -> None:
    """The serving thread exists only in the parent: a child that joined it would hang."""
    sink = serve()
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        signal.alarm(5)
        sink.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").status == 200
