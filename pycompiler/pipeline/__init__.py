"""The composed stages: a frame → an entry of the engine.

In: a function and the values of its locals, at a miss of the engine.
Out: an entry: guards, and a plan or a function.  This package and `graphs.py` are the only places that import more
than one stage.

Files in reading order:

- compiler.py: `FrameCompiler`, which the engine calls at a miss
- family.py: `Family`, the shared state of one compiled callable's frames
- interface.py: the protocol of `Family`
- compile_environment.py: thread and process state during a compile
- call_backend.py: captured graph → backend → callable
- own_backends.py: the backends `native` and `aot_eager`
- region_parts.py: a graph cut into equal regions
- float_inputs.py: symbolic floats for a user's backend
- guards.py: the guards of an entry
- records.py: the records of a compile
- assemble.py: recipe and compiled graph → entry
- graph_errors.py: errors of a graph
- hook.py: functions that run during a graph break
- fx_frames.py: graphs that torch.compile captured
- stance.py: the stance of the process
- reports.py: log lines and errors
- verification.py: comparison of compiled calls with eager
- differences.py: comparison of results
- rounding_noise.py: how far rounding may move a result
- uninitialized.py: result elements that depend on unwritten memory
"""

from pycompiler.pipeline.assemble import assemble
from pycompiler.pipeline.family import Family, families
from pycompiler.pipeline.fx_frames import of_graph
from pycompiler.pipeline.hook import eagerly, leave_eager
from pycompiler.pipeline.own_backends import aot_eager, native
from pycompiler.pipeline.records import EntryParts, GraphRecord

__all__ = [
    "EntryParts",
    "Family",
    "GraphRecord",
    "aot_eager",
    "assemble",
    "eagerly",
    "families",
    "leave_eager",
    "native",
    "of_graph",
]
