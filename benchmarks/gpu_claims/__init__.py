"""``make gpu``: whether what InferCanary says of GPUs holds on this machine, as one run that can be resumed."""
