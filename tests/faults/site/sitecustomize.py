"""In a child of `tests.faults`: the fault that FAULT names is put in as soon as the compiler is loaded, ours or the peer's."""

import importlib.abc
import importlib.machinery
import os
import sys

# The module after which all can be imported -> the faults for it.  The peer's are there whichever of its backends runs.
SIDES = {"torch": "tests.faults.theirs"} if os.environ.get("FAULT_OF_PEER") else {"pycompiler.api": "tests.faults.ours"}


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
