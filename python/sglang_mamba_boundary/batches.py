"""Requests and batches that a rig schedules: what they hold, and how it is published.

Processing a prefill publishes its tracked requests: each row changes from
PRIVATE to CANONICAL slots. A decode, verify or mixed batch captures the rows of
its decoding requests when it is selected.
"""

from __future__ import annotations

from enum import Enum, auto

from .unknown import Journal, Known

PRIVATE = "private"
CANONICAL = "canonical"


class Mode(Enum):
    """A forward mode, for loops whose own one is not imported."""

    EXTEND = auto()
    DECODE = auto()
    MIXED = auto()

    def is_extend(self):
        return self is not Mode.DECODE

    def __getattr__(self, name):
        if not name.startswith("is_"):
            raise AttributeError(name)
        return lambda: name == f"is_{self.name.lower()}"


class Req(Known):
    """A request with one row of slots; what moved between releases is in both places."""

    def __init__(self, journal: Journal, rid: str, tracked=True, chunks=0, **state):
        length = 64 if tracked else None
        kv = Known("req.kv", journal, mamba_last_track_seqlen=length)
        known = {"is_retracted": False, "skip_radix_cache_insert": False}
        super().__init__(
            "req", journal, rid=rid, kv=kv, inflight_middle_chunks=chunks, **known
        )
        self.slots = PRIVATE
        self.is_finished = self.finishes_in_prefill = False
        vars(self).update(state)

    @property
    def mamba_last_track_seqlen(self):
        return self.kv.mamba_last_track_seqlen

    @property
    def is_chunked(self):
        return self.inflight_middle_chunks

    def finished(self):
        return self.is_finished

    def publish(self):
        if self.kv.mamba_last_track_seqlen is not None:
            self.slots = CANONICAL
            self.kv.mamba_last_track_seqlen = None

    def process_prefill(self):
        if self.inflight_middle_chunks > 0:
            self.inflight_middle_chunks -= 1
        elif self.finishes_in_prefill:
            self.is_finished = True
        else:
            self.publish()


class Batch(Known):
    """A batch that captures its decoding rows when it is selected."""

    def __init__(self, journal: Journal, name, mode, reqs, decoding_reqs=None, **state):
        super().__init__("batch", journal, name=name, forward_mode=mode, reqs=reqs)
        self.decoding_reqs = decoding_reqs
        self.is_extend_in_batch = mode.is_extend()
        self.is_prefill_only = self.has_grammar = self.is_spec_v2 = False
        self.captured: dict[str, str] = {}
        vars(self).update(state)
        self.spec_algorithm = Known(
            "batch.spec_algorithm", journal, is_none=lambda: not self.is_spec_v2
        )

    def decoding(self) -> list[Req]:
        rows = self.reqs if self.forward_mode.is_decode() else self.decoding_reqs
        return list(rows or ())

    def capture(self):
        self.captured = {req.rid: req.slots for req in self.decoding()}

    def process(self):
        if self.forward_mode.is_extend():
            decoding = {id(req) for req in self.decoding()}
            for req in self.reqs:
                if id(req) not in decoding:
                    req.process_prefill()

    def grammar_needs_sync(self):
        return self.has_grammar

    def copy(self) -> Batch:
        taken = Batch.__new__(Batch)
        vars(taken).update(vars(self))
        return taken
