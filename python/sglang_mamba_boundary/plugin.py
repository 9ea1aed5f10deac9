"""The entry point that SGLang calls once in every process.

It weaves, and has the scheduler look once more when its loop starts: another
plugin may have replaced the loop since, and a fix that is registered is not a
fix that is in place. SGLang's loader swallows every Exception, hence the
SystemExit where going on without the fix is not allowed.
"""

from __future__ import annotations

import logging
import os

from .counters import Both, LoggedCounters, metrics_of
from .live import in_place, weave
from .observe import Observer
from .outcome import MambaBoundaryError, Refused, RequiredFixMissing
from .settings import POLICY, Settings, read_settings
from .status import KEY, status_of

logger = logging.getLogger(__name__)

START = "sglang.srt.managers.scheduler.Scheduler.run_event_loop"
STATE = "sglang.srt.managers.scheduler.Scheduler.get_internal_state"


def load() -> None:
    """Weave as the environment says.

    Raises SystemExit where a variable holds a wrong value, or where the fix is
    required and refused.
    """
    try:
        settings = read_settings(os.environ)
        if settings.weaves:
            _report(weave(settings.policy), settings)
    except MambaBoundaryError as error:
        raise SystemExit(f"mamba-boundary: {error}") from error
    if not settings.weaves:
        _tell_unwoven(settings)
    if settings.policy != "off":
        _attend(settings)


def _report(outcome, settings: Settings) -> None:
    if not isinstance(outcome, Refused):
        logger.info("mamba-boundary: policy %s, %s", settings.policy, outcome)
    elif settings.required:
        raise RequiredFixMissing(outcome)
    else:
        logger.error(
            "mamba-boundary: refused, this server runs WITHOUT the fix: %s", outcome
        )


def _tell_unwoven(settings: Settings) -> None:
    logger.info("mamba-boundary: %s=%s, runs without the fix", POLICY, settings.policy)


def _verify(scheduler, settings: Settings) -> None:
    try:
        _report(in_place(type(scheduler)), settings)
    except RequiredFixMissing as error:
        # The server ends by a traceback, and nobody searches for an exception's name.
        logger.error("mamba-boundary: %s", error)
        raise


def _attend(settings: Settings) -> None:
    """Be there when the scheduler starts, and when the server is asked about itself."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    # Raises within the scheduler's own error handling, which ends the server.
    def verify(scheduler, *args, **kwargs):
        if settings.weaves:
            _verify(scheduler, settings)
        else:
            # Nobody may have listened when the plugin was loaded.
            _tell_unwoven(settings)
        _count(scheduler, settings)

    def tell(answer, scheduler, *args, **kwargs):
        answer.internal_state[KEY] = status_of(scheduler, settings.policy)

    HookRegistry.register(START, verify, HookType.BEFORE)
    HookRegistry.register(STATE, tell, HookType.AFTER)


def _count(scheduler, settings: Settings) -> None:
    """Count where somebody looks: in the server's metrics, and for an audit in the log."""
    sinks = [s for s in (metrics_of(scheduler),) if s]
    if settings.policy == "audit":
        sinks.append(LoggedCounters())
    if sinks:
        Observer(scheduler, Both(*sinks))
