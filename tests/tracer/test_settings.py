"""The gate's variables, read once into one frozen object."""

from pathlib import Path

import pytest

from hicache_dbg.tracer.settings import (
    VARIABLES,
    Action,
    Checksum,
    Gate,
    Lines,
    Native,
    Settings,
    SettingsError,
)


def test_unset_environment_gives_the_documented_defaults() -> None:
    """With nothing set the gate is off and every default is DESIGN's."""
    settings = Settings.from_environ({"HOME": "/x"})
    assert settings.gate is Gate.OFF
    assert settings.checksum is Checksum.LOADS
    assert settings.sample == 0.01
    assert (settings.pools, settings.ops) == (("*",), ("*",))
    assert settings.action is Action.LOG
    assert settings.sinks is None
    assert settings.lines is None
    assert settings.queue == 65536
    assert settings.prometheus_port == 0


@pytest.mark.parametrize("word", ["1", "true", "on", "yes", "ON", " Yes "])
def test_every_word_for_on_opens_the_gate(word: str) -> None:
    """All documented words open the gate, whatever their case."""
    assert Settings.from_environ({"HICACHE_DBG": word}).gate is Gate.ON


@pytest.mark.parametrize("word", ["0", "false", "off", "no", ""])
def test_every_word_for_off_leaves_the_gate_shut(word: str) -> None:
    """All documented words, and the empty one, leave the gate shut."""
    assert Settings.from_environ({"HICACHE_DBG": word}).gate is Gate.OFF


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("HICACHE_DBG", "2", "armed"),
        ("HICACHE_DBG_CHECKSUM", "all", "off, sample, loads, ends, three"),
        ("HICACHE_DBG_SAMPLE", "1.5", "from 0 to 1"),
        ("HICACHE_DBG_SAMPLE", "nan", "from 0 to 1"),
        ("HICACHE_DBG_SINKS", "syslog", "journald,prometheus,otel,recording,stderr"),
        ("HICACHE_DBG_POOLS", ",", "globs"),
        ("HICACHE_DBG_OPS", "laod,store", "backup, load, store, fetch, send, recv"),
        ("HICACHE_DBG_ACTION", "abort", "log, raise"),
        ("HICACHE_DBG_LINES", "some", "paths, all"),
        ("HICACHE_DBG_SCRUB", "-1", "MB/s"),
        ("HICACHE_DBG_HOST_GB", "all", "GB"),
        ("HICACHE_DBG_DIR_GB", "-1", "GB"),
        ("HICACHE_DBG_QUEUE", "0", "1 to 16777216"),
        ("HICACHE_DBG_QUEUE", "1e3", "1 to 16777216"),
        ("HICACHE_DBG_QUEUE", "9" * 5000, "1 to 16777216"),
        ("HICACHE_DBG_PROMETHEUS_PORT", "65536", "0 to 65535"),
        ("HICACHE_DBG_CHEKSUM", "loads", "HICACHE_DBG_CHECKSUM"),
    ],
)
def test_a_bad_value_names_variable_value_and_what_is_allowed(
    name: str, value: str, allowed: str
) -> None:
    """The message alone is enough to mend the value, a misspelt variable included."""
    with pytest.raises(SettingsError) as caught:
        Settings.from_environ({name: value})
    text = str(caught.value)
    assert name in text
    assert repr(value) in text
    assert allowed in text
    assert "\n" not in text


def test_each_variable_reaches_its_field() -> None:
    """A value other than the default, set for every variable there is, lands in its field."""
    wanted = {
        "HICACHE_DBG": ("armed", Gate.ARMED),
        "HICACHE_DBG_CHECKSUM": ("three", Checksum.THREE),
        "HICACHE_DBG_SAMPLE": ("0.5", 0.5),
        "HICACHE_DBG_SINKS": ("otel, stderr", ("otel", "stderr")),
        "HICACHE_DBG_POOLS": ("*index_k*,mla", ("*index_k*", "mla")),
        "HICACHE_DBG_OPS": ("load", ("load",)),
        "HICACHE_DBG_ACTION": ("raise", Action.RAISE),
        "HICACHE_DBG_LINES": ("all", Lines.ALL),
        "HICACHE_DBG_SCRUB": ("100", 100.0),
        "HICACHE_DBG_HOST_GB": ("200", 200.0),
        "HICACHE_DBG_DIR_GB": ("20", 20.0),
        "HICACHE_DBG_DIR": ("/data", Path("/data")),
        "HICACHE_DBG_QUEUE": ("7", 7),
        "HICACHE_DBG_PROMETHEUS_PORT": ("9400", 9400),
        "HICACHE_DBG_NATIVE": ("0", Native.OFF),
        "HICACHE_DBG_JOURNALD_SOCKET": ("/run/x", Path("/run/x")),
    }
    assert {variable.name for variable in VARIABLES} == set(wanted)
    settings = Settings.from_environ({name: text for name, (text, _) in wanted.items()})
    for variable in VARIABLES:
        assert getattr(settings, variable.field) == wanted[variable.name][1], variable.name


def test_globs_of_operations_may_leave_some_out() -> None:
    """A glob that names any operation is taken as it stands."""
    settings = Settings.from_environ({"HICACHE_DBG_OPS": "*e*, load"})
    assert settings.ops == ("*e*", "load")


def test_recordings_go_under_the_users_state_folder() -> None:
    """XDG_STATE_HOME is honoured for the default folder."""
    settings = Settings.from_environ({"XDG_STATE_HOME": "/state"})
    assert settings.directory == Path("/state/hicache-dbg")


def test_rank_and_world_size_come_from_the_launcher() -> None:
    """What torchrun sets is read; outside of it there is one rank, number 0."""
    many = Settings.from_environ({"RANK": "3", "WORLD_SIZE": "8"})
    assert (many.rank, many.ranks) == (3, 8)
    alone = Settings.from_environ({})
    assert (alone.rank, alone.ranks) == (0, 1)


def test_a_sink_that_is_named_twice_is_one_sink() -> None:
    """Two of a kind would count and record everything twice."""
    environ = {"HICACHE_DBG_SINKS": "recording,stderr,recording"}
    assert Settings.from_environ(environ).sinks == ("recording", "stderr")


def test_a_user_without_a_home_has_a_folder_for_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user may have neither HOME nor an entry: that must not end the host."""

    def nobody(_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(nobody))
    assert Settings.from_environ({}).directory.is_absolute()


def test_the_home_of_nobody_is_a_clear_error() -> None:
    """A path under a user that does not exist is refused like any other bad value."""
    with pytest.raises(SettingsError, match="HICACHE_DBG_DIR='~nobody-here/x' is not allowed"):
        Settings.from_environ({"HICACHE_DBG_DIR": "~nobody-here/x"})


def test_a_rank_that_is_no_number_is_left_alone() -> None:
    """RANK belongs to others: what it holds ends nothing."""
    assert Settings.from_environ({"RANK": "\u00b2", "WORLD_SIZE": "x"}).rank == 0
