"""The policy `publish`: the publication is made before its result is there.

The members named here replace the act of `fix.py`; the loop calls them by the same
name, so its text is the same. What they leave to the policy flush goes to its act. As there, they are written as members of SGLang's `Scheduler`.
"""

from .loop import ACT
from .refusal import tell_once

OBSTACLE = "publish_ahead_obstacle"

AHEAD = "publications_ahead"

MEMBERS = (OBSTACLE, AHEAD, ACT)


def publish_ahead_obstacle(self) -> str | None:
    """What in this server keeps a publication from being made ahead of its result.

    A publication moves slots that the forward in flight writes. That is right where
    all who may take the slots afterwards are known to run behind that forward.
    """
    if type(self.tree_cache).__name__ != "UnifiedRadixCache":
        return f"the cache {type(self.tree_cache).__name__}"
    if self.enable_hierarchical_cache or self.enable_unified_cache_external_linker:
        return "a cache tier below the device, which moves slots on streams of its own"
    if self.enable_unified_memory:
        return "unified memory, which zeroes the slots that it hands out"
    if self.req_to_token_pool.mamba_ckpt_pool is not None:
        return "int8 checkpoints, which are made from the state at publication"
    if self.enable_session_radix_cache:
        return "the session radix cache, which registers what finishes"
    if self.is_hybrid_swa:
        return "sliding-window layers, whose slots are freed as the window moves"
    if not self.spec_algorithm.is_none():
        return "speculative decoding"
    if not self._war_barrier_enabled:
        return "no barrier between the streams of schedule and forward"
    return None


def publications_ahead(self, batch) -> list | None:
    """The requests of the pending batch to publish; None if the result must come first."""
    decoding_reqs = {id(req) for req in batch.decoding_reqs or ()}
    reqs = []
    for req in batch.reqs:
        if (
            req.kv.mamba_last_track_seqlen is None
            # A middle chunk is published by its stash.
            or req.inflight_middle_chunks > 0
            or req.skip_radix_cache_insert
            or req.is_retracted
            or req.finished()
            or id(req) in decoding_reqs
        ):
            continue
        if (
            req.session is not None
            or req.beam_group is not None
            # What the result holds decides on the publication, or goes by its slots.
            or req.return_sampling_mask
            or req.return_routed_experts
            or req.return_indexer_topk
        ):
            return None
        # Ends with the pending result, so it is in no batch selected before.
        if not req.next_output_finishes_by_length():
            reqs.append(req)
    return reqs


def publish_pending_mamba_prefill(self, pop_and_process) -> bool:
    """Publish what the pending result would; True if the result was consumed for it."""
    if not self.has_pending_mamba_publication():
        return False
    obstacle, reqs = self.publish_ahead_obstacle(), None
    if obstacle is None:
        batch, _ = self.result_queue[0]
        reqs = self.publications_ahead(batch)
    else:
        tell_once(
            self,
            "publish",
            obstacle,
            "each tracked prefill result is processed early instead, as by the policy "
            "flush",
        )
    if reqs is None:
        return self.flush_pending_mamba_prefill(pop_and_process)

    # The publication reads and frees what the pending forward writes: whatever it
    # and the next selection enqueue runs behind that forward. The host waits for nothing.
    self.schedule_stream.wait_stream(self.forward_stream)
    for req in reqs:
        # Processing finds nothing left to publish.
        self.tree_cache.checkpoint(req, up_to=req.extend_end)
    return False
