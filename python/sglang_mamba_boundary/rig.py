"""A scripted scheduler: what a loop is driven with, and a record of what it does.

The rig replaces only what reaches outside the scheduler; the loop and its own
helpers run as they are.
"""

from __future__ import annotations

from collections import deque

from .batches import Batch, Mode, Req
from .unknown import Journal, Known, Stop, Unknown

PAUSED = "paused"

# Far above what any script needs, so a loop that reaches it spins. The unit is
# a line; where only turns can be counted, one is taken for TURN_TICKS lines.
MAX_TICKS = 20_000
TURN_TICKS = 20

_COMPONENTS = (
    "schedule_stream",
    "forward_stream",
    "forward_stream_ctx",
    "invariant_checker",
    "_war_barrier_enabled",
)


class Run:
    """One script, driven once: its turns, and what happened in them.

    A turn is the batch to select, None, a callable that chooses one at
    selection, or PAUSED.
    """

    def __init__(self, journal: Journal, modes=Mode):
        self.journal = journal
        self.modes = modes
        self.turns: list = []
        self.events: list[str] = []
        self.selected: list[Batch] = []
        self.launched: list[str] = []
        self.processed: list[str] = []
        self.faults: list[str] = []
        self.flush_error: Exception | None = None
        self._turn = None
        self._arrived = self._ended = False
        self._ticks = 0

    def req(self, rid: str, **state) -> Req:
        return Req(self.journal, rid, **state)

    def prefill(self, name: str, *reqs: Req, **state) -> Batch:
        return Batch(self.journal, name, self.modes.EXTEND, list(reqs), **state)

    def decode(self, name: str, *reqs: Req, **state) -> Batch:
        return Batch(self.journal, name, self.modes.DECODE, list(reqs), **state)

    def mixed(self, name: str, prefilling: list[Req], decoding: list[Req]) -> Batch:
        reqs = prefilling + decoding
        return Batch(self.journal, name, self.modes.MIXED, reqs, decoding)

    def tick(self, ticks: int = 1) -> None:
        self._ticks += ticks
        # The script's end again, for a loop that swallowed it.
        if self._ended:
            raise Stop()
        if self._ticks > MAX_TICKS:
            raise self.journal.stop("it turns without end")

    def trace(self, frame, event, argument):
        """A trace function that ticks on each line, outside of this module.

        Raising ends all tracing, so the end of a script is raised by the rig
        first: then the first line of a handler that swallows it raises again.
        """
        if frame.f_code.co_filename == __file__:
            return None
        if event == "line":
            self.tick()
        return self.trace

    def arrive(self, scheduler) -> None:
        self._arrived = True
        if not self.turns:
            self._ended = True
            raise Stop()
        self._turn = self.turns.pop(0)
        scheduler._engine_paused = self._turn is PAUSED

    def select(self, scheduler) -> Batch | None:
        # A loop whose intake has another name has not called it.
        while not self._arrived or self._turn is PAUSED:
            self.arrive(scheduler)
        self._arrived = False
        batch = self._turn() if callable(self._turn) else self._turn
        self.events.append(f"select {batch.name if batch else None}")
        if batch:
            self.selected.append(batch)
            batch.capture()
        return batch

    def launch(self, batch) -> Known:
        if not isinstance(batch, Batch):
            raise self.journal.stop(f"it launches {batch!r}, which was not selected")
        self.events.append(f"launch {batch.name}")
        self.launched.append(batch.name)
        return Known("result", self.journal, name=batch.name, delay_sample_func=None)

    def process(self, batch, result) -> None:
        if not isinstance(batch, Batch) or not isinstance(result, Known):
            raise self.journal.stop(f"it processes {batch!r}, which was not launched")
        self.events.append(f"process {batch.name}")
        self.processed.append(batch.name)
        if result.name != batch.name:
            self.faults.append(f"processed {batch.name} with another's result")
        batch.process()

    def sample(self, name: str) -> None:
        self.events.append(f"sample {name}")
        if name in self.processed:
            self.faults.append(f"processed {name} before it was sampled")

    def flush(self) -> None:
        self.events.append("flush")
        if self.flush_error:
            raise self.flush_error


class Driven:
    """The part of a scheduler that the rig replaces; goes before the engine's class."""

    def __init__(
        self,
        run: Run,
        *,
        disable=False,
        mamba=True,
        extra_buffer=True,
        unified=False,
        mlp_sync=False,
        generation=True,
    ):
        journal = run.journal
        self._run = run
        self.gracefully_exit = self._engine_paused = False
        self.running_batch = self.last_batch = self.cur_batch = None
        self.result_queue = deque()
        self.is_generation = generation
        self.require_mlp_sync = mlp_sync
        self.enable_overlap = True
        self.enable_unified_memory = unified
        self.server_args = Known(
            "self.server_args", journal, enable_unified_memory=unified
        )
        self.tree_cache = Known(
            "self.tree_cache",
            journal,
            disable=disable,
            supports_mamba=lambda: mamba,
            checkpoint=lambda req, *args, **kwargs: req.publish(),
            cache_unfinished_req=lambda req, *args, **kwargs: req.publish(),
        )
        # A plain pool has no such attribute, and none may be asked of it.
        buffer = {"enable_mamba_extra_buffer": extra_buffer} if mamba else {}
        self.req_to_token_pool = type("ReqToTokenPool", (), buffer)()
        self.token_to_kv_pool_allocator = Known(
            "self.token_to_kv_pool_allocator", journal, flush_opportunistic=run.flush
        )
        self.request_receiver = Known(
            "self.request_receiver", journal, recv_requests=self.recv_requests
        )
        for component in _COMPONENTS:
            setattr(self, component, Unknown(f"self.{component}", journal))

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._missing(name)

    def _missing(self, name):
        return self._run.journal.missing(f"self.{name}")

    def ingest_requests(self, *args, **kwargs):
        self._run.arrive(self)

    def recv_requests(self, *args, **kwargs):
        self._run.arrive(self)
        return []

    def process_input_requests(self, *args, **kwargs):
        pass

    def get_next_batch_to_run(self, *args, **kwargs):
        batch = self._run.select(self)
        # Whoever is told the batches returns a plan, whoever looks them up a batch.
        if not args and not kwargs:
            return batch
        return Known(
            "plan",
            self._run.journal,
            batch_to_run=batch,
            running_batch=self.running_batch,
        )

    def run_batch(self, batch, *args, **kwargs):
        return self._run.launch(batch)

    def process_batch_result(self, batch, result, *args, **kwargs):
        self._run.process(batch, result)

    def launch_batch_sample_if_needed(self, result, *args, **kwargs):
        if isinstance(result, Known):
            self._run.sample(result.name)

    def _ignore(self, *args, **kwargs):
        pass

    on_idle = self_check_during_busy = _ignore
    _apply_war_barrier = _record_scheduler_state_for_paused_engine = _ignore
