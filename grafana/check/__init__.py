"""Check that Grafana shows the dashboards as intended, with Grafana's own library, which runs in Node.

:mod:`.asking` sends the queries of each panel to a Prometheus. :mod:`.node` runs the program in this folder, which
returns what each panel would show, and the panel's faults. :mod:`.tables` formats both as text.
"""
