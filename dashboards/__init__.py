"""What operators install beside the tracer: dashboards, rules, provisioning, systemd drop-ins."""
