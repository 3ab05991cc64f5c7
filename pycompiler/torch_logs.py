"""Settings of torch's own logs, as set by `torch._logging.set_logs`.

In: nothing.  Out: `torch_settings()`, levels and artefacts under the names of `set_logs`; `stamp()`, which changes with each
call of `set_logs`, even with the same settings.

Example: after `torch._logging.set_logs(dynamo=logging.INFO, guards=True)`,
`torch_settings()` is `{"dynamo": 20, …, "guards": True}`.
"""

from __future__ import annotations

import logging

from torch._logging import _internal as torchs

_TORCH = logging.getLogger("torch")


def stamp() -> tuple[object, ...]:
    """The handlers of torch's loggers: torch creates new ones whenever its settings change."""
    return tuple([handler for handler in _TORCH.handlers if handler in torchs.handlers])


def torch_settings() -> dict[str, int]:
    """The level of each log, True for each enabled artefact.  A log with several loggers has the level of its first one."""
    state = torchs.log_state
    levels = state.log_qname_to_level
    found: dict[str, int] = {
        alias: int(levels[loggers[0]])
        for alias, loggers in torchs.log_registry.log_alias_to_log_qnames.items()
        if loggers[0] in levels
    }
    return found | dict.fromkeys(sorted(state.artifact_names), True)
