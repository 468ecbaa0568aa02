"""Dashboards as code: what the panels ask, the JSON made of it, and the checks of that JSON."""
