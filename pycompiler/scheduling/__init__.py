"""Program -> fused kernels in order with a memory plan."""

from pycompiler.scheduling.schedule import schedule

__all__ = ["schedule"]
