"""Check where events can go: the journal, Prometheus, recordings, OTLP."""

import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from hicache_dbg.tracer.cli.doctor_parts import Needs, Part, State
from hicache_dbg.tracer.sinks import socket_answers

__all__ = ["journald", "otlp", "prometheus", "recordings"]

CONNECT_WAIT_S = 1.0
LAST_PORT = 65535


def journald(needs: Needs) -> Iterator[Part]:
    """Check that the socket of the journal answers."""
    path = needs.settings.journald_socket
    if socket_answers(path):
        yield Part("journald", State.OK, f"{path} answers")
    else:
        yield Part(
            "journald",
            needs.state_without("journald"),
            f"{path} does not answer: events go to standard error",
            "in a container, mount the socket or set HICACHE_DBG_JOURNALD_SOCKET",
        )


def prometheus(needs: Needs) -> Iterator[Part]:
    """Check that the ports of all ranks can be bound."""
    first, ranks = needs.settings.prometheus_port, needs.settings.ranks
    if not first:
        yield Part("prometheus port", State.ABSENT, "HICACHE_DBG_PROMETHEUS_PORT is not set")
        return
    refused = {port: _refused(first.address, port) for port in range(first, first + ranks)}
    if words := [f"{first.address}:{port}: {why}" for port, why in refused.items() if why]:
        advice = "choose another port, or an address of this machine"
        yield Part("prometheus port", State.MISSING, ", ".join(words), advice)
    else:
        shown = str(first) if ranks == 1 else f"{first} to {first + ranks - 1}"
        yield Part("prometheus port", State.OK, f"{first.address}:{shown}: free")


def recordings(needs: Needs) -> Iterator[Part]:
    """Check that the folder of recordings can be written to."""
    folder = needs.settings.directory
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield Part(
            "recordings",
            needs.state_without("recording"),
            f"{nearest} is not a folder this process can write to",
            "set HICACHE_DBG_DIR",
        )
        return
    free = shutil.disk_usage(nearest).free
    made = "" if folder.exists() else ", made when needed"
    yield Part("recordings", State.OK, f"{folder}{made}, {free / 2**30:.1f} GiB free")


def otlp(needs: Needs) -> Iterator[Part]:
    """Check that the OTLP endpoint accepts connections."""
    named = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    endpoint = next((needs.environ[name] for name in named if needs.environ.get(name)), "")
    if not endpoint:
        yield Part("otlp endpoint", needs.state_without("otel"), f"{named[0]} is not set")
        return
    grpc = _over_grpc(needs.environ)
    try:
        place = urlsplit(endpoint if "://" in endpoint or not grpc else f"//{endpoint}")
        port = place.port or (443 if place.scheme == "https" else 80)
    except ValueError as error:  # half an IPv6 address, or no such port
        yield _no_url(needs, str(error))
        return
    known = place.scheme in {"http", "https"} or (grpc and not place.scheme)
    if not known or not place.hostname:
        yield _no_url(needs, "it does not begin with http:// or https:// and a host")
        return
    address = f"{place.hostname}:{port}"  # without user name and password
    shown = f"{place.scheme}://{address}" if place.scheme else address
    try:
        socket.create_connection((place.hostname or "", port), CONNECT_WAIT_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        state = needs.state_without("otel")
        yield Part("otlp endpoint", state, f"{shown}: {reason}", "start the collector")
    else:
        yield Part("otlp endpoint", State.OK, f"{shown} answers")


def _over_grpc(environ: Mapping[str, str]) -> bool:
    """Return whether the exporter is gRPC's, which also takes an address without http://."""
    general = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    return environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", general) == "grpc"


def _no_url(needs: Needs, why: str) -> Part:
    """Return the part of an endpoint that our exporter cannot use; its text may hold a password."""
    state, advice = needs.state_without("otel"), "name it as http://HOST:PORT"
    return Part("otlp endpoint", state, f"the variable holds no URL for HTTP: {why}", advice)


def _refused(address: str, port: int) -> str:
    """Return why metrics cannot be served there; empty if they can."""
    if port > LAST_PORT:
        return f"no such port, expected one up to {LAST_PORT}"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, port), family=family).close()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return ""
