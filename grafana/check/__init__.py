"""Whether Grafana shows the boards as they are meant: by Grafana's own library, which runs in Node.

:mod:`.asking` asks a Prometheus what each panel asks, :mod:`.node` has the program in this folder say what the panels
would show and what is wrong with it, and :mod:`.tables` writes that for people.
"""
