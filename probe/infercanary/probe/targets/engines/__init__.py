"""Shared code of targets that run a model in this process: tensors, and loading and profiling for each engine."""
