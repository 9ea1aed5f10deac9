"""Looks over the loop's shoulder: which slots each decode captured, in which order
results are processed, and when in a turn. Wraps methods on the instance, so it
sees the stock and the woven loop alike and knows nothing of either."""

from collections import Counter

import torch

from sglang_cpu_testbed.capture import _decoding, differing
from sglang_cpu_testbed.simulation.verdict import RESULTS, STALE, WAIT, Violation

# The phases of a turn, in order.
INGEST, BOUNDARY, SELECTING, SELECTED, LAUNCHED = range(5)


class Watch:
    """Oracles 1, 4 and 5 for one scheduler; ``begin`` starts a history."""

    def __init__(self, scheduler, waits_between_prefills: bool):
        self._scheduler = scheduler
        self._waits_between_prefills = waits_between_prefills
        self._table = scheduler.req_to_token_pool.req_to_token
        self._run_batch = scheduler.run_batch
        self._process = scheduler.process_batch_result
        self._select = scheduler.get_next_batch_to_run
        scheduler.run_batch = self._launching
        scheduler.process_batch_result = self._processing
        scheduler.get_next_batch_to_run = self._selecting
        self.begin()

    def begin(self) -> None:
        self.violations: list[Violation] = []
        self.turn, self.phase = 0, INGEST
        self.early = self.within = 0
        self.overlapped = self.alone = self.retractions = 0
        self.reached: Counter = Counter()
        self.trace: list = []
        # Per request: row, captured slots; gone when it is prefilled anew.
        self._captured: dict[str, tuple[int, torch.Tensor]] = {}
        self._in_flight: list = []
        self._results: dict[int, object] = {}
        self._launched = self._processed = 0

    def begin_turn(self) -> None:
        """At the top of a turn: judge what the turn before left behind."""
        self._judge_rows_in_flight()
        self.turn += 1
        self.phase = INGEST

    def end_ingest(self) -> None:
        self.phase = BOUNDARY

    def end(self) -> None:
        """When the loop has come to rest."""
        self._judge_rows_in_flight()
        if self._processed != self._launched:
            self._report(
                RESULTS, f"{self._launched} launches, {self._processed} processed"
            )

    def _report(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, self.turn, text))

    def _selecting(self, *args, **kwargs):
        self.phase, within = SELECTING, self.within
        plan = self._select(*args, **kwargs)
        self.phase = SELECTED
        batch, mixes = plan.batch_to_run, self._scheduler.is_mixed_chunk
        # Memory may leave a mixed batch without the rows it was to decode.
        if self.within > within and batch and batch.forward_mode.is_extend():
            if not mixes:
                self._report(WAIT, "a result was waited for to select a prefill")
        return plan

    def _launching(self, batch, *args, **kwargs):
        self._capture(batch)
        self.reached[batch.forward_mode.name] += 1
        self.reached["chunk"] += batch.chunked_req is not None
        result = self._run_batch(batch, *args, **kwargs)
        self.phase = LAUNCHED
        self._launched += 1
        self._results[self._launched] = result
        return result

    def _processing(self, batch, result, *args, **kwargs):
        number = next((n for n, r in self._results.items() if r is result), None)
        if number != self._processed + 1:
            what = "one that was processed before" if number is None else number
            self._report(RESULTS, f"expected result {self._processed + 1}, got {what}")
        self._results.pop(number, None)
        self._processed = number or self._processed
        tracked = self._to_publish(batch)
        younger = self._launched > (number or 0)
        self._process(batch, result, *args, **kwargs)
        published = [r for r in tracked if r.kv.mamba_last_track_seqlen is None]
        self._judge_wait(batch, number, bool(published), younger)
        self.trace.append((self.turn, self.phase, number, len(batch.reqs)))

    def _judge_wait(self, batch, number, published: bool, younger: bool) -> None:
        what = f"result {number} ({batch.forward_mode.name})"
        if self.phase == BOUNDARY:
            self.early += 1
            if not published:
                text = (
                    f"{what} was processed before the selection and published nothing"
                )
                self._report(WAIT, text)
        elif self.phase == SELECTING:
            self.within += 1
            if not published:
                text = f"{what} was processed in the selection and published nothing"
                self._report(WAIT, text)
        elif self.phase == SELECTED:
            # Either the loop's own exception for prefill after prefill, or the
            # turn has nothing to launch.
            self.alone += 1
            if self._scheduler.cur_batch_for_debug is not None and not (
                self._waits_between_prefills and batch.forward_mode.is_extend()
            ):
                self._report(WAIT, f"{what} was processed between selection and launch")
        elif self.phase == LAUNCHED:
            self.overlapped += younger
            if not younger:
                self._report(WAIT, f"{what} was processed in the turn of its launch")
        else:
            self.alone += 1

    def _to_publish(self, batch) -> list:
        """Prefilled requests with a state to publish, before the processing."""
        decoding = _decoding(batch)
        return [
            req
            for req in batch.reqs
            if req.rid not in decoding and req.kv.mamba_last_track_seqlen is not None
        ]

    def _capture(self, batch) -> None:
        decoding = _decoding(batch)
        rows = batch.req_pool_indices.tolist()
        lengths = batch.seq_lens_cpu.tolist()
        self._in_flight = []
        for req, row, length in zip(batch.reqs, rows, lengths, strict=True):
            if req.rid not in decoding:
                self._captured.pop(req.rid, None)
                continue
            slots = self._table[row, :length].clone()
            self.trace.append((self.turn, req.rid, hash(tuple(slots.tolist()))))
            earlier = self._captured.get(req.rid)
            if earlier is not None:
                self._compare(req.rid, earlier[1], slots, "the decode after it reads")
            self._captured[req.rid] = row, slots
            self._in_flight.append(req)

    def _judge_rows_in_flight(self) -> None:
        """The row of a decode in flight must not change under it."""
        for req in self._in_flight:
            row, slots = self._captured.get(req.rid, (None, None))
            if req.finished() or req.is_retracted or req.kv.req_pool_idx != row:
                continue
            now = self._table[row, : len(slots)].clone()
            self._compare(req.rid, slots, now, "its row now names")
            self._captured[req.rid] = row, now

    def _compare(self, rid: str, captured, later, who: str) -> None:
        later = later[: len(captured)]
        if torch.equal(captured, later):
            return
        positions = differing(tuple(captured.tolist()), tuple(later.tolist()))
        at = positions[0]
        self._report(
            STALE,
            f"a decode of {rid} captured slot {int(captured[at])} for position {at},"
            f" {who} {int(later[at])} ({len(positions)} positions differ)",
        )
