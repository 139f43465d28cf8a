"""``make gpu``: checks InferCanary's claims about GPUs on this machine, in a run that can be resumed."""
