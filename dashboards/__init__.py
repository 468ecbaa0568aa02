"""Files that operators install: dashboards, rules, provisioning, systemd drop-ins."""
