"""GPU access by CUDA's driver alone, without any framework."""
