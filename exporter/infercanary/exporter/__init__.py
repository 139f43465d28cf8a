"""The exporter: finds the probes on a host, polls them, and serves what Prometheus scrapes."""
