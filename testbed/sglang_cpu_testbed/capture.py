"""Records which KV slots a decode step reads. Separate from the engine because it
looks over the scheduler's shoulder: it wraps run_batch on the instance and copies
the row of req_to_token just before the forward that reads it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise


@dataclass(frozen=True)
class Row:
    """The slots one decode step of one request reads, position by position.

    ``step`` counts decode steps from 1 since the request's last prefill, so that
    decode step k computes output token k (token 0 is the prefill's); ``attempt``
    counts prefills from 1, a retracted request has several.
    """

    rid: str
    attempt: int
    step: int
    mode: str
    slots: tuple[int, ...]
    prompt_len: int

    @property
    def prompt_slots(self) -> tuple[int, ...]:
        return self.slots[: self.prompt_len]


@dataclass(frozen=True)
class Stale:
    """A step that read other prompt slots than the step after it: how many, and
    the first such position."""

    row: Row
    differ: int
    first: int


class Recorder:
    """Wraps ``scheduler.run_batch``; ``rows`` fills in order of execution."""

    def __init__(self, scheduler):
        self.rows: list[Row] = []
        self._attempts: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        self._run_batch = scheduler.run_batch
        self._table = scheduler.req_to_token_pool.req_to_token
        scheduler.run_batch = self._recording

    def _recording(self, batch, *args, **kwargs):
        decoding = _decoding(batch)
        rows = batch.req_pool_indices.tolist()
        lengths = batch.seq_lens_cpu.tolist()
        for req, row, length in zip(batch.reqs, rows, lengths, strict=True):
            if req.rid in decoding:
                self._record(req, batch, self._table[row, :length].tolist())
            elif self._steps.get(req.rid) != 0:
                # Further chunks of one prefill are no new attempt.
                self._attempts[req.rid] = self._attempts.get(req.rid, 0) + 1
                self._steps[req.rid] = 0
        return self._run_batch(batch, *args, **kwargs)

    def _record(self, req, batch, slots):
        self._steps[req.rid] = step = self._steps.get(req.rid, 0) + 1
        self.rows.append(
            Row(
                rid=req.rid,
                attempt=self._attempts.get(req.rid, 0),
                step=step,
                mode=batch.forward_mode.name,
                slots=tuple(slots),
                prompt_len=len(req.origin_input_ids),
            )
        )


def _decoding(batch) -> set[str]:
    """Ids of the requests that decode in this batch, MIXED batches included."""
    if batch.forward_mode.is_decode():
        return {req.rid for req in batch.reqs}
    if batch.forward_mode.is_mixed():
        return {req.rid for req in batch.decoding_reqs}
    return set()


def by_request(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows of each request and attempt, in order of steps."""
    ordered = sorted(rows, key=lambda row: (row.rid, row.attempt, row.step))
    for _, group in groupby(ordered, key=lambda row: (row.rid, row.attempt)):
        yield list(group)


def differing(a: tuple[int, ...], b: tuple[int, ...]) -> list[int]:
    """Positions at which two rows name different slots."""
    return [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]


def stale_steps(rows: Iterable[Row]) -> list[Stale]:
    """Every step whose prompt slots differ from those of the request's next step.

    A request's last step has no successor to compare with, so a request must
    decode at least twice to be judged.
    """
    found = []
    for steps in by_request(rows):
        for row, later in pairwise(steps):
            positions = differing(row.prompt_slots, later.prompt_slots)
            if positions:
                found.append(Stale(row, len(positions), positions[0]))
    return found
