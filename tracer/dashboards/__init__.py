"""Dashboards as code: tables of panels, the JSON built from them, and checks of that JSON."""
