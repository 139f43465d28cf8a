"""Which containers have a probe: each way to find them is one file here that registers itself (see ``base``)."""
