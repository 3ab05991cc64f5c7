"""Whatever runs the user's code inside of a check owns what it looks at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from native import ownership


def test_the_users_code_may_drop_everything() -> None:
    program = Path(ownership.__file__)
    env = {**os.environ, "PYTHONMALLOC": "debug", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == list(ownership.SCENES)
