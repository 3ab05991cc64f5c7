"""Names of `torch.compiler` and `torch._dynamo` that this package does not have, each with the reason.

`pycompiler.<name>` raises an error with the reason.  `tests/public_api/test_torch_names.py` checks that each public
name is in the package or here.
"""

from __future__ import annotations

ABSENT: dict[str, str] = {
    # torch.compiler
    "PrecompileError": "pycompiler.exc.PrecompileError",
    "cudagraph_mark_warmup_incomplete": "graphs with operators of other libraries are not recorded as CUDA graphs",
    "set_enable_guard_collectives": "ranks compile by themselves: guards are not compared between processes",
    # torch._dynamo
    "OptimizedModule": "compile() of a module returns an instance of a subclass of the module's class",
    "allow_c_slot": "the slots of C types that capture handles are a fixed table of the package",
    "bytecode_debugger": "PYCOMPILER_LOGS=bytecode shows generated code",
    "disable_nested_graph_breaks": "a break resumes in the innermost frame that can be resumed",
    "dont_skip_tracing": "library code is skipped by module, not by call",
    "export": "torch.export gives a graph without Python; explain() shows the graphs of a compile",
    "forbid_in_graph": "disallow_in_graph breaks the graph; disable() leaves a function to Python",
    "is_dynamo_disable_recursive": "marks are an attribute of functions",
    "mark_static_address": "kernels take addresses at each call",
    "optimize_assert": "compile(fullgraph=True)",
    "override_optimization_hint": "sizes are optimised for the values of the first call",
    "patch_dynamo_config": "assign to pycompiler.config around the call, or pass options to compile()",
    "replay": "pycompiler.debug.replay(file), or python -m pycompiler replay FILE",
    "reset_recompile_user_contexts": "recompilations are counted for each compiled callable",
    "set_recursion_limit": "capture bounds the depth of inlined calls by itself",
    "skip_frame": "disable(recursive=False) leaves one function to Python",
    "step_unsupported": "graph_break() breaks the graph",
}
