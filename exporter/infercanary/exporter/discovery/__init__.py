"""Discovery of containers with a probe: each method is one module here (see ``base``)."""
