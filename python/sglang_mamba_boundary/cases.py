"""What the probe drives a loop through, and what it finds in one run.

Separate from the rig, which knows how a scheduler is driven but not what a
right one does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .batches import CANONICAL
from .rig import PAUSED, Run

STALE = "stale"
RIGHT = "right"
BROKEN = "broken"
UNCLEAR = "unclear"

# Enough empty turns after a script for every result to be processed.
_REST = (None, None, None)


@dataclass(frozen=True)
class Finding:
    """What one case showed; `overlap` tells whether it processed under the next launch."""

    kind: str
    evidence: str
    overlap: bool = True


@dataclass(frozen=True)
class Case:
    """A script for `subject`, whose batches are named; `settings` go to the scheduler.

    `overlap` names a batch, and the one under whose launch it is to be processed.
    """

    subject: str
    turns: Callable[[Run], list]
    settings: Mapping[str, bool] = field(default_factory=dict)
    without_consecutive_overlap: bool = False
    overlap: tuple[str, str] | None = None

    def script(self, run: Run) -> None:
        run.turns = [*self.turns(run), *_REST]


def _decode(run, **state):
    req = run.req("r")
    return [
        run.prefill("p", req),
        run.decode("d1", req, **state),
        run.decode("d2", req, **state),
    ]


def _verify(run):
    return _decode(run, is_spec_v2=True, has_grammar=True)


def _mixed(run):
    decoding, arriving = run.req("d"), run.req("a")
    return [
        run.prefill("p", decoding),
        run.mixed("m", [arriving], [decoding]),
        run.decode("d1", decoding, arriving),
    ]


def _after_mixed(run):
    decoding, arriving = run.req("d"), run.req("a")
    return [
        run.mixed("m", [arriving], [decoding]),
        run.decode("d1", decoding, arriving),
    ]


def _beside_middle_chunk(run):
    completed, chunked = run.req("r"), run.req("c", chunks=1)
    return [run.prefill("p", completed, chunked), run.decode("d", completed)]


def _consecutive(run):
    one, two = run.req("1"), run.req("2")
    return [run.prefill("p1", one), run.prefill("p2", two), run.decode("d", one, two)]


def _finishing(run):
    req = run.req("r", finishes_in_prefill=True)
    decode = run.decode("d", req)
    return [run.prefill("p", req), lambda: None if req.finished() else decode]


def _paused(run):
    req = run.req("r")
    return [run.prefill("p", req), PAUSED, PAUSED, run.decode("d", req)]


def _failing_flush(run):
    run.flush_error = RuntimeError("no compaction")
    return _decode(run)


def _interleaved(run):
    one, two = run.req("1"), run.req("2")
    return [
        None,
        run.prefill("p1", one),
        run.decode("d1", one),
        run.prefill("p2", two),
        run.decode("d2", one, two),
        None,
        None,
        run.decode("d3", one, two),
    ]


CAPTURES = (
    Case("a decode batch after a tracked prefill", _decode, overlap=("d1", "d2")),
    Case("a verify batch that waits for grammar after its selection", _verify),
    Case("a mixed batch after a tracked prefill", _mixed),
    Case("a decode batch after a tracked mixed batch", _after_mixed),
    Case("a decode batch after a prefill beside a middle chunk", _beside_middle_chunk),
    Case("a decode batch after two tracked prefills", _consecutive),
    Case(
        "a decode batch after two tracked prefills that do not overlap",
        _consecutive,
        without_consecutive_overlap=True,
    ),
    Case("a prefill that finishes its request", _finishing),
    Case("a decode batch after a pause", _paused),
    Case("a decode batch in unified memory", _decode, {"unified": True}),
    Case("a decode batch after a failing flush", _failing_flush, {"unified": True}),
    Case("a decode batch among idle turns and other prefills", _interleaved),
)


def _overlap(subject: str, pending: Callable, **settings: bool) -> Case:
    def turns(run):
        batch = pending(run)
        return [batch, run.decode("next", run.req("other", tracked=False))]

    return Case(subject, turns, settings, overlap=("pending", "next"))


def _prefill(batch=None, **state):
    return lambda run: run.prefill("pending", run.req("r", **state), **(batch or {}))


OVERLAPS = (
    _overlap("a decode", lambda run: run.decode("pending", run.req("r"))),
    _overlap("an untracked prefill", _prefill(tracked=False)),
    _overlap("a middle chunk", _prefill(chunks=1)),
    _overlap("a finished request", _prefill(is_finished=True)),
    _overlap("a retracted request", _prefill(is_retracted=True)),
    _overlap("a request that skips insertion", _prefill(skip_radix_cache_insert=True)),
    _overlap("a prefill-only batch", _prefill({"is_prefill_only": True})),
    _overlap(
        "the decode rows of a mixed batch",
        lambda run: run.mixed(
            "pending", [run.req("a", tracked=False)], [run.req("d1"), run.req("d2")]
        ),
    ),
    _overlap("an embedding model", _prefill(), generation=False),
    _overlap("MLP sync", _prefill(), mlp_sync=True),
    _overlap("a disabled cache", _prefill(), disable=True),
    _overlap("a cache without Mamba", _prefill(), mamba=False),
    _overlap("no extra buffer", _prefill(), extra_buffer=False),
)


def find(case: Case, run: Run, ended: str | None) -> Finding:
    """What `run` of `case` showed; `ended` says why the loop ended before its script."""
    subject, handed = case.subject, run.journal.handed

    def unclear(why):
        return Finding(UNCLEAR, f"{subject}: {why}")

    if not run.selected:
        return unclear(ended or "it selected nothing through get_next_batch_to_run")
    if ended:
        empty = "pop from an empty" in ended and not handed
        return Finding(BROKEN, f"{subject}: {ended}") if empty else unclear(ended)
    stale = [
        batch.name
        for batch in run.selected
        # A row that is published later than a batch captured it.
        if any(req.slots != batch.captured[req.rid] for req in batch.decoding())
    ]
    faults = list(run.faults)
    if run.processed != run.launched:
        launched, processed = ", ".join(run.launched), ", ".join(run.processed)
        faults.append(f"launched {launched} and processed {processed or 'nothing'}")
    if (stale or faults) and handed:
        return unclear(f"it hands its batches to {handed[0]}")
    if stale:
        return Finding(STALE, f"{subject} captured private slots ({', '.join(stale)})")
    if faults:
        return Finding(BROKEN, f"{subject}: {'; '.join(faults)}")
    return _right(case, run)


def _right(case: Case, run: Run) -> Finding:
    captured = {slots for batch in run.selected for slots in batch.captured.values()}
    canonical = f"{case.subject} captured canonical slots"
    processed = f"{case.subject} was processed once"
    overlap = True
    if case.overlap:
        pending, following = case.overlap
        order = (f"launch {following}", f"process {pending}")
        at = [run.events.index(event) for event in order if event in run.events]
        overlap = len(at) == 2 and at == sorted(at)
    return Finding(RIGHT, canonical if CANONICAL in captured else processed, overlap)
