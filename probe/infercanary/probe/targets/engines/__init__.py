"""What targets that run a model in this process share: their tensors, and how each engine loads a model."""
