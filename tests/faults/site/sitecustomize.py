"""Start-up of a child of `tests.faults`: the fault named by FAULT is inserted once pycompiler or torch.compile is
loaded."""

import importlib.abc
import importlib.machinery
import os
import sys

# The module after whose import all others can be imported -> its faults. Torch's are present under any of its
# backends.
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
