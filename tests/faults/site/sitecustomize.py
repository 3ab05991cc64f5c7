"""In a child of `tests.faults`: the fault that FAULT names is put in as soon as the compiler is loaded, ours or the peer's."""

import importlib.abc
import importlib.machinery
import os
import sys

# The module after which all is there -> the faults for it.
SIDES = {"pycompiler.api": "tests.faults.ours", "torch._inductor.compile_fx": "tests.faults.theirs"}


class Late(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in SIDES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run, faults = spec.loader.exec_module, SIDES.pop(name)

        def exec_module(module):
            run(module)
            from tests.faults.patch import put_in

            put_in(faults, os.environ["FAULT"])

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("FAULT"):
    sys.meta_path.insert(0, Late())
