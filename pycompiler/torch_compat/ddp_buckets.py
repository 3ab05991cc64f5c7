"""The buckets of `DistributedDataParallel`, whose forward may be running now.

Out: `bucket_limits()`, bytes of the first bucket, the second, and so on; the last is the limit of all others.
Empty outside of a forward of DDP.

Example: ``(1048576, 26214400)`` by default.
"""

from __future__ import annotations

import sys
from typing import Any

BUCKETS = "buckets"  # in `meta` of a captured graph: `bucket_limits()` at its call


def bucket_limits() -> tuple[int, ...]:
    """The limits by which DDP's reducer makes its buckets, in the order in which gradients become ready."""
    module: Any = sys.modules.get("torch.nn.parallel.distributed")
    active = None if module is None else module.DistributedDataParallel._active_ddp_module
    if active is None:
        return ()
    if given := getattr(active, "bucket_bytes_cap_list", None):  # torch 2.12 and later
        return tuple(given)
    first = module.dist._DEFAULT_FIRST_BUCKET_BYTES if active.bucket_bytes_cap_default else active.bucket_bytes_cap
    return first, active.bucket_bytes_cap
