"""Runs SGLang's real scheduler in this process, one loop turn at a time, and
collects what it streams out. A script decides what arrives in which turn, so a
run has no clock and no threads of its own. One engine per process."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sglang_cpu_testbed import PLATFORM
from sglang_cpu_testbed.request import Output, Request, tokenized

MODEL = Path(__file__).parent / "reference"
DEFAULTS = dict(
    model_path=str(MODEL),
    skip_tokenizer_init=True,
    load_format="dummy",
    device="cpu",
    dtype="float32",
    random_seed=0,
    page_size=1,
    max_total_tokens=16384,
    max_running_requests=16,
    max_mamba_cache_size=64,
    chunked_prefill_size=8192,
    mamba_radix_cache_strategy="extra_buffer",
    disable_cuda_graph=True,
    log_level="warning",
)
MAX_TURNS = 5000


class Stalled(RuntimeError):
    """The script or the scheduler did not come to an end in ``turns`` turns."""

    def __init__(self, turns: int, open_rids: list[str]):
        self.turns, self.open_rids = turns, open_rids
        super().__init__(f"{turns} loop turns, still open: {open_rids}")


def prepare_environment() -> None:
    """Select the testbed; must run before torch or SGLang is imported.

    Raises RuntimeError where SGLang has already settled on another platform.
    """
    loaded = sys.modules.get("sglang.srt.platforms")
    settled = loaded and loaded._current_platform
    if settled and not type(settled).__module__.startswith("sglang_cpu_testbed"):
        raise RuntimeError(
            f"needs a process that has not imported SGLang yet, found {settled!r};"
            " import nothing of SGLang before preparing the testbed"
        )
    os.environ["SGLANG_PLATFORM"] = PLATFORM
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("SGLANG_EXTERNAL_MODEL_PACKAGE", "sglang_cpu_testbed.models")


class Engine:
    """A real ``Scheduler`` with the testbed's defaults; keywords are ServerArgs
    fields. Loads plugins, so the environment must be complete by then."""

    def __init__(self, **server_args):
        prepare_environment()
        from sglang.srt.plugins import load_plugins

        load_plugins()
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.runtime_context import SpawnRanks, publish
        from sglang.srt.server_args import PortArgs, ServerArgs

        args = ServerArgs(**DEFAULTS | server_args)
        args.resolve_once()
        args.check_server_args()
        ranks = SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
        publish(args, role="scheduler", ranks=ranks)
        self.outputs: dict[str, Output] = {}
        self.control_outputs: list = []
        self.turn = 0
        self.scheduler = Scheduler(args, PortArgs.init_new(args))
        self.scheduler.output_streamer.send_to_detokenizer = _Sink(self._streamed)
        # The channels are a frozen struct.
        object.__setattr__(
            self.scheduler.ipc_channels, "send_to_tokenizer", _Sink(self._answered)
        )

    @property
    def open_rids(self) -> list[str]:
        """Requests submitted and not finished, in order of arrival."""
        return [o.rid for o in self.outputs.values() if o.finish is None]

    def submit(self, *requests: Request) -> None:
        """Hand requests to the scheduler within the current loop turn."""
        for request in requests:
            self.outputs[request.rid] = Output(request.rid)
        tokenizer = self.scheduler.tokenizer
        self.control(*(tokenized(request, tokenizer) for request in requests))

    def abort(self, rid: str) -> None:
        """Abort one request as SGLang's front end would."""
        from sglang.srt.managers.io_struct import AbortReq

        self.control(AbortReq(rid=rid))

    def control(self, *messages) -> None:
        """Hand any of SGLang's request objects to the scheduler."""
        type(self.scheduler).process_input_requests(self.scheduler, list(messages))

    def run(self, script: Iterable, max_turns: int = MAX_TURNS) -> dict[str, Output]:
        """Run the scheduler's own event loop until script and requests end.

        Each loop turn takes one item of ``script``: a Request, a list of them, a
        callable that gets the engine, or None to let the turn pass. After the
        last item the loop turns until no request is open, and a few turns more for
        what is in flight and for the scheduler's idle checks. Raises Stalled after
        ``max_turns`` turns. May be called again.
        """
        steps = self._steps(iter(script), max_turns)
        self.scheduler.gracefully_exit = False
        self.scheduler.process_input_requests = lambda _: next(steps, None)
        self.scheduler.run_event_loop()
        return self.outputs

    def _steps(self, script: Iterator, max_turns: int) -> Iterator[None]:
        """One pass per loop turn; ends the loop behind the last one."""
        spare = 2
        for turn in range(max_turns):
            self.turn += 1
            try:
                self._act(next(script))
            except StopIteration:
                spare -= not self.open_rids
            if spare < 0:
                self.scheduler.gracefully_exit = True
            yield
        raise Stalled(max_turns, self.open_rids)

    def _act(self, item) -> None:
        if isinstance(item, Request):
            self.submit(item)
        elif isinstance(item, Callable):
            item(self)
        elif item is not None:
            self.submit(*item)

    def _streamed(self, batch, *_) -> None:
        for i, rid in enumerate(batch.rids):
            output = self.outputs[rid]
            output.tokens.extend(batch.output_ids[i])
            if batch.output_token_logprobs_val:
                output.logprobs.extend(batch.output_token_logprobs_val[i])
            output.finish = batch.finished_reasons[i]
            output.cached_tokens = batch.cached_tokens[i]
            output.retractions = batch.retraction_counts[i]

    def _answered(self, message, *_) -> None:
        """Aborts of waiting requests and answers to control messages."""
        self.control_outputs.append(message)
        output = self.outputs.get(getattr(message, "rid", None))
        if output is not None and output.finish is None:
            output.finish = message.finished_reason or {"type": "abort"}


class _Sink:
    def __init__(self, take: Callable):
        self.send_output = take
