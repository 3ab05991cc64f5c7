"""Settings of torch's own logs, as `torch._logging.set_logs` left them.

In: nothing.  Out: `asked()`, levels and artefacts under the names that `set_logs` takes; `stamp()`, which differs after each
call of `set_logs`, also after one with the same settings.
Example: after `torch._logging.set_logs(dynamo=logging.INFO, guards=True)`, `asked()` is `{"dynamo": 20, …, "guards": True}`.
"""

from __future__ import annotations

import logging

from torch._logging import _internal as torchs

_TORCH = logging.getLogger("torch")


def stamp() -> tuple[object, ...]:
    """torch makes the handlers of its loggers anew whenever its settings change."""
    return tuple([handler for handler in _TORCH.handlers if handler in torchs.handlers])


def asked() -> dict[str, int]:
    """Level of each log, True of each artefact that is on.  A log of several loggers has the level of its first one."""
    state = torchs.log_state
    levels = state.log_qname_to_level
    found: dict[str, int] = {
        alias: int(levels[loggers[0]])
        for alias, loggers in torchs.log_registry.log_alias_to_log_qnames.items()
        if loggers[0] in levels
    }
    return found | dict.fromkeys(sorted(state.artifact_names), True)
