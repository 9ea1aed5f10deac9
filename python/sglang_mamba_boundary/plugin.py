"""The entry point that SGLang calls once in every process.

It weaves, and has the scheduler look once more when its loop starts: another
plugin may have replaced the loop since, and a fix that is registered is not a
fix that is in place. SGLang's loader swallows every Exception, hence the
SystemExit where going on without the fix is not allowed.
"""

from __future__ import annotations

import logging
import os

from .live import in_place, weave
from .outcome import MambaBoundaryError, Refused, RequiredFixMissing
from .settings import POLICY, Settings, read_settings

logger = logging.getLogger(__name__)

START = "sglang.srt.managers.scheduler.Scheduler.run_event_loop"


def load() -> None:
    """Weave as the environment says.

    Raises SystemExit where a variable holds a wrong value, or where the fix is
    required and refused.
    """
    try:
        settings = read_settings(os.environ)
        if settings.policy == "off":
            logger.info("mamba-boundary: %s=off, runs without the fix", POLICY)
            return
        _report(weave(), settings)
    except MambaBoundaryError as error:
        raise SystemExit(f"mamba-boundary: {error}") from error
    _verify_at_start(settings)


def _report(outcome, settings: Settings) -> None:
    if not isinstance(outcome, Refused):
        logger.info("mamba-boundary: policy %s, %s", settings.policy, outcome)
    elif settings.required:
        raise RequiredFixMissing(outcome)
    else:
        logger.error(
            "mamba-boundary: refused, this server runs WITHOUT the fix: %s", outcome
        )


def _verify_at_start(settings: Settings) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    # Raises within the scheduler's own error handling, which ends the server.
    def verify(scheduler, *args, **kwargs):
        _report(in_place(type(scheduler)), settings)

    HookRegistry.register(START, verify, HookType.BEFORE)
