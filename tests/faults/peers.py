"""Reports of torch's tools on the same fault: their documented commands, run one after the other."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.faults.table import SEARCH, Row

BACKEND = """backend=__import__("os").environ.get("TORCH_COMPILE_BACKEND", "inductor")"""
LIMIT = 300.0  # seconds of each command
CALLED = re.compile(r"torch\.ops\.([\w.]+)\(|torch\.([\w.]+)\(")

# Patterns of lines worth quoting; the first match counts.
KEYS = (r"- 0/0: (.*)", r"GuardManager: source=L\['table'\].*?(type=<class 'dict'>)", r"^(Scheduler\.__init__ .*)$", r"^(\w+(?:\.\w+)*Error.*)$",
        r"Reason: (.*)", r"^(W\d+ .*)$")  # fmt: skip

# Programs for torch.compile where its interface differs.
PROGRAMS = {
    "wrong_stride": """
import torch

@torch.compile
def program(x):
    return x.t().sin()

assert program(torch.rand(3, 4)).stride() == (1, 4)  # its bisector looks at the exit status
""",
    "damaged_artefact": """
import torch

@torch.compile
def program(x):
    return x + 1

program(torch.ones(3))
saved, _ = torch.compiler.save_cache_artifacts()
middle = len(saved) // 2
torch.compiler.load_cache_artifacts(saved[:middle] + b"damaged" + saved[middle + 7 :])
""",
}


def theirs(row: Row, folder: Path) -> dict[str, Any]:
    from tests.faults.__main__ import run

    if row.no_peer:
        return {"reason": row.no_peer}
    text = PROGRAMS.get(row.name) or row.text.replace("torch, pycompiler", "torch").replace("pycompiler.", "torch.")
    if row.peer == SEARCH:  # the bisector requires this backend
        text = text.replace("torch.compile(", f"torch.compile({BACKEND}, ").replace(
            "@torch.compile\n", f"@torch.compile({BACKEND})\n"
        )
    (folder / "program.py").write_text(text.lstrip())
    said, used = "", 0.0
    for command in row.peer.split("; python mini"):
        command = command if command.startswith(("python", "TORCH")) else f"python mini{command}"
        found = next(iter(folder.rglob("minifier_launcher.py")), None)
        if command.endswith("minifier_launcher.py"):
            if found is None:
                said += "\nno launcher was written\n"
                break
            command = command.replace("minifier_launcher.py", str(found))
        more, seconds, status = run(command, row.name, folder, LIMIT, FAULT_OF_PEER="1", **caches(row, folder))
        said, used = f"{said}{more}\nexit status {status}\n", used + seconds
        if status is None:
            break
    return {"command": row.peer, "seconds": round(used, 1), "outcome": outcome(row, said, folder, used), "text": said}


def caches(row: Row, folder: Path) -> dict[str, str]:
    """Cache folders: kernels stay between rows, as on a machine in use (the precompiled headers alone take long);
    cached graphs, which contain the fault, do not."""
    if row.name in ("wrong_cache_entry", "damaged_artefact"):
        return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "peer")}
    kept = Path(tempfile.gettempdir()) / f"faults-peer-{os.getuid()}"
    shutil.rmtree(
        kept / "bisect", ignore_errors=True
    )  # remove the state of an interrupted bisector: it would still leave parts out
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(kept),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    }


def unnoticed(said: str) -> str:
    """The reason why torch's minifier left no program."""
    if "no launcher" not in said:
        return "the launcher finds nothing"
    if "Skipping this graph" in said:
        errors = re.findall(r"\] (\w+Error: .*)$", said, re.M)
        return f"no launcher: its own check ends with `{errors[-1] if errors else 'an error'}`, and skips the graph"
    [status] = re.findall(r"exit status (\S+)", said)[:1]
    return f"no launcher: {'nothing was noticed' if status == '0' else f'the program ended with exit status {status}'}"


def outcome(row: Row, said: str, folder: Path, used: float) -> str:
    """One line: the part that is named."""
    line = next((part for part in row.lines if part in said), None)
    where = f"the line `{line}`" if line else "no line of the program"
    if "exit status None" in said:
        return f"still at work after {used:.0f} s of the processor, when it was ended"
    if "compiler_bisector" in row.peer:
        found = re.findall(r"BisectionResult\((.*)\)|Bisection complete: (no issue found)", said)
        return f"{''.join(found[-1]) if found else 'it fails'}; {where}"
    if "REPRO_AFTER" in row.peer:
        repros = sorted(folder.rglob("repro.py"), key=lambda p: p.stat().st_mtime)
        if not repros:
            return unnoticed(said)
        body = repros[-1].read_text().partition("def forward(")[2].partition("return ")[0]
        operators = [a or b for a, b in CALLED.findall(body)]
        line = next((part for part in row.lines if part in repros[-1].read_text()), None)
        where = f"the line `{line}`" if line else "no line of the program"
        return f"{len(operators)} operators left: {', '.join(operators[:4])}; {where}"
    keys = (re.findall(key, said, re.M) for key in KEYS)
    key = next((f"`{' '.join(found[-1].split())[:160]}`; " for found in keys if found), "")
    place = "" if line or "program.py:" not in said.replace("program.py:8", "") else " (but its function's)"
    return f"{key}{where}{place}"
