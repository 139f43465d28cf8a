"""What the probe asks of GPUs by CUDA's driver alone, without any framework."""
