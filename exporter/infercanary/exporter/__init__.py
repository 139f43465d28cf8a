"""The exporter: finds the probes on a host, polls them, and serves metrics to Prometheus."""
