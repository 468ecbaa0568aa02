"""What ``opentelemetry-instrument`` finds (group ``opentelemetry_instrumentor``).

It adds no gate of its own: without ``HICACHE_DBG`` nothing is wrapped here either. With it, the
hooks are in place as soon as this package is imported; what is left to do is to send events to
OpenTelemetry as well, where nobody has chosen the sinks.
"""

import os

__all__ = ["HiCacheDbgInstrumentor"]


class HiCacheDbgInstrumentor:
    """Switches the OpenTelemetry sink on beside the default ones.

    It has the two methods that the command calls, and needs no package of OpenTelemetry's. Spans,
    metrics and logs go to the providers that the process has set, else to private ones from
    ``OTEL_*``; ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=hicache_dbg`` leaves it out.
    """

    def instrument(self, **_options: object) -> None:
        """Send events to OpenTelemetry too, if the gate is set and no sinks are named.

        Processes that are started from this one do the same: the choice is made in the
        environment. What the command passes to every instrumentor is taken and not needed.
        """
        if not os.environ.get("HICACHE_DBG"):
            return
        from hicache_dbg.tracer.settings import Gate, Settings, SettingsError
        from hicache_dbg.tracer.sinks import default_sinks

        try:
            settings = Settings.from_environ()
        except SettingsError:
            return  # said when the package was imported; tracing stays off
        if settings.gate is not Gate.OFF and settings.sinks is None:
            os.environ["HICACHE_DBG_SINKS"] = ",".join(
                (*default_sinks(settings.journald_socket), "otel")
            )

    def uninstrument(self, **_options: object) -> None:
        """Detach, deliver what waits, and attach to nothing that is imported later."""
        from hicache_dbg.tracer import autoattach

        autoattach.suppress()
        runtime = autoattach.current()
        if runtime is not None:
            runtime.stop()
