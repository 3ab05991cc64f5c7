"""Scheduling: program -> fused kernels in order, with a memory plan.

In: `ir.loops.Program`.  Out: `ir.kernel.Schedule`.  Read in this order:

- `schedule.py`: the whole stage.
- `graph.py`: nodes with their readers and writers.
- `simplify.py`, `two_passes.py`: rewrites before fusion.
- `body.py`, `iteration_space.py`: loop bodies and their variables.
- `fuse.py`: loops become nests.
- `placement.py`, `bundle.py`: storage inside a nest; several nests in one function.
- `stores.py`, `memory.py`: in-place writes of inputs; the memory plan.
- `rules.py`: the rules of a legal schedule.
"""

from pycompiler.scheduling.schedule import schedule

__all__ = ["schedule"]
