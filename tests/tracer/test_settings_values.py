"""What each variable of the gate takes, to the edge, and what it does not."""

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_dbg.tracer.parsing import digits, words
from hicache_dbg.tracer.settings import (
    VARIABLES,
    Action,
    Checksum,
    Gate,
    Listen,
    Native,
    Settings,
    SettingsError,
)

FIELDS = {variable.name: variable.field for variable in VARIABLES}


def read(name: str, value: str) -> object:
    """Return what the field of a variable holds if it alone is set."""
    return getattr(Settings.from_environ({name: value}), FIELDS[name])


def test_every_field_has_the_default_that_is_documented() -> None:
    """With nothing set, and in a Settings that a test or a verb builds by itself."""
    expected = {
        "gate": Gate.OFF,
        "checksum": Checksum.LOADS,
        "sample": 0.01,
        "sinks": None,
        "pools": ("*",),
        "ops": ("*",),
        "action": Action.LOG,
        "lines": None,
        "scrub_mb_s": 0.0,
        "host_gb": 0.0,
        "directory": Path("/state/hicache-dbg"),
        "directory_gb": 64.0,
        "queue": 65536,
        "prometheus_port": 0,
        "journald_socket": Path("/run/systemd/journal/socket"),
        "native": Native.AUTO,
        "rank": 0,
        "ranks": 1,
    }
    read_in = Settings.from_environ({"XDG_STATE_HOME": "/state"})
    built = Settings(directory=Path("/state/hicache-dbg"))
    assert {field.name: getattr(read_in, field.name) for field in fields(Settings)} == expected
    assert read_in == built
    assert read_in.prometheus_port.address == "0.0.0.0"  # noqa: S104


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("HICACHE_DBG_SAMPLE", 0, 1),
        ("HICACHE_DBG_SCRUB", 0, 10**6),
        ("HICACHE_DBG_HOST_GB", 0, 10**6),
        ("HICACHE_DBG_DIR_GB", 0, 10**6),
        ("HICACHE_DBG_QUEUE", 1, 1 << 24),
        ("HICACHE_DBG_PROMETHEUS_PORT", 0, 65535),
    ],
)
def test_a_number_may_lie_on_either_edge_and_not_beyond(
    name: str, lowest: int, highest: int
) -> None:
    """What the message says is allowed is allowed, both ends included."""
    assert read(name, str(lowest)) == lowest
    assert read(name, str(highest)) == highest
    for beyond in (lowest - 1, highest + 1):
        with pytest.raises(SettingsError, match=name):
            read(name, str(beyond))


@pytest.mark.parametrize(
    ("value", "port", "address"),
    [
        ("9464", 9464, "0.0.0.0"),  # noqa: S104
        (":9464", 9464, "0.0.0.0"),  # noqa: S104
        ("127.0.0.1:9464", 9464, "127.0.0.1"),
        ("[::1]:9464", 9464, "::1"),
        ("::1:9464", 9464, "::1"),
    ],
)
def test_a_port_is_served_at_its_address(value: str, port: int, address: str) -> None:
    """Of either family; at every address if none is given."""
    listen = read("HICACHE_DBG_PROMETHEUS_PORT", value)
    assert isinstance(listen, Listen)
    assert (listen, listen.address) == (port, address)


@pytest.mark.parametrize("value", ["localhost:9464", "127.0.0.1:", "127.0.0.1", "9464:127.0.0.1"])
def test_what_is_no_port_at_an_address_is_refused(value: str) -> None:
    """A name is not looked up; the message has an example of each form."""
    with pytest.raises(SettingsError) as caught:
        read("HICACHE_DBG_PROMETHEUS_PORT", value)
    assert caught.value.allowed == (
        "a port from 0 to 65535, or ADDRESS:PORT such as 127.0.0.1:9464"
    )


@pytest.mark.parametrize(
    ("words", "native"),
    [
        (("1", "true", "on", "yes", "ON"), Native.ON),
        (("0", "false", "off", "no", "Off"), Native.OFF),
        (("auto", " AUTO "), Native.AUTO),
    ],
)
def test_every_word_for_compiled_code_is_understood(words: tuple[str, ...], native: Native) -> None:
    """The gate's words, in any case, and auto."""
    assert {read("HICACHE_DBG_NATIVE", word) for word in words} == {native}
    with pytest.raises(SettingsError, match="expected auto, 1/true/on/yes or 0/false/off/no"):
        read("HICACHE_DBG_NATIVE", "armed")


