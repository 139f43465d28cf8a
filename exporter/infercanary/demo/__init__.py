"""Demo of all parts of InferCanary on one machine, without Docker."""
