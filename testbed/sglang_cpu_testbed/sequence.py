"""Records what the loop does with its batches, in the order in which it does it.
Separate from ``capture``, which looks at decode steps alone: here the point is what
stands before what. Wraps methods on the instance and knows no policy."""

from collections.abc import Iterable
from dataclasses import dataclass

from sglang_cpu_testbed.capture import differing
from sglang_cpu_testbed.engine import Engine
from sglang_cpu_testbed.fork import fork
from sglang_cpu_testbed.scenarios import BOUNDARY_SWITCH, Configuration, Scenario

SELECT, LAUNCH, PROCESS, PUBLISH = "select", "launch", "process", "publish"
PREFILL, DECODE = "prefill", "decode"
Slots = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One act on the batch of that number, counted in launches from 1.

    ``rows`` has the slots of the prompt's positions by request: as the forward reads
    them for a launch, as they are afterwards for a publication, of one request.
    """

    turn: int
    act: str
    batch: int
    kind: str
    rows: dict[str, Slots]
    rebound: int = 0


class Sequence:
    """Wraps one engine's scheduler; ``steps`` fills as the loop goes."""

    def __init__(self, engine: Engine):
        self.steps: list[Step] = []
        self._engine, self._kinds = engine, [""]
        self._counts = {SELECT: 0, LAUNCH: 0, PROCESS: 0}
        self._in_processing = False
        scheduler = engine.scheduler
        self._table = scheduler.req_to_token_pool.req_to_token
        self._select = scheduler.get_next_batch_to_run
        self._run = scheduler.run_batch
        self._process = scheduler.process_batch_result
        self._checkpoint = scheduler.tree_cache.checkpoint
        scheduler.get_next_batch_to_run = self._selecting
        scheduler.run_batch = self._launching
        scheduler.process_batch_result = self._processing
        scheduler.tree_cache.checkpoint = self._publishing

    def _selecting(self, *args, **kwargs):
        plan = self._select(*args, **kwargs)
        batch = plan.batch_to_run
        if batch:
            self._kinds.append(PREFILL if batch.forward_mode.is_extend() else DECODE)
            self._count(SELECT)
        return plan

    def _launching(self, batch, *args, **kwargs):
        self._count(LAUNCH, {req.rid: self._row(req) for req in batch.reqs})
        return self._run(batch, *args, **kwargs)

    def _processing(self, batch, *args, **kwargs):
        self._count(PROCESS)
        self._in_processing = True
        try:
            return self._process(batch, *args, **kwargs)
        finally:
            self._in_processing = False

    def _publishing(self, req, *args, **kwargs):
        publishes = req.kv.mamba_last_track_seqlen is not None
        before = self._row(req)
        done = self._checkpoint(req, *args, **kwargs)
        if publishes:
            after = self._row(req)
            # Ahead of its processing it belongs to the result that comes next.
            batch = self._counts[PROCESS] + (not self._in_processing)
            self._add(PUBLISH, batch, {req.rid: after}, len(differing(before, after)))
        return done

    def _count(self, act: str, rows: dict[str, Slots] | None = None) -> None:
        """Batches are selected, launched and processed in one order."""
        self._counts[act] += 1
        self._add(act, self._counts[act], rows or {})

    def _add(self, act: str, batch: int, rows: dict[str, Slots], rebound=0) -> None:
        kind = self._kinds[batch]
        self.steps.append(Step(self._engine.turn, act, batch, kind, rows, rebound))

    def _row(self, req) -> Slots:
        length = len(req.origin_input_ids)
        return tuple(self._table[req.kv.req_pool_idx, :length].tolist())


def record_here(scenario: Scenario, **server_args) -> list[Step]:
    """Run a scenario in this process, which must not have had an engine."""
    engine = Engine(**server_args)
    sequence = Sequence(engine)
    engine.run(scenario.script(engine))
    return sequence.steps


def record(scenario: Scenario, configuration: Configuration) -> list[Step]:
    """Run a scenario in a forked child; call ``warm()`` first."""
    env = {BOUNDARY_SWITCH: configuration.boundary}
    return fork(record_here, scenario, env=env, **configuration.server_args)


def first_decode(steps: Iterable[Step]) -> Step:
    """The launch of the first decode batch."""
    return next(s for s in steps if s.act == LAUNCH and s.kind == DECODE)


def rebinding(steps: Iterable[Step]) -> Step:
    """The first publication that rebound a row."""
    return next(s for s in steps if s.act == PUBLISH and s.rebound)


def rows_in_the_end(steps: Iterable[Step]) -> dict[str, Slots]:
    """By request, the slots that its last forward read."""
    rows: dict[str, Slots] = {}
    for step in steps:
        if step.act == LAUNCH:
            rows |= step.rows
    return rows
