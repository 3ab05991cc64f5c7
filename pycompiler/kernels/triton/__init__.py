"""Functions that generated Triton kernels call (`helpers.py`)."""
