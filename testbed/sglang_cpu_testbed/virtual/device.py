"""The virtual device: installs itself on a scheduler, gives each launched forward a
duration, and makes results wait for it. Separate from the simulation's device, which
knows an order and no time.

Two streams are modelled, as the scheduler uses them. A forward starts when it is
launched, the forward before it is over, and the schedule stream is done with the
batch's copies. The schedule stream runs behind an extend (the engine's barrier is
coarse there) and behind whatever it is told to wait for; behind a decode it is fenced
by an event that a graph records once it has read its rows, so there it is free.
"""

from collections.abc import Callable

import torch

from sglang_cpu_testbed.virtual import timeline as t
from sglang_cpu_testbed.virtual.clock import NS_PER_US
from sglang_cpu_testbed.virtual.machine import Machine

# The model is replaced: any next token will do that depends on what was read.
_STEP, _VOCAB = 31, 512


class Completion:
    """The event of a result; stands in for copy_done."""

    def __init__(self, device: "VirtualDevice", end_ns: int):
        self._device, self.end_ns = device, end_ns

    def synchronize(self) -> None:
        self._device.wait_until(self.end_ns)

    wait = synchronize

    def query(self) -> bool:
        return self._device.clock.now() >= self.end_ns


class VirtualDevice:
    """Replaces forward and sampling of one scheduler, on instances only."""

    def __init__(self, scheduler, machine: Machine, clock):
        self.scheduler, self.machine, self.clock = scheduler, machine, clock
        self.timeline = t.Timeline()
        # When each stream is done with all that was enqueued on it so far.
        self._forward_ns = self._schedule_ns = 0
        self._launched = 0
        self._extends = False
        self._tokens = None
        self._install()

    def begin(self, clock) -> None:
        """Start over at the zero of another clock; nothing may be in flight."""
        self.clock, self.timeline = clock, t.Timeline()
        self._forward_ns = self._schedule_ns = 0

    def wait_until(self, moment_ns: int) -> None:
        start = self.clock.now()
        if moment_ns > start:
            self.clock.wait_until(moment_ns)
            self.timeline.add(t.HOST, t.WAIT, start, moment_ns)

    def schedule_work(self, us: int) -> None:
        """Enqueue work on the schedule stream; the host does not wait for it."""
        start = max(self._schedule_ns, self.clock.now())
        self._schedule_ns = start + us * NS_PER_US

    def launch(self, batch, run: Callable):
        """The forward of ``batch``, which ``run`` launches."""
        machine, clock = self.machine, self.clock
        decodes = len(batch.reqs)
        tokens = 0
        if batch.forward_mode.is_extend():
            decodes = len(batch.decoding_reqs or ())
            tokens = batch.extend_num_tokens - decodes
        self.schedule_work(machine.schedule_stream_us)
        result = run()
        clock.charge(machine.launch_us(len(batch.reqs)))
        start = max(clock.now(), self._forward_ns, self._schedule_ns)
        duration = machine.forward_us(tokens, decodes) * NS_PER_US
        self._launched += 1
        self._extends = bool(tokens)
        self._forward_ns = start + duration
        kind = t.PREFILL if tokens else t.DECODE
        label = f"{self._launched}: {len(batch.reqs)} requests"
        if tokens:
            label += f", {tokens} tokens"
        self.timeline.add(t.DEVICE, kind, start, self._forward_ns, label)
        result.copy_done = Completion(self, self._forward_ns)
        return result

    def _install(self) -> None:
        scheduler, runner = self.scheduler, self.scheduler.model_worker.model_runner
        runner.forward, runner.sample = self._forward, self._sample
        scheduler._copy_result_to_cpu = self._copy
        scheduler._apply_war_barrier = self._barrier
        # Only overlap has streams.
        if scheduler.enable_overlap:
            scheduler.schedule_stream.wait_stream = self._wait_stream

    def _wait_stream(self, stream) -> None:
        """The schedule stream waits for the forwards that are enqueued by now."""
        self._schedule_ns = max(self._schedule_ns, self._forward_ns)

    def _barrier(self) -> None:
        if self._extends:
            self._wait_stream(None)

    def _forward(self, forward_batch, *_, **__):
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput
        from sglang.srt.model_executor.model_runner import ModelRunnerOutput

        with self.clock.left_out():
            last = forward_batch.input_ids
            if forward_batch.forward_mode.is_extend():
                last = last[forward_batch.extend_seq_lens.cumsum(0) - 1]
            self._tokens = (last * _STEP + forward_batch.seq_lens + 7) % _VOCAB
        output = LogitsProcessorOutput(next_token_logits=None)
        return ModelRunnerOutput(logits_output=output, can_run_graph=False)

    def _sample(self, *_) -> torch.Tensor:
        return self._tokens

    def _copy(self, result, batch) -> None:
        result.copy_to_cpu(
            return_logprob=batch.return_logprob,
            return_hidden_states=batch.return_hidden_states,
        )
