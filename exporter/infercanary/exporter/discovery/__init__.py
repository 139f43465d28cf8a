"""Discovery of containers with a probe. Each source of containers (Docker, Kubernetes, the config) has a module."""
