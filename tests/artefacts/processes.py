"""Runs the programs in a process of its own: `python -m tests.artefacts.processes save|load FOLDER`.

Out: `FOLDER/save.json` and `load.json`: for each program the results as strings, the report of save, and the
counters.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch


def show(value: Any) -> Any:
    """The bits of tensors; other values as they are."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.detach().contiguous().view(-1).view(torch.uint8).tolist()]
    if isinstance(value, dict):
        return {str(k): show(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [show(v) for v in value]
    return repr(value)


def run(calls: list[Any], compiled: Any) -> list[Any]:
    return [show(call(compiled)) for call in calls]


def main(what: str, folder: Path) -> None:
    begin = time.perf_counter()
    import pycompiler
    from tests.artefacts.programs import CASES

    report: dict[str, Any] = {"import": time.perf_counter() - begin}
    only = os.environ.get("ARTEFACT_CASES", "").split(",") if os.environ.get("ARTEFACT_CASES") else list(CASES)
    for name in only:
        case = CASES[name]
        path = folder / f"{name}.pyc-art"
        try:
            model = case.make()
            if what == "save":
                compiled = pycompiler.compile(model, dynamic=case.dynamic)
                with pycompiler.config.patch(**case.knobs):
                    found = {"results": run(case.calls, compiled), "counters": pycompiler.counters(compiled)}
                try:
                    found["saved"] = dataclasses.asdict(pycompiler.save(compiled, path))
                except pycompiler.exc.ArtefactError as e:
                    found["refused"] = str(e)
            elif not path.exists():
                continue
            else:
                begin = time.perf_counter()
                compiled = pycompiler.load(path, model)
                ready = time.perf_counter()
                found = {"results": run(case.calls, compiled)}
                found |= {"ready": ready - begin, "called": time.perf_counter() - ready}
                found["counters"] = pycompiler.counters(compiled)
                found["entries"] = len(pycompiler.api._compiled(compiled, "x").entries)
        except Exception:
            found = {"error": traceback.format_exc()}
        report[name] = found
    (folder / f"{what}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
