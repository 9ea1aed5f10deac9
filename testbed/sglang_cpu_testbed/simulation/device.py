"""A device that lags behind the scheduler: a launched forward is recorded, and
executed when its result is waited for or when the simulation says so, in launch
order. Separate from the engine because it replaces, on instances only, the few
calls through which the scheduler meets the device.

What a launch captures is what a GPU would see in stream order. Tensors handed
over are arguments: copied. The tables that the scheduler writes (req_to_token, the
Mamba mappings) are read while the forward runs, but every later write to them
waits for it: a forward sees the rows as they were at its launch. The pools and the
relay of sampled tokens are written by forwards: they are read at execution.
"""

import dataclasses
from collections import deque
from collections.abc import Callable

import torch

# No token id, so that reading a result before it is there cannot go unnoticed.
UNKNOWN_TOKEN = -(2**40)


class Completion:
    """The event a result is waited for by; stands in for copy_done."""

    def __init__(self, device: "Device", launch: int):
        self._device, self.launch = device, launch

    def synchronize(self) -> None:
        self._device.wait(self.launch)

    wait = synchronize

    def query(self) -> bool:
        return self._device.completed >= self.launch

    def record(self, *_, **__) -> None:
        """The copy has run: nothing to add, the queue knows the order."""


class Tables:
    """The tables the scheduler writes and a forward reads, seen as at a launch."""

    def __init__(self, pool):
        self._mappings = [pool.req_to_token, pool.req_index_to_mamba_index_mapping]
        if pool.enable_mamba_extra_buffer:
            self._mappings.append(
                pool.req_index_to_mamba_ping_pong_track_buffer_mapping
            )

    def capture(self, rows: torch.Tensor, length: int) -> list[torch.Tensor]:
        """Copies of these rows, those of req_to_token up to ``length``."""
        return [self._of(table, length)[rows] for table in self._mappings]

    def restore(self, rows: torch.Tensor, length: int, kept: list) -> None:
        for table, values in zip(self._mappings, kept, strict=True):
            self._of(table, length)[rows] = values

    def _of(self, table, length):
        return table[:, :length] if table is self._mappings[0] else table


@dataclasses.dataclass
class Launch:
    """One forward and what belongs to it, in the order in which it was enqueued."""

    number: int
    work: list[Callable[[], None]] = dataclasses.field(default_factory=list)


class Device:
    """Installs itself on a scheduler. ``launched`` and ``completed`` number the
    forwards from 1; ``waits`` counts waits that found their result not ready. One
    that does not lag executes each forward as soon as it is launched."""

    def __init__(self, scheduler, lags: bool = True):
        self.scheduler, self._lags = scheduler, lags
        self.launched = self.completed = self.waits = 0
        # Called with the launch number before a forward is executed.
        self.before_forward: Callable[[int], None] = lambda launch: None
        # Up to this launch the schedule stream was told to wait, see ``behind``.
        self.fenced = 0
        self._queue: deque[Launch] = deque()
        self._tables = Tables(scheduler.req_to_token_pool)
        self._gather = None
        self._install()

    def complete(self, launches: int = 1) -> None:
        """Execute the oldest launches that are still to run."""
        for _ in range(min(launches, len(self._queue))):
            self._execute()

    def wait(self, launch: int) -> None:
        """Execute everything up to this launch, as a host that waits for it."""
        self.waits += self.completed < launch
        while self.completed < launch:
            self._execute()

    def behind(self, step: Callable[[], None]) -> None:
        """Do what the schedule stream enqueues: at once, or behind the forwards that
        it was told to wait for."""
        if self.completed < self.fenced:
            self._enqueue(step)
        else:
            step()

    def _wait_stream(self, stream) -> None:
        if stream is self.scheduler.forward_stream:
            self.fenced = self.launched

    @property
    def pending(self) -> int:
        return len(self._queue)

    def _execute(self) -> None:
        launch = self._queue.popleft()
        self.completed = launch.number
        for step in launch.work:
            step()

    def _enqueue(self, step: Callable[[], None]) -> None:
        self._queue[-1].work.append(step)

    def _install(self) -> None:
        from sglang.srt.managers import scheduler as module

        scheduler, runner = self.scheduler, self.scheduler.model_worker.model_runner
        self._resolve = module.resolve_forward_inputs
        module.resolve_forward_inputs = self._resolve_inputs
        self._forward, runner.forward = runner.forward, self._launch_forward
        self._sample, runner.sample = runner.sample, self._launch_sample
        futures = scheduler.future_map
        self._stash, futures.stash = futures.stash, self._launch_stash
        scheduler._copy_result_to_cpu = self._launch_copy
        scheduler.schedule_stream.wait_stream = self._wait_stream
        # The engine's own fence is not counted on: it protects no other stream, and
        # behind it a read of a freed slot would go unnoticed.
        scheduler._apply_war_barrier = lambda: None

    def _resolve_inputs(self, batch, future_map) -> None:
        """The host part at once; the gather of sampled tokens when it executes."""
        if batch.prefill_input_ids_cpu is not None:
            indices = batch.mix_running_indices
        else:
            indices = batch.req_pool_indices if batch.input_ids is None else None
        self._gather = None if indices is None else indices.clone()
        self._resolve(batch, future_map)

    def _launch_forward(self, forward_batch, *args, **kwargs):
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput
        from sglang.srt.model_executor.model_runner import ModelRunnerOutput

        self.launched += 1
        self._queue.append(Launch(self.launched))
        own_arguments(forward_batch)
        rows = forward_batch.req_pool_indices
        length = int(forward_batch.seq_lens.max())
        seen, gather = self._tables.capture(rows, length), self._gather
        output = LogitsProcessorOutput(next_token_logits=None)
        number = self.launched

        def forward():
            self.before_forward(number)
            if gather is not None:
                tokens = self.scheduler.future_map.output_tokens_buf[gather]
                forward_batch.input_ids[
                    len(forward_batch.input_ids) - len(tokens) :
                ] = tokens
            later = self._tables.capture(rows, length)
            self._tables.restore(rows, length, seen)
            ran = self._forward(forward_batch, *args, **kwargs)
            self._tables.restore(rows, length, later)
            for field in dataclasses.fields(output):
                setattr(output, field.name, getattr(ran.logits_output, field.name))

        self._enqueue(forward)
        return ModelRunnerOutput(logits_output=output, can_run_graph=False)

    def _launch_sample(self, logits_output, forward_batch):
        tokens = torch.full((forward_batch.batch_size,), UNKNOWN_TOKEN)
        self._enqueue(lambda: tokens.copy_(self._sample(logits_output, forward_batch)))
        return tokens

    def _launch_stash(self, future_indices, payload) -> None:
        indices = future_indices.clone()
        self._enqueue(lambda: self._stash(indices, payload))

    def _launch_copy(self, result, batch) -> None:
        result.copy_done = Completion(self, self.launched)
        wanted = dict(
            return_logprob=batch.return_logprob,
            return_hidden_states=batch.return_hidden_states,
        )
        self._enqueue(lambda: result.copy_to_cpu(**wanted))
        if not self._lags:
            self.complete()


def own_arguments(forward_batch) -> None:
    """Give a forward batch copies of all tensors that it shares with the host."""
    for field in dataclasses.fields(forward_batch):
        value = getattr(forward_batch, field.name)
        if isinstance(value, torch.Tensor):
            setattr(forward_batch, field.name, value.clone())
