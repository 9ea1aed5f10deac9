"""The engines that the fix is for, as data.

`fix.py` is written for the newest release. What older ones name otherwise or
lack is stated here as edits of its text, so that no branch on a version stands
anywhere in the fix. Source: the releases themselves, see `docs/design.md`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ENGINE = "sglang"
ENTRY_POINT_GROUP = "sglang.srt.plugins"
ENTRY_POINT = "mamba_boundary"
SCHEDULER_MODULE = "sglang.srt.managers.scheduler"
SCHEDULER_CLASS = "Scheduler"
BATCH_MODULE = "sglang.srt.managers.schedule_batch"
BATCH_CLASS = "ScheduleBatch"

Release = tuple[int, int, int]

# The first release with the plugin framework, and the last that was tried.
OLDEST: Release = (0, 5, 11)
NEWEST: Release = (0, 5, 23)


@dataclass(frozen=True)
class Edit:
    """On releases `since <= release < until`, the text from `start` up to `end` becomes `after`.

    `start` stands exactly once in the text of the fix; `end`, the first after it, stays.
    """

    until: Release
    start: str
    end: str
    after: str = ""
    since: Release = OLDEST


EDITS = (
    # Two lengths moved from the request to its KV record.
    Edit((0, 5, 19), "req.kv.mamba_last", "_track_seqlen is", "req.mamba_last"),
    Edit((0, 5, 19), "req.kv.kv_committed", "_len", "req.kv_committed"),
    # The stash of a middle chunk copies its state without waiting for the
    # forward, so there a middle chunk is to be waited for as well.
    Edit(
        (0, 5, 13),
        "            # A middle chunk is published",
        "            and not req.skip_radix_cache_insert",
    ),
    # Unified memory: absent, then read from the arguments, then from the scheduler.
    Edit((0, 5, 15), "    if self.enable_unified_memory:", "    return True"),
    Edit((0, 5, 15), "opportunistic_flush_failed = ", "def has_pending"),
    Edit(
        (0, 5, 16),
        "if self.enable_unified",
        "_memory:",
        "if self.server_args.enable_unified",
        since=(0, 5, 15),
    ),
)


def parse_release(version: str) -> Release | None:
    """The first three numbers of a version; None where it does not begin with three."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return tuple(map(int, numbers.groups())) if numbers else None


def dotted(release: Release) -> str:
    return ".".join(map(str, release))
