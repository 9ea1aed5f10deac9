"""Reads a scheduler's turns off its own methods: host spans, charged costs, when each
token was streamed, which results were consumed early, whether decoded rows kept their
slots. Wraps methods on the instance and knows no policy."""

from dataclasses import dataclass, field

import torch

from sglang_cpu_testbed.virtual import timeline as t
from sglang_cpu_testbed.virtual.device import VirtualDevice


@dataclass
class Stream:
    """Moments of one request in ns: when it came in, and when tokens went out."""

    arrived_ns: int
    token_ns: list[int] = field(default_factory=list)


class Rows:
    """The prompt slots of each decoded row against those of its step before."""

    def __init__(self, scheduler):
        self._table = scheduler.req_to_token_pool.req_to_token
        self._seen = torch.zeros_like(self._table)
        # The prompt's length where the row has decoded since its prefill, else 0.
        self._length = torch.zeros(len(self._table), dtype=torch.int64)
        self.changed = 0

    def look(self, batch) -> None:
        decoding = batch.reqs if batch.forward_mode.is_decode() else batch.decoding_reqs
        decoding = {id(req) for req in decoding or ()}
        rows, prompts, prefilled = [], [], []
        indices = batch.req_pool_indices.tolist()
        for req, row in zip(batch.reqs, indices, strict=True):
            if id(req) in decoding:
                rows.append(row)
                prompts.append(len(req.origin_input_ids))
            else:
                prefilled.append(row)
        self._length[prefilled] = 0
        if rows:
            self._compare(torch.tensor(rows), torch.tensor(prompts))

    def _compare(self, rows, prompts) -> None:
        width = int(prompts.max())
        now = self._table[rows, :width]
        known = torch.arange(width) < self._length[rows].unsqueeze(1)
        self.changed += int(((now != self._seen[rows, :width]) & known).any(1).sum())
        self._seen[rows, :width] = now
        self._length[rows] = prompts


class Meter:
    """Wraps one scheduler on a virtual device; ``begin`` starts a measurement."""

    def __init__(self, engine, device: VirtualDevice):
        self._engine, self._device = engine, device
        scheduler = self._scheduler = engine.scheduler
        self._select = scheduler.get_next_batch_to_run
        self._run = scheduler.run_batch
        self._process = scheduler.process_batch_result
        scheduler.get_next_batch_to_run = self._selecting
        scheduler.run_batch = self._launching
        scheduler.process_batch_result = self._processing
        self._checkpoint = scheduler.tree_cache.checkpoint
        scheduler.tree_cache.checkpoint = self._publishing
        self._streamed = engine._streamed
        scheduler.output_streamer.send_to_detokenizer.send_output = self._streaming
        self.begin()

    def begin(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.rows = Rows(self._scheduler)
        self.early = self.turns = 0
        self._selected = True

    def turn(self, arriving) -> None:
        """A turn begins and these requests come in."""
        clock, machine = self._device.clock, self._device.machine
        start = clock.now()
        self.turns += 1
        clock.charge(machine.host_turn_us + machine.host_arrival_us * len(arriving))
        for request in arriving:
            self.streams[request.rid] = Stream(start)
        self._engine.submit(*arriving)
        self._span(t.INGEST, start)
        self._selected = False

    def _span(self, kind: str, start_ns: int) -> None:
        self._device.timeline.add(t.HOST, kind, start_ns, self._device.clock.now())

    def _selecting(self, *args, **kwargs):
        start = self._device.clock.now()
        plan = self._select(*args, **kwargs)
        self._selected = True
        batch, prefills, decodes = plan.batch_to_run, 0, 0
        if batch:
            decodes = len(batch.reqs)
            if batch.forward_mode.is_extend():
                decodes = len(batch.decoding_reqs or ())
            prefills = len(batch.reqs) - decodes
        self._device.clock.charge(self._device.machine.select_us(prefills, decodes))
        self._span(t.SELECT, start)
        return plan

    def _launching(self, batch, *args, **kwargs):
        start = self._device.clock.now()
        with self._device.clock.left_out():
            self.rows.look(batch)
        result = self._device.launch(batch, lambda: self._run(batch, *args, **kwargs))
        self._span(t.LAUNCH, start)
        return result

    def _processing(self, batch, result, *args, **kwargs):
        self.early += not self._selected
        # Processing waits first; here, so that the wait is seen as one.
        result.copy_done.synchronize()
        start = self._device.clock.now()
        self._device.clock.charge(self._device.machine.process_us(len(batch.reqs)))
        self._process(batch, result, *args, **kwargs)
        self._span(t.PROCESS, start)

    def _publishing(self, req, *args, **kwargs):
        publishes = req.kv.mamba_last_track_seqlen is not None
        start = self._device.clock.now()
        if publishes:
            self._device.clock.charge(self._device.machine.host_publish_us)
            self._device.schedule_work(self._device.machine.publication_us)
        done = self._checkpoint(req, *args, **kwargs)
        if publishes:
            self._span(t.PUBLISH, start)
        return done

    def _streaming(self, batch, *args) -> None:
        with self._device.clock.left_out():
            now = self._device.clock.now()
            for rid, tokens in zip(batch.rids, batch.output_ids, strict=True):
                self.streams[rid].token_ns += [now] * len(tokens)
            self._streamed(batch, *args)
