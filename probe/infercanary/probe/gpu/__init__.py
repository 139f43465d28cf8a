"""GPU access through CUDA's driver alone, without a framework."""
