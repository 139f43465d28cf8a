"""Check that Grafana renders the dashboards as intended, with Grafana's own library, which runs in Node.

:mod:`.asking` sends the queries of each panel to a Prometheus. :mod:`.node` runs the program in this folder,
which returns the content of each panel and its faults. :mod:`.tables` formats both as text.
"""
