"""The verdict about a loop from what it does, not from what it is called.

The loop is driven through `cases` by the `rig`, and the probe looks which slots
each batch captured. There are two ways in: the text of an engine's
`scheduler.py`, of which nothing is imported, and the class that runs, through
whatever other plugins have put around its loop.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType

from . import cases
from .batches import Mode
from .cases import BROKEN, STALE, UNCLEAR, Case, Finding, find
from .loop import LOOP, SELECTION
from .rig import Driven, Run
from .source_class import CONSECUTIVE, SourceClass
from .unknown import Journal, Stop, explore
from .verdict import Broken, CannotTell, Stable, Stale, Verdict

_LAUNCH = "run_batch"
_PROCESSING = "process_batch_result"
_PUBLISHING = frozenset(
    ("checkpoint", "checkpoint_kv_cache", "cache_unfinished_req")
    + ("maybe_cache_unfinished_req",)
)


_Drive = Callable[[Case, Run], object]


def probe_source(scheduler_py: str) -> Verdict:
    """The verdict about `Scheduler.event_loop_overlap` in the text of a `scheduler.py`."""
    try:
        source = SourceClass(scheduler_py)
    except (SyntaxError, ValueError) as error:
        return CannotTell(f"Scheduler.{LOOP}", f"text without it: {error}")

    def drive(case: Case, run: Run):
        scheduler = source.scheduler(run, case.without_consecutive_overlap)
        return getattr(scheduler(run, **case.settings), LOOP)()

    return _verdict(drive, source.names_of)


def probe_live(scheduler: type) -> Verdict:
    """The verdict about the loop that this class would run, through all its wrappers.

    For its duration the process has a trace function of the probe's, no logging,
    and the environment variable of the engine that the cases set.
    """
    if not callable(getattr(scheduler, LOOP, None)):
        return CannotTell(f"{scheduler.__name__}.{LOOP}", "no such method")

    class Probed(Driven, scheduler):
        __init__ = Driven.__init__

    def drive(case: Case, run: Run):
        probed = Probed(run, **case.settings)
        disable_consecutive = str(case.without_consecutive_overlap).lower()
        with _environment(disable_consecutive), _silence():
            before = sys.gettrace()
            # The code that runs cannot be changed to tick, so each line of it does.
            sys.settrace(run.trace)
            try:
                return getattr(probed, LOOP)()
            finally:
                sys.settrace(before)

    def names_of(member: str) -> set[str]:
        return _names_in(inspect.getattr_static(scheduler, member, None), set())

    module = vars(sys.modules[scheduler.__module__])
    return _verdict(drive, names_of, module.get("ForwardMode", Mode), strict=True)


def _verdict(drive: _Drive, names_of, modes=Mode, strict=False) -> Verdict:
    def examine(case: Case) -> Finding:
        return _examine(case, drive, modes, strict)

    examined = [(case, examine(case)) for case in (*cases.CAPTURES, *cases.OVERLAPS)]

    def evidence(kind: str) -> tuple[str, ...]:
        return tuple(f.evidence for _, f in examined if f.kind == kind)

    stale, broken, unclear = map(evidence, (STALE, BROKEN, UNCLEAR))
    hidden = stale and _hidden_publication(names_of)
    if hidden:
        unclear = (f"{hidden}, which processes or publishes out of the probe's sight",)
    elif stale:
        return Stale(stale)
    elif broken:
        return Broken(broken)
    if unclear:
        return CannotTell(
            f"which slots a batch of Scheduler.{LOOP} captures", unclear[0]
        )
    lost = tuple(case.subject for case, finding in examined if not finding.overlap)
    asked = sum(case.overlap is not None for case, _ in examined)
    return Stable(
        tuple(finding.evidence for _, finding in examined[: len(cases.CAPTURES)]),
        lost,
        loses_overlap=len(lost) == asked,
    )


def _examine(case: Case, drive: _Drive, modes, strict: bool) -> Finding:
    """What the case shows whatever the truth about unknown things may be."""

    def once(answers: dict[str, bool]):
        run = Run(Journal(answers, strict), modes)
        case.script(run)
        ended = "it returned before its script was over"
        try:
            drive(case, run)
        except Stop:
            ended = None
        except (Exception, SystemExit) as error:
            ended = f"it raised {error!r}"
        return find(case, run, run.journal.cause or ended), run.journal

    outcomes = explore(once)
    if outcomes is None:
        return Finding(UNCLEAR, f"{case.subject}: it asks too much that is not known")
    findings = [finding for finding, _ in outcomes]
    if len({finding.kind for finding in findings}) == 1:
        return min(findings, key=lambda finding: finding.overlap)
    asked = {question for _, journal in outcomes for question in journal.asked}
    deciding = [question for question in sorted(asked) if _decides(question, outcomes)]
    why = f"it depends on {', '.join(deciding)}"
    return Finding(UNCLEAR, f"{case.subject}: {why}")


def _decides(question: str, outcomes: list) -> bool:
    kinds = {True: set(), False: set(), None: set()}
    for finding, journal in outcomes:
        kinds[journal.asked.get(question)].add(finding.kind)
    return kinds[True] != kinds[False]


def _hidden_publication(names_of: Callable[[str], set[str]]) -> str | None:
    """A method of the engine that the rig's stubs hide and that may be the fix.

    The stash of a middle chunk publishes below the selection in every release,
    and reads no pending result.
    """
    for start in (SELECTION, _LAUNCH):
        seen, todo = set(), [start]
        while todo:
            member = todo.pop()
            names = names_of(member)
            pending = start == _LAUNCH or "result_queue" in names
            if (
                _PROCESSING in names
                or {"result_queue", "popleft"} <= names
                or (pending and names & _PUBLISHING)
            ):
                return member
            seen.add(member)
            todo += sorted(names - seen - {*todo})
    return None


def _names_in(function: object, seen: set[int]) -> set[str]:
    """Names in the code of a function, of what it wraps, and of hooks around it."""
    if not isinstance(function, FunctionType) or id(function) in seen:
        return set()
    seen.add(id(function))
    names, codes = set(), [function.__code__]
    for code in codes:
        names |= {*code.co_names}
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    for cell in function.__closure__ or ():
        names |= _names_in(cell.cell_contents, seen)
    return names


@contextmanager
def _environment(disable_consecutive: str) -> Iterator[None]:
    before = {k: v for k, v in os.environ.items() if k == CONSECUTIVE}
    os.environ[CONSECUTIVE] = disable_consecutive
    try:
        yield
    finally:
        del os.environ[CONSECUTIVE]
        os.environ.update(before)


@contextmanager
def _silence() -> Iterator[None]:
    # A case makes the engine warn; nobody is to be told of it.
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)
