"""Dashboards as code: one module each, and shared modules. `make dashboards` writes the result to json/."""
