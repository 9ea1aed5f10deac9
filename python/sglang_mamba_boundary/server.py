"""A running server, judged by what it reports over HTTP.

Two things are asked: the settings that decide whether the fault can happen at
all, and what the plugin in each scheduler process says of the loop it runs.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass

from . import engines
from .check import AFFECTED, CANNOT_TELL, NOT_AFFECTED, Report
from .outcome import Refused
from .status import KEY, STATUS_ACTS

TIMEOUT_S = 10
NO_REPORT = "no report: the plugin is off, not loaded or not installed"
ENDPOINTS = ("/server_info", "/get_server_info")
STRATEGIES = ("mamba_radix_cache_strategy", "mamba_scheduler_strategy")
EXTRA_BUFFER = ("extra_buffer", "extra_buffer_lazy")


@dataclass(frozen=True)
class Flag:
    """A launch flag and when it lets the fault happen."""

    flag: str
    affected_when: str


FLAGS = (
    Flag(
        "--mamba-radix-cache-strategy (to 0.5.14: --mamba-scheduler-strategy)",
        "extra_buffer or extra_buffer_lazy; auto may choose one of them",
    ),
    Flag("--disable-radix-cache", "not given"),
    Flag("--disable-overlap-schedule", "not given"),
    Flag(
        "--enable-dp-attention, and MoE backends that need MLP sync",
        "given or not; if given, the fix leaves the loop as it is",
    ),
)


def check_url(url: str) -> Report:
    """The server at `url`, for example http://127.0.0.1:30000."""
    base = url.rstrip("/")
    told = _ask(base)
    if isinstance(told, Refused):
        return Report(url, CANNOT_TELL, (str(told),))
    states = [s for s in told.get("internal_states", []) if isinstance(s, dict)]
    settings = {**told, **(states[0] if states else {})}
    facts = {"version": str(told.get("version", "not reported"))}
    facts.update(_settings(settings))

    unaffected = _why_unaffected(settings)
    if unaffected:
        return Report(url, NOT_AFFECTED, (unaffected,), facts)
    reports = [state.get(KEY) for state in states]
    facts["fix in place"] = _told_by_plugin(reports)
    if reports and all(r and r["status"] == STATUS_ACTS for r in reports):
        return Report(url, NOT_AFFECTED, (reports[0]["loop"],), facts)
    silent = [report for report in reports if not report]
    release = engines.parse_release(facts["version"])
    known = release and engines.OLDEST <= release <= engines.NEWEST
    if not reports or _strategy(settings) not in EXTRA_BUFFER or (silent and not known):
        return Report(url, CANNOT_TELL, (_open_question(facts),), facts)
    evidence = "every condition of the fault holds and no scheduler reports the fix"
    if not silent:
        evidence = next(r["loop"] for r in reports if r["status"] != STATUS_ACTS)
    return Report(url, AFFECTED, (evidence,), facts)


def _ask(base: str) -> dict | Refused:
    error = None
    for endpoint in ENDPOINTS:
        try:
            with urllib.request.urlopen(base + endpoint, timeout=TIMEOUT_S) as answer:
                told = json.load(answer)
        except (urllib.error.URLError, OSError, ValueError) as problem:
            error = error or problem
            continue
        if isinstance(told, dict):
            return told
        error = error or ValueError("the answer is no JSON object")
    return Refused(
        f"an SGLang server's {' or '.join(ENDPOINTS)} at {base}",
        f"{type(error).__name__}: {error}",
        "give the address that the server listens on, as http://host:port",
        state="nothing was checked",
    )


def _strategy(settings: dict) -> str | None:
    return next((settings[name] for name in STRATEGIES if settings.get(name)), None)


def _settings(settings: dict) -> dict[str, str]:
    def word(name: str) -> str:
        return str(settings.get(name, "not reported"))

    return {
        "mamba cache strategy": _strategy(settings) or "not reported",
        "radix cache disabled": word("disable_radix_cache"),
        "overlap disabled": word("disable_overlap_schedule"),
    }


def _why_unaffected(settings: dict) -> str | None:
    if settings.get("disable_overlap_schedule") is True:
        return "overlap scheduling is disabled: nothing is selected before processing"
    if settings.get("disable_radix_cache") is True:
        return "the radix cache is disabled: nothing is published"
    if _strategy(settings) == "no_buffer":
        return "the mamba cache strategy is no_buffer: no prefill is tracked"
    return None


def _told_by_plugin(reports: list) -> str:
    told = [
        f"{r['status']}, policy {r['policy']}: {r['loop']}" if r else NO_REPORT
        for r in reports
    ]
    return "; ".join(dict.fromkeys(told)) or "no scheduler reported"


def _open_question(facts: dict[str, str]) -> str:
    return str(
        Refused(
            "a released version, a resolved mamba cache strategy, or the plugin's word",
            ", ".join(f"{name}: {value}" for name, value in facts.items()),
            "run `mamba-boundary check` in the server's environment",
            state="whether this server is affected is open",
        )
    )
