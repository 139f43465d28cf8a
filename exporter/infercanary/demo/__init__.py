"""The whole of InferCanary on one machine, without Docker."""
