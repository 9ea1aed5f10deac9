"""Is an engine affected, and is the fix really in place? Answers as values.

Three subjects: the installed engine with all its plugins, a source tree that
is not imported, and a running server by what it reports over HTTP.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from . import engines
from .checkout import SCHEDULER, open_checkout
from .git import Stopped
from .live import in_place
from .outcome import MambaBoundaryError, Refused
from .probe import Stable, Stale, Verdict, probe_live, probe_source
from .settings import POLICY, WEAVING, read_settings

NOT_AFFECTED, AFFECTED, CANNOT_TELL = "not affected", "affected", "cannot tell"
EXIT_CODES = {NOT_AFFECTED: 0, AFFECTED: 1, CANNOT_TELL: 2}


@dataclass(frozen=True)
class Report:
    """What was found about `subject`: a verdict with its evidence, and the facts."""

    subject: str
    verdict: str
    evidence: tuple[str, ...]
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def as_dict(self) -> dict:
        return {**asdict(self), "exit_code": self.exit_code}


def _report(subject: str, verdict: Verdict, facts: dict) -> Report:
    if isinstance(verdict, Stable) and verdict.overlap_lost:
        facts["overlap lost"] = ", ".join(verdict.overlap_lost)
    return Report(subject, *_word(verdict), facts)


def _word(verdict: Verdict) -> tuple[str, tuple[str, ...]]:
    if isinstance(verdict, Stale):
        return AFFECTED, verdict.evidence
    if isinstance(verdict, Stable):
        return NOT_AFFECTED, verdict.evidence
    return CANNOT_TELL, (str(verdict),)


def check_source(folder: Path) -> Report:
    """The engine in a checkout or unpacked wheel, as its working tree stands."""
    try:
        checkout = open_checkout(folder)
        file = checkout.root / (checkout.prefix + SCHEDULER)
        text = file.read_bytes().decode()
    except (Stopped, OSError, UnicodeDecodeError) as error:
        refusal = error.refusal if isinstance(error, Stopped) else error
        return Report(str(folder), CANNOT_TELL, (str(refusal),))
    return _report(str(folder), probe_source(text), {"loop driven": "from its text"})


def check_installed(environ: Mapping[str, str]) -> Report:
    """The engine that this interpreter would run, once all plugins have loaded."""
    try:
        version = metadata.version(engines.ENGINE)
    except metadata.PackageNotFoundError:
        found = Refused(
            f"the distribution {engines.ENGINE}",
            "none in this environment",
            "run this in the environment that the server runs in",
            state="nothing was checked",
        )
        return Report(f"{engines.ENGINE} (installed)", CANNOT_TELL, (str(found),))
    subject = f"{engines.ENGINE} {version}"
    facts = {
        "engine as released": _released_loop(),
        "plugin would be loaded": plugin_is_loaded(environ),
    }
    try:
        scheduler = _loaded_scheduler()
    except (Exception, SystemExit) as error:
        # What the engine or a plugin cannot do at import is an answer, too.
        reason = f"{type(error).__name__}: {error}"
        facts["fix in place"] = f"cannot tell, the scheduler does not load: {reason}"
        return Report(subject, CANNOT_TELL, (reason,), facts)
    facts["fix in place"] = _words(in_place(scheduler))
    facts["loop driven"] = f"live, as {scheduler.__module__}.{scheduler.__name__}"
    policy = environ.get(POLICY, WEAVING[0])
    if policy in WEAVING[1:]:
        # The probe's cache is none that these policies know.
        facts["policy driven"] = (
            f"{WEAVING[0]}: the stand-ins of this check are no server in which {policy} "
            "goes its own way"
        )
    return _report(subject, probe_live(scheduler), facts)


def plugin_is_loaded(environ: Mapping[str, str]) -> str:
    """yes or no, and for no the reason: entry point, SGLANG_PLUGINS, the policy."""
    name = engines.ENTRY_POINT
    if not metadata.entry_points(group=engines.ENTRY_POINT_GROUP, name=name):
        return f"no, no entry point {name} in {engines.ENTRY_POINT_GROUP}"
    allowed = environ.get("SGLANG_PLUGINS", "")
    if allowed.strip() and name not in [part.strip() for part in allowed.split(",")]:
        return f"no, SGLANG_PLUGINS={allowed!r} does not name {name}"
    try:
        settings = read_settings(environ)
    except MambaBoundaryError as error:
        return f"yes, and the launch would stop: {error}"
    if not settings.weaves:
        return f"yes, but {POLICY}={settings.policy} weaves nothing"
    return "yes"


def _words(outcome) -> str:
    return f"no: {outcome}" if isinstance(outcome, Refused) else f"yes, {outcome}"


def _released_loop() -> str:
    spec = importlib.util.find_spec(engines.ENGINE)
    file = Path(spec.submodule_search_locations[0]).parent / SCHEDULER
    try:
        verdict, evidence = _word(probe_source(file.read_text()))
    except OSError as error:
        return f"{CANNOT_TELL}, its source cannot be read: {error}"
    return f"{verdict}, {evidence[0]}"


def _loaded_scheduler() -> type:
    # What the engine and its plugins print must not mix with the report.
    with contextlib.redirect_stdout(sys.stderr):
        importlib.import_module("sglang.srt.plugins").load_plugins()
        module = importlib.import_module(engines.SCHEDULER_MODULE)
    return getattr(module, engines.SCHEDULER_CLASS)
