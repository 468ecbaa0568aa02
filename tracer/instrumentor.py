"""Entry point for ``opentelemetry-instrument`` (group ``opentelemetry_instrumentor``).

It adds no gate of its own: without ``HICACHE_DBG`` nothing is wrapped here either. With it, the
hooks are in place as soon as this package is imported; all that is left is to send events to
OpenTelemetry as well, unless the user has chosen the sinks.
"""

import os

__all__ = ["HiCacheDbgInstrumentor"]


class HiCacheDbgInstrumentor:
    """Enables the OpenTelemetry sink in addition to the default ones.

    It implements the two methods that the command calls and needs no OpenTelemetry package. Spans,
    metrics and logs go to the providers the process has set, or else to private ones configured by
    ``OTEL_*``. ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=hicache_dbg`` disables it.
    """

    def instrument(self, **_options: object) -> None:
        """Send events to OpenTelemetry too, if the gate is set and no sinks are named.

        The choice is made through the environment, so child processes do the same. The options that
        the command passes to every instrumentor are ignored.
        """
        if not os.environ.get("HICACHE_DBG"):
            return
        from hicache_dbg.tracer.settings import Gate, Settings, SettingsError
        from hicache_dbg.tracer.sinks import default_sinks

        try:
            settings = Settings.from_environ()
        except SettingsError:
            return  # reported when the package was imported; tracing stays off
        if settings.gate is not Gate.OFF and settings.sinks is None:
            os.environ["HICACHE_DBG_SINKS"] = ",".join(
                (*default_sinks(settings.journald_socket), "otel")
            )

    def uninstrument(self, **_options: object) -> None:
        """Detach, deliver what is queued, and do not attach to later imports."""
        from hicache_dbg.tracer import autoattach

        autoattach.suppress()
        runtime = autoattach.current()
        if runtime is not None:
            runtime.stop()
