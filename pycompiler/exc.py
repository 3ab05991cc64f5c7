"""The errors under one roof, also by the names that torch gives to the same things.

Example: `except pycompiler.exc.Unsupported`.
"""

from __future__ import annotations

from pycompiler.errors import (
    ArgumentError,
    ArtefactError,
    BackendError,
    BadBackendResult,
    ConfigError,
    DoubleBackwardError,
    InternalError,
    PyCompilerError,
    RecompileError,
    RecompileLimitExceeded,
    RecompileLimitWarning,
    UnknownName,
    Unsupported,
    UserError,
)

TorchDynamoException = PyCompilerError
BackendCompilerFailed = BackendError
InvalidBackend = UnknownName
FailOnRecompileLimitHit = RecompileLimitExceeded
InternalTorchDynamoError = InternalError

__all__ = [
    "ArgumentError", "ArtefactError", "BackendCompilerFailed", "BackendError", "BadBackendResult", "ConfigError",
    "DoubleBackwardError", "FailOnRecompileLimitHit", "InternalError", "InternalTorchDynamoError", "InvalidBackend",
    "PyCompilerError", "RecompileError", "RecompileLimitExceeded", "RecompileLimitWarning", "TorchDynamoException",
    "UnknownName", "Unsupported", "UserError",
]  # fmt: skip
