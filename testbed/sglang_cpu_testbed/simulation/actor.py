"""Does to an engine what a history says, through the requests a front end would send.
Separate from the stage, which judges what comes of it."""

from collections import Counter

from sglang_cpu_testbed.request import Request
from sglang_cpu_testbed.simulation import history as h


class Actor:
    """For one history. ``arrived`` and ``aborted`` say what was asked of which
    request, ``reached`` counts in which state the engine was met."""

    def __init__(self, engine, device, expected):
        self._engine, self._device, self._expected = engine, device, expected
        self.arrived: dict[str, h.Arrive] = {}
        self.aborted: set[str] = set()
        self.reached: Counter = Counter()

    def act(self, operation: h.Operation) -> None:
        """Within the intake of a loop turn."""
        getattr(self, f"_{type(operation).__name__.lower()}")(operation)

    def _arrive(self, arrive: h.Arrive) -> None:
        self.arrived[arrive.rid] = arrive
        stop = self._expected.stop_token(arrive)
        extra = {} if arrive.priority is None else {"priority": arrive.priority}
        self._engine.submit(
            Request(
                arrive.rid,
                arrive.prompt.tokens(),
                arrive.new_tokens,
                logprobs=arrive.logprobs,
                sampling={} if stop is None else {"stop_token_ids": [stop]},
                extra=extra,
            )
        )

    def _abort(self, abort: h.Abort) -> None:
        from sglang.srt.managers.io_struct import AbortReq

        open_rids = set(self._engine.open_rids)
        if abort.rid is None:
            self.aborted |= open_rids
            self._engine.control(AbortReq(rid="", abort_all=True))
        elif abort.rid in open_rids:
            self.reached[f"abort while {self._state(abort.rid)}"] += 1
            # The engine takes an id for a prefix: aborting r1 ends r10 as well.
            self.aborted |= {rid for rid in open_rids if rid.startswith(abort.rid)}
            self._engine.abort(abort.rid)

    def _state(self, rid: str) -> str:
        scheduler = self._engine.scheduler
        if any(req.rid == rid for req in scheduler.waiting_queue):
            return "waiting"
        prefilled = scheduler.last_batch.reqs if scheduler.last_batch else []
        if any(req.rid == rid and not req.output_ids for req in prefilled):
            return "its prefill is pending"
        return "decoding"

    def _complete(self, complete: h.Complete) -> None:
        if self._device:
            self._device.complete(complete.launches)

    def _flush(self, _) -> None:
        from sglang.srt.managers.io_struct import FlushCacheReqInput

        self._engine.control(FlushCacheReqInput())

    def _pause(self, pause: h.Pause) -> None:
        from sglang.srt.managers.io_struct import PauseGenerationReqInput

        self.reached[f"pause {pause.mode}"] += 1
        self._engine.control(PauseGenerationReqInput(mode=pause.mode))

    def _continue(self, _) -> None:
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput

        self._engine.control(ContinueGenerationReqInput(torch_empty_cache=False))

    def _evict(self, evict: h.Evict) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        wanted = EvictParams(num_tokens=evict.tokens, mamba_num=evict.states)
        self._engine.scheduler.tree_cache.evict(wanted)

    def _retract(self, _) -> None:
        self.retract_next(True)

    def retract_next(self, on: bool) -> None:
        """Whether the next decode is to find memory short."""
        from sglang.srt.managers import scheduler as module

        # Read from the environment when the module was imported.
        module.TEST_RETRACT, module.TEST_RETRACT_INTERVAL = on, 1
