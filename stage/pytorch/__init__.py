"""The same layers on PyTorch, for models and machines that the native kernels do not know."""
