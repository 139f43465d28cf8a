"""The dashboards, as code: a module each, and what they share. `make dashboards` writes them to json/."""
