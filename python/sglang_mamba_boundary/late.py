"""The policy `late`: the result is processed early only where a decode is built from it.

Prefill after prefill keeps its overlap. What `loop.py` has the loop ask before the
selection is only noted here; `selection.py` has the selection ask again, at the one
place where a decode, verify or mixed batch is about to be built. As in `publish.py`,
the members become members of SGLang's `Scheduler`, over those of the policy flush.
"""

from .loop import ACT
from .refusal import tell_once

HOOK = "publish_before_decode"
NEED = "decode_needs_publication"
OBSTACLE = "late_obstacle"

MEMBERS = (
    "published_early",
    "noted_publication",
    "selection_bypassed",
    OBSTACLE,
    ACT,
    HOOK,
    NEED,
)

published_early = False
# The entry of the result queue that is to publish, and what pops and processes it.
noted_publication = None
# Whether a decode was once built without the question below.
selection_bypassed = False


def late_obstacle(self) -> str | None:
    """What in this server keeps a result from being processed within a selection."""
    if type(self.tree_cache).__name__ != "UnifiedRadixCache":
        return f"the cache {type(self.tree_cache).__name__}"
    if self.enable_unified_cache_external_linker:
        return "an external cache, which takes what is published"
    if self.enable_unified_memory:
        return "unified memory, which is compacted where nothing is selected"
    if self.selection_bypassed:
        return "a decode that was built without being asked for, as by another plugin"
    if self.is_hybrid_swa:
        return "sliding-window layers, whose slots are freed as the window moves"
    if not self.spec_algorithm.is_none():
        return "speculative decoding"
    return None


def publish_pending_mamba_prefill(self, pop_and_process) -> bool:
    """Note that the pending result is to publish; True if it was consumed for it."""
    if self.noted_publication is not None:
        # The last selection has not asked, as it need not for a prefill.
        last, self.noted_publication = self.last_batch, None
        if last and (last.forward_mode.is_decode() or last.decoding_reqs):
            self.selection_bypassed = True
    if not self.has_pending_mamba_publication():
        return False
    obstacle = self.late_obstacle()
    if obstacle is not None:
        tell_once(
            self,
            "late",
            obstacle,
            "each tracked prefill result is processed before the selection instead, "
            "as by the policy flush",
        )
        return self.flush_pending_mamba_prefill(pop_and_process)
    self.noted_publication = self.result_queue[0], pop_and_process
    return False


def publish_before_decode(self, batch) -> None:
    """Process the noted result if its rows are about to be captured by a decode.

    `batch` holds the rows to decode; the caller filters what finishes here.
    """
    if self.noted_publication is None:
        return
    noted, pop_and_process = self.noted_publication
    self.noted_publication = None
    # The loop has popped it since, behind a launch: this is no selection.
    if not self.result_queue or self.result_queue[0] is not noted:
        return
    pending, _ = noted
    reqs = self.publications_ahead(pending)
    if reqs is not None and not self.decode_needs_publication(pending, reqs):
        return
    self.published_early = self.flush_pending_mamba_prefill(pop_and_process)
    if any(req.finished() for req in batch.reqs):
        batch.batch_is_full = False


def decode_needs_publication(self, pending, reqs) -> bool:
    """Whether a decode of `reqs`, which the pending batch is to publish, has to wait."""
    return bool(reqs)
