"""The fix: what `Scheduler.event_loop_overlap` asks and does before it selects a batch.

The members named here become members of SGLang's `Scheduler` and `ScheduleBatch`
as they stand: the live weave sets them on the classes, the exported patch writes
the same text into their files. So they use SGLang's own words, read only what
those classes have, and need no import beyond the scheduler's `logger`.
"""

import logging

logger = logging.getLogger(__name__)

# Of Scheduler and of ScheduleBatch, in the order in which they stand in the class.
MEMBERS = (
    "opportunistic_flush_failed",
    "has_pending_mamba_publication",
    "publish_pending_mamba_prefill",
)
BATCH_MEMBERS = ("penalty_token",)

opportunistic_flush_failed = False


def has_pending_mamba_publication(self) -> bool:
    """Whether the pending result is a prefill whose cache publication is to come.

    That publication may rebind rows of req_to_token, which a decode or verify
    batch selected before it would have captured with their old slots.
    """
    if not self.result_queue:
        return False
    batch, _ = self.result_queue[0]
    if (
        not batch.forward_mode.is_extend()
        or batch.is_prefill_only
        or not self.is_generation
        # Under MLP sync all ranks take the same overlap decision: leave it alone.
        or self.require_mlp_sync
        or not self.tree_cache.supports_mamba()
        or self.tree_cache.disable
        or not self.req_to_token_pool.enable_mamba_extra_buffer
    ):
        return False

    # Decode rows of a mixed batch are not published with its prefill rows.
    decoding_reqs = ()
    if batch.decoding_reqs:
        decoding_reqs = {id(req) for req in batch.decoding_reqs}
    for req in batch.reqs:
        if (
            req.kv.mamba_last_track_seqlen is not None
            # A middle chunk is published by its stash, before the next chunk is built.
            and req.inflight_middle_chunks <= 0
            and not req.skip_radix_cache_insert
            and not req.is_retracted
            and not req.finished()
            and id(req) not in decoding_reqs
        ):
            return True
    return False


def publish_pending_mamba_prefill(self, pop_and_process) -> bool:
    """Process the pending result now if it is to publish; True if it was consumed."""
    if not self.has_pending_mamba_publication():
        return False
    pop_and_process()
    if self.enable_unified_memory:
        # The forward is drained and the next is not launched, so compaction is
        # free. Best effort: a failure costs capacity, never a result.
        try:
            self.token_to_kv_pool_allocator.flush_opportunistic()
        except Exception:
            if not self.opportunistic_flush_failed:
                self.opportunistic_flush_failed = True
                logger.warning(
                    "Opportunistic flush failed after an early prefill result; "
                    "further failures are not logged.",
                    exc_info=True,
                )
    return True


def penalty_token(self, req) -> int:
    """The output token, or last prompt token, that this decode step's penalties count.

    Under overlap the newest result is usually one step behind, but not after an
    early result or a prefill in between. The position counts each token once.
    """
    position = len(req.output_ids) - 1
    if self.enable_overlap and (
        # Verify steps commit later: only their first is at a known position.
        self.spec_algorithm.is_none() or req.decode_batch_idx == 0
    ):
        position = req.kv.kv_committed_len - 1 - len(req.origin_input_ids)
    if position >= 0:
        return req.output_ids[position]
    return req.origin_input_ids[position]
