"""The entry point that SGLang calls in each of its processes (group ``sglang.srt.plugins``)."""

import os
import sys

__all__ = ["register"]


def register() -> None:
    """Attach if the gate is set; never raises, and imports nothing more while the gate is unset.

    SGLang calls it before any pool exists, and also in processes that never have one. It only
    installs hooks: the session, its thread and its sinks start with the process's first host pool.
    If armed, it does not even install hooks: importing this package has already started the
    switch's listener.
    """
    if not os.environ.get("HICACHE_DBG"):
        return
    import logging

    try:
        from hicache_dbg.tracer.settings import Gate, Settings

        if Settings.from_environ().gate is not Gate.ON:
            return
        from hicache_dbg.tracer.attach.sglang.start import install

        install()
    except Exception as error:  # noqa: BLE001 - SGLang would swallow it silently
        if (
            type(error).__name__ == "SettingsError"
            and "hicache_dbg.tracer.autoattach" in sys.modules
        ):
            return  # importing this package has said it
        logging.getLogger("hicache_dbg").warning(
            "hicache-dbg: %s: %s; tracing stays off", type(error).__name__, error
        )
