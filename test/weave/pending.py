"""Stand-ins with one pending prefill, for the policies' members: all that they read is
in the state that lets them act."""

from types import SimpleNamespace

from sglang_mamba_boundary import engines, targets
from sglang_mamba_boundary.policies import POLICIES

EXTEND = SimpleNamespace(is_extend=lambda: True)
PAGE = 16


def scheduler_of(policy):
    """A class with the members of the policy."""
    members = POLICIES[policy].members(targets.LOOP, engines.NEWEST)
    return type("Scheduler", (_Scheduler,), members)


class _Scheduler:
    def __init__(self, *reqs, decoding_reqs=None, in_tree=0, **state):
        self.pending = SimpleNamespace(
            forward_mode=EXTEND,
            is_prefill_only=False,
            reqs=list(reqs),
            decoding_reqs=decoding_reqs,
        )
        self.result_queue = [(self.pending, None)]
        self.is_generation = True
        self.require_mlp_sync = self.enable_unified_memory = self.is_hybrid_swa = False
        self.enable_hierarchical_cache = self.enable_session_radix_cache = False
        self.enable_unified_cache_external_linker = False
        self._war_barrier_enabled = True
        self.spec_algorithm = SimpleNamespace(is_none=lambda: True)
        self.page_size = PAGE
        self.last_batch = None
        self.events = []
        self.tree_cache = UnifiedRadixCache(self.events, in_tree)
        self.req_to_token_pool = SimpleNamespace(
            enable_mamba_extra_buffer=True,
            enable_mamba_extra_buffer_lazy=False,
            mamba_ckpt_pool=None,
        )
        self.token_to_kv_pool_allocator = SimpleNamespace(
            flush_opportunistic=lambda: None
        )
        self.forward_stream = "forward stream"
        self.schedule_stream = SimpleNamespace(
            wait_stream=lambda stream: self.events.append(("wait for", stream))
        )
        vars(self).update(state)

    def pop(self):
        self.events.append("pop")

    def act(self):
        consumed = self.publish_pending_mamba_prefill(self.pop)
        return consumed, self.events


class UnifiedRadixCache:
    """A tree that holds the first `in_tree` tokens of whatever it is asked for."""

    disable = False

    def __init__(self, events=(), in_tree=0):
        self._events = events
        self.asked = []
        self.tree_core = SimpleNamespace(match_full_device_prefix=self._match)
        self._in_tree = in_tree

    def supports_mamba(self):
        return True

    def checkpoint(self, req, *, up_to):
        self._events.append((req.rid, up_to))

    def _match(self, key):
        self.asked.append(key)
        return min(self._in_tree, len(key)), "a node", self._in_tree


def request(
    rid="r",
    *,
    tokens=None,
    tracked=64,
    protected=0,
    finished=False,
    ends=False,
    **state,
):
    """A tracked prefill of 70 tokens that is to be published."""
    known = dict(
        rid=rid,
        kv=SimpleNamespace(
            mamba_last_track_seqlen=tracked, cache_protected_len=protected
        ),
        full_untruncated_fill_ids=tokens or list(range(70)),
        extra_key=None,
        cache_salt=None,
        extend_end=70,
        inflight_middle_chunks=0,
        skip_radix_cache_insert=False,
        is_retracted=False,
        session=None,
        beam_group=None,
        return_sampling_mask=False,
        return_routed_experts=False,
        return_indexer_topk=False,
        finished=lambda: finished,
        next_output_finishes_by_length=lambda: ends,
    )
    return SimpleNamespace(**known | state)


# What processing would not publish, and what needs its result before.
NOT_PUBLISHED = [
    {"tracked": None},
    {"inflight_middle_chunks": 1},
    {"skip_radix_cache_insert": True},
    {"is_retracted": True},
    {"finished": True},
]
NEEDS_RESULT = [
    {"session": "a session"},
    {"beam_group": "a group"},
    {"return_sampling_mask": True},
    {"return_routed_experts": True},
    {"return_indexer_topk": True},
]
OTHER_CACHE = {"tree_cache": type("Other", (UnifiedRadixCache,), {})()}


def decodes(scheduler, *reqs):
    """What is done where a decode of these rows is built; the rows' batch."""
    batch = SimpleNamespace(reqs=list(reqs), batch_is_full=True)
    scheduler.publish_before_decode(batch)
    return batch
