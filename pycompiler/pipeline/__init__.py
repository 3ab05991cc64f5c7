"""The stages composed: a frame to an entry of the engine.

This folder and `graphs.py` are the only places that import more than one stage.  Read `compiler.py` first; `family.py` is what
the frames of one compiled callable share.
"""

from pycompiler.pipeline.assemble import assemble
from pycompiler.pipeline.family import Family, families
from pycompiler.pipeline.hook import eagerly, leave_eager
from pycompiler.pipeline.of_graph import of_graph
from pycompiler.pipeline.own_backends import aot_eager, native
from pycompiler.pipeline.records import GraphRecord, Made

__all__ = [
    "Family",
    "GraphRecord",
    "Made",
    "aot_eager",
    "assemble",
    "eagerly",
    "families",
    "leave_eager",
    "native",
    "of_graph",
]
