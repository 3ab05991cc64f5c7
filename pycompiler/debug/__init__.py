"""Looks at compiles, and at calls of what was compiled."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def record(path: str | os.PathLike[str], function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Writes the call `function(*args, **kwargs)` to a file that runs alone: arguments, code, and what the code reads."""
    from pathlib import Path

    from pycompiler.debug import recording
    from pycompiler.wrapping import original_of

    settings: dict[str, Any] = {"backend": None, "fullgraph": False, "dynamic": None, "knobs": {}}
    recording.record(original_of(function), args, kwargs, settings, "", Path(path))


def replay(file: str | os.PathLike[str], *, eager: bool = False, backend: Any = None, trust: bool = False) -> Any:
    """Runs what `record`, or `config.replay_record_enabled`, wrote, compiled as it was; what the call returns.

    It runs the code that the file holds: ArtefactError for a file that others can have written, unless `trust`.  eager: not
    compiled.  backend: another one.
    """
    from pycompiler.debug import replaying

    return replaying.read(os.fspath(file), trust=trust).run(eager=eager, backend=backend)
