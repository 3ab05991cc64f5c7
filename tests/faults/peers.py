"""What torch's tools say of the same fault: the commands that its documents name, run one after the other."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from tests.faults.table import Row

LIMIT = 300.0  # seconds of each command
CALLED = re.compile(r"torch\.ops\.([\w.]+)\(|torch\.([\w.]+)\(")

# Where the compiler's interface differs, the program for the peer.
PROGRAMS = {
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
    (folder / "program.py").write_text(text.lstrip())
    said, used = "", 0.0
    for command in row.peer.split("; "):
        found = next(iter(folder.rglob("minifier_launcher.py")), None)
        if command.endswith("minifier_launcher.py"):
            if found is None:
                said += "\nno launcher was written\n"
                break
            command = command.replace("minifier_launcher.py", str(found))
        more, seconds, status = run(command, row.name, folder, LIMIT, **caches(row, folder))
        said, used = f"{said}{more}\nexit status {status}\n", used + seconds
        if status is None:
            break
    return {"command": row.peer, "seconds": round(used, 1), "outcome": outcome(row, said, folder), "text": said}


def caches(row: Row, folder: Path) -> dict[str, str]:
    """Kernels are kept between rows, as on a machine that is in use (its precompiled headers alone take long); graphs, which
    the fault is in, are not."""
    if row.name == "wrong_cache_entry":
        return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "peer")}
    kept = Path(tempfile.gettempdir()) / f"faults-peer-{os.getuid()}"
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(kept),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    }


def outcome(row: Row, said: str, folder: Path) -> str:
    """One line: what is named."""
    line = next((part for part in row.lines if part in said), None)
    where = f"the line `{line}`" if line else "no line of the program"
    if "exit status None" in said:
        return f"it was ended after {LIMIT:g} s: nothing"
    if "compiler_bisector" in row.peer:
        found = re.findall(r"BisectionResult\((.*)\)|Bisection complete: (no issue found)", said)
        return f"{''.join(found[-1]) if found else 'it fails'}; {where}"
    if "REPRO_AFTER" in row.peer:
        repros = sorted(folder.rglob("repro.py"), key=lambda p: p.stat().st_mtime)
        if not repros:
            return f"{'no launcher: nothing was noticed' if 'no launcher' in said else 'the launcher finds nothing'}"
        body = repros[-1].read_text().partition("def forward(")[2].partition("return ")[0]
        operators = [a or b for a, b in CALLED.findall(body)]
        line = next((part for part in row.lines if part in repros[-1].read_text()), None)
        where = f"the line `{line}`" if line else "no line of the program"
        return f"{len(operators)} operators left: {', '.join(operators[:4])}; {where}"
    return where