@pytest.mark.parametrize("name", ["HICACHE_DBG", *FIELDS])
def test_an_empty_value_is_no_value(name: str) -> None:
    """As for OTEL_*: what a template left empty is not set."""
    assert Settings.from_environ({name: " "}) == Settings.from_environ({})


def test_an_error_has_its_parts() -> None:
    """The value as it was written, blanks included, and what is allowed, apart from the text."""
    with pytest.raises(SettingsError) as caught:
        read("HICACHE_DBG_ACTION", " abort ")
    error = caught.value
    assert (error.variable, error.value) == ("HICACHE_DBG_ACTION", " abort ")
    assert error.allowed == "one of log, raise"
    assert str(error) == "HICACHE_DBG_ACTION=' abort ' is not allowed: expected one of log, raise"


@pytest.mark.parametrize("name", ["HICACHE_DBG_TEST_REQUIRE_SERVICES", "HICACHE_DBGX", "HICACHE"])
def test_a_variable_of_others_is_left_alone(name: str) -> None:
    """Only what begins as ours do, and the test suite's own apart, can be a misspelt one."""
    assert Settings.from_environ({name: "?"}) == Settings.from_environ({})


@given(st.text())
def test_digits_are_ascii_digits_and_few(text: str) -> None:
    """Whatever else int() takes, signs, blanks, underscores or another script, is no number."""
    plain = bool(text) and set(text) <= set("0123456789") and len(text) < 20
    assert digits(text) == (int(text) if plain else None)


@pytest.mark.parametrize(
    ("text", "number"), [("9" * 19, 10**19 - 1), ("9" * 20, None), ("007", 7), ("-1", None)]
)
def test_a_number_has_at_most_nineteen_digits(text: str, number: int | None) -> None:
    """Longer ones int() may refuse with an error of its own."""
    assert digits(text) == number


@given(st.lists(st.sampled_from(["mla", "*index_k*", "", " "]), max_size=5))
def test_words_lie_between_commas(parts: list[str]) -> None:
    """Blanks around them are dropped, and so are empty ones."""
    wanted = tuple(part for part in parts if part.strip())
    assert words(" , ".join(parts)) == wanted


@pytest.mark.parametrize("value", [",", " , ", "journald,syslog", "syslog,journald"])
def test_sinks_are_known_and_at_least_one(value: str) -> None:
    """One wrong name among right ones is told, wherever it stands."""
    with pytest.raises(SettingsError, match="any of journald,prometheus,otel,recording,stderr"):
        read("HICACHE_DBG_SINKS", value)


def test_pools_and_operations_are_traced_if_any_glob_names_them() -> None:
    """Each by its own variable; letters are told apart by case."""
    settings = Settings(pools=("mla", "*index_k*"), ops=("l*", "store"))
    assert [name for name in ("mla", "v4_index_k_2", "MLA", "mha") if settings.traces(name)] == [
        "mla",
        "v4_index_k_2",
    ]
    assert [op for op in ("load", "store", "backup", "Load") if settings.traces_op(op)] == [
        "load",
        "store",
    ]
    assert not settings.traces("load")
    assert not settings.traces_op("mla")


def test_a_tilde_is_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every path; without another word, recordings go into its state folder."""
    monkeypatch.setenv("HOME", "/home/someone")
    assert read("HICACHE_DBG_DIR", "~/x") == Path("/home/someone/x")
    assert read("HICACHE_DBG_JOURNALD_SOCKET", "~/y") == Path("/home/someone/y")
    assert Settings.from_environ({}).directory == Path("/home/someone/.local/state/hicache-dbg")


@pytest.mark.parametrize("value", ["", "x", "-1", "1.0"])
def test_a_launchers_number_that_is_none_is_not_taken(value: str) -> None:
    """Of the rank and of how many there are."""
    settings = Settings.from_environ({"RANK": value, "WORLD_SIZE": value})
    assert (settings.rank, settings.ranks) == (0, 1)


def test_the_environment_is_the_processs_own_if_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An empty mapping is an environment too, and not a missing one."""
    monkeypatch.setenv("HICACHE_DBG_CHECKSUM", "THREE")
    assert Settings.from_environ().checksum is Checksum.THREE
    assert Settings.from_environ({}).checksum is Checksum.LOADS
