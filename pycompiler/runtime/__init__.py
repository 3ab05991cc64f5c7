"""Runtime: generated source -> loaded kernels, and the plan that the native executor runs.

In: a schedule and the source of its kernels.  Out: `ir.plan.Plan` with its library and binaries.  Read in this order:

- `plan_builder.py`, `rules.py`: schedule -> plan; the rules of a legal plan.
- `plan_python.py`: a plan run in Python, the oracle of the native executor.
- `segments.py`: graphs with operators that Python calls between plans.
- `toolchain.py`, `build.py`: the C++ compiler; source -> library.
- `cuda_graphs.py`: what of a plan is recorded as a CUDA graph, and when.
- `triton_build.py`, `triton_compile.py`: Triton source -> GPU binaries; one kernel -> its binary.
- `triton_workers.py`, `triton_worker.py`: processes that compile kernels side by side, and what runs in one.
- `disk_cache.py`, `disk_entries.py`, `private_files.py`: the cache on disk, its entries, file permissions.
- `entry_origin.py`: the program and the compile that built an entry.
- `output_code.py`: a plan as a Python file.
- `heap.py`: memory of freed tensors.
"""
