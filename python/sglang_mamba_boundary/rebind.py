"""The policy `rebind`: as `late`, and only where the publication would move a row.

A publication moves a row where the tree holds more of its prompt than the request
knows of. That is asked of the tree without changing it, at the place where `late`
would wait: whatever the selection inserts or loads is in the tree by then. Wrong
alarms cost a wait; a missed one would be the fault.
"""

from .late import NEED
from .refusal import tell_once

OBSTACLE = "rebind_obstacle"
MEMBERS = (OBSTACLE, NEED, "publication_rebinds")


def rebind_obstacle(self) -> str | None:
    """What in this server makes it unknown whether a publication moves a row."""
    if self.req_to_token_pool.enable_mamba_extra_buffer_lazy:
        return "lazy buffers, where a decode before the publication may lose its state"
    if self.enable_session_radix_cache:
        return "the session radix cache, which inserts what finishes"
    return None


def decode_needs_publication(self, pending, reqs) -> bool:
    """Whether a decode of `reqs`, which the pending batch is to publish, has to wait."""
    if not reqs:
        return False
    obstacle = self.rebind_obstacle()
    if obstacle is not None:
        tell_once(
            self,
            "rebind",
            obstacle,
            "each decode waits for the result that it follows, as by the policy late",
        )
        return True
    return any(self.publication_rebinds(pending.reqs, req) for req in reqs)


def publication_rebinds(self, queued, req) -> bool:
    """Whether `req`'s publication, or one queued before it, makes the tree's slots its.

    `queued` are the requests of its batch, in the order of their processing.
    """
    from sglang.srt.mem_cache.radix_cache import RadixKey

    tokens, known = req.full_untruncated_fill_ids, req.kv.cache_protected_len
    key = RadixKey(
        tokens,
        req.extra_key,
        limit=req.kv.mamba_last_track_seqlen,
        cache_salt=req.cache_salt,
    )
    if self.tree_cache.tree_core.match_full_device_prefix(key)[0] > known:
        return True

    # The next page is the least that another publication can bring.
    page_end = (known // self.page_size + 1) * self.page_size
    for other in queued[: queued.index(req)]:
        theirs = other.full_untruncated_fill_ids
        if (
            len(theirs) >= page_end
            and theirs[known:page_end] == tokens[known:page_end]
            and theirs[:known] == tokens[:known]
            and other.extra_key == req.extra_key
            and other.cache_salt == req.cache_salt
        ):
            return True
    return False
