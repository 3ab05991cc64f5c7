"""Code generation: schedule -> source text of kernels.

In: `ir.kernel.Schedule`.  Out: C++ (`cpp/`) for CPUs, Triton (`triton/`) for GPUs.
"""
