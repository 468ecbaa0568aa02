"""Scrapes of a Prometheus sink, and what is in them."""

import urllib.request
from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["PATH", "Samples", "samples", "scrape", "value"]

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

# The library gives its parser no types.
parse_text: Callable[[str], Iterable[Metric]] = text_string_to_metric_families

#: Labels of the copies of these tests.
PATH = {
    "pool": "deepseek_v4_c128",
    "op": "backup",
    "src": "device",
    "dst": "host",
    "layout": "page_first",
    "token_granular": "False",
    "rank": "0",
}


def scrape(port: int, accept: str = "text/plain") -> str:
    """Return the text of a scrape."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as response:
        text: str = response.read().decode()
    return text


def samples(text: str) -> Samples:
    """Return each sample of a scrape by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    """Return the value of one sample."""
    return found["hicache_dbg_" + name, frozenset(labels.items())]
