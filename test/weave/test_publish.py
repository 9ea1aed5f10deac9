"""The policy publish: what it publishes ahead, what it leaves to the policy flush, and
where it is refused; on stand-ins, and woven into the real engine."""

import importlib
import itertools
import logging
from types import SimpleNamespace

import pytest

from sglang_mamba_boundary import (
    Refused,
    Unwoven,
    Woven,
    fix,
    live,
    publish,
    unweave,
    weave,
)

EXTEND = SimpleNamespace(is_extend=lambda: True)


class Scheduler:
    """The members over what they read, all of it in the state that lets them act."""

    opportunistic_flush_failed = fix.opportunistic_flush_failed
    publish_ahead_refused = publish.publish_ahead_refused
    has_pending_mamba_publication = fix.has_pending_mamba_publication
    publish_ahead_obstacle = publish.publish_ahead_obstacle
    publications_ahead = publish.publications_ahead
    publish_pending_mamba_prefill = publish.publish_pending_mamba_prefill
    flush_pending_mamba_prefill = fix.publish_pending_mamba_prefill

    def __init__(self, *reqs, decoding_reqs=None, **state):
        batch = SimpleNamespace(
            forward_mode=EXTEND,
            is_prefill_only=False,
            reqs=list(reqs),
            decoding_reqs=decoding_reqs,
        )
        self.result_queue = [(batch, None)]
        self.is_generation = True
        self.require_mlp_sync = self.enable_unified_memory = self.is_hybrid_swa = False
        self.enable_hierarchical_cache = self.enable_session_radix_cache = False
        self.enable_unified_cache_external_linker = False
        self._war_barrier_enabled = True
        self.spec_algorithm = SimpleNamespace(is_none=lambda: True)
        self.events = []
        self.tree_cache = UnifiedRadixCache(self.events)
        self.req_to_token_pool = SimpleNamespace(
            enable_mamba_extra_buffer=True, mamba_ckpt_pool=None
        )
        self.forward_stream = "forward stream"
        self.schedule_stream = SimpleNamespace(
            wait_stream=lambda stream: self.events.append(("wait for", stream))
        )
        vars(self).update(state)

    def act(self):
        consumed = self.publish_pending_mamba_prefill(lambda: self.events.append("pop"))
        return consumed, self.events


class UnifiedRadixCache:
    disable = False

    def __init__(self, events):
        self._events = events

    def supports_mamba(self):
        return True

    def checkpoint(self, req, *, up_to):
        self._events.append((req.rid, up_to))


def request(rid="r", *, tracked=64, finished=False, ends=False, **state):
    """A tracked prefill of 70 tokens that is to be published ahead."""
    known = dict(
        rid=rid,
        kv=SimpleNamespace(mamba_last_track_seqlen=tracked),
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


WAIT = ("wait for", "forward stream")
NOT_PUBLISHED = [
    {"tracked": None},
    {"inflight_middle_chunks": 1},
    {"skip_radix_cache_insert": True},
    {"is_retracted": True},
    {"finished": True},
]
LEFT_TO_FLUSH = [
    {"session": "a session"},
    {"beam_group": "a group"},
    {"return_sampling_mask": True},
    {"return_routed_experts": True},
    {"return_indexer_topk": True},
]
OBSTACLES = {
    "cache Other": {"tree_cache": type("Other", (UnifiedRadixCache,), {})([])},
    "tier below": {"enable_hierarchical_cache": True},
    "tier below the": {"enable_unified_cache_external_linker": True},
    "unified memory": {"enable_unified_memory": True},
    "int8": {
        "req_to_token_pool": SimpleNamespace(
            enable_mamba_extra_buffer=True, mamba_ckpt_pool="a pool"
        )
    },
    "session radix": {"enable_session_radix_cache": True},
    "sliding-window": {"is_hybrid_swa": True},
    "speculative": {"spec_algorithm": SimpleNamespace(is_none=lambda: False)},
    "no barrier": {"_war_barrier_enabled": False},
}


def test_waits_on_the_stream_then_publishes_and_leaves_the_result():
    scheduler = Scheduler(request("a"), request("b", extend_end=90))
    assert scheduler.act() == (False, [WAIT, ("a", 70), ("b", 90)])


@pytest.mark.parametrize("state", NOT_PUBLISHED, ids=str)
def test_what_processing_would_not_publish_is_left_out(state):
    scheduler = Scheduler(request("a", **state), request("b"))
    assert scheduler.act() == (False, [WAIT, ("b", 70)])
    assert Scheduler(request("a", **state)).act() == (False, [])


def test_decode_rows_are_left_out():
    decoding = request("d")
    scheduler = Scheduler(request("a"), decoding, decoding_reqs=[decoding])
    assert scheduler.act() == (False, [WAIT, ("a", 70)])


def test_what_ends_with_the_result_is_left_to_it():
    assert Scheduler(request("a", ends=True), request("b")).act()[1][1:] == [("b", 70)]


@pytest.mark.parametrize("state", LEFT_TO_FLUSH, ids=str)
def test_one_request_that_needs_its_result_has_it_processed_early(state):
    scheduler = Scheduler(request("a"), request("b", **state))
    assert scheduler.act() == (True, ["pop"])
    # Unless that request is not to be published at all.
    scheduler = Scheduler(request("a"), request("b", tracked=None, **state))
    assert scheduler.act() == (False, [WAIT, ("a", 70)])


@pytest.mark.parametrize("named", OBSTACLES)
def test_refused_by_name_and_told_once(named, caplog):
    scheduler = Scheduler(request(), **OBSTACLES[named])
    scheduler.token_to_kv_pool_allocator = SimpleNamespace(
        flush_opportunistic=lambda: None
    )
    with caplog.at_level(logging.WARNING, publish.__name__):
        assert scheduler.act() == (True, ["pop"])
        assert scheduler.act() == (True, ["pop", "pop"])
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"policy publish refused, found" in line and named in line


def test_asks_as_the_policy_flush_does():
    """Whatever the requests are, both publish something or neither does."""
    kinds = [{}, *NOT_PUBLISHED]
    for one, other in itertools.product(kinds, kinds):
        scheduler = Scheduler(request("a", **one), request("b", **other))
        pending = scheduler.has_pending_mamba_publication()
        batch, _ = scheduler.result_queue[0]
        assert pending == bool(scheduler.publications_ahead(batch))


def scheduler_class():
    return importlib.import_module("sglang.srt.managers.scheduler").Scheduler


def members_of_both():
    names = [*publish.MEMBERS, publish.FLUSH, *fix.MEMBERS]
    return [name for name in names if hasattr(scheduler_class(), name)]


def test_woven_and_taken_out_again(in_child):
    def case():
        assert isinstance(weave("publish"), Woven)
        found = scheduler_class()
        assert found.publish_pending_mamba_prefill is (
            publish.publish_pending_mamba_prefill
        )
        assert found.flush_pending_mamba_prefill is fix.publish_pending_mamba_prefill
        again = weave("publish")
        assert isinstance(again, Woven) and again.already
        assert unweave() == Unwoven()
        return members_of_both()

    assert in_child(case) == []


def test_the_woven_loop_is_the_same_for_both_policies(in_child):
    def code(policy):
        assert isinstance(weave(policy), Woven)
        loop = live._find_method(scheduler_class(), live.LOOP)
        return loop.__code__.co_code, loop.__code__.co_names

    assert in_child(code, "flush") == in_child(code, "publish")


def test_another_policy_than_the_woven_one_is_refused(in_child):
    def case():
        weave("flush")
        return weave("publish"), hasattr(scheduler_class(), publish.FLUSH)

    outcome, published = in_child(case)
    assert isinstance(outcome, Refused) and not published
    for part in ("policy publish", "policy flush stays", "unweave"):
        assert part in str(outcome)


def test_an_older_release_is_refused_by_name(in_child):
    def case():
        live._installed_version = lambda: "0.5.22"
        return weave("publish"), members_of_both()

    outcome, members = in_child(case)
    assert isinstance(outcome, Refused) and members == []
    assert "sglang 0.5.23 or newer for the policy publish" in outcome.sought
    assert outcome.found == "sglang 0.5.22"


def registered_outcomes():
    """The registered tests over the woven policy, and how often it acted in them.

    Their schedulers lack what only this policy reads."""
    from registered import red_green

    assert isinstance(weave("publish"), Woven)
    found, acted = scheduler_class(), []
    for name in (
        "enable_hierarchical_cache",
        "enable_unified_cache_external_linker",
        "enable_session_radix_cache",
        "is_hybrid_swa",
    ):
        setattr(found, name, False)
    found._war_barrier_enabled = True
    found.spec_algorithm = SimpleNamespace(is_none=lambda: True)
    found.forward_stream = "forward stream"
    found.schedule_stream = SimpleNamespace(wait_stream=acted.append)
    return red_green().run_tests("as it is"), len(acted)


def test_registered_tests_hold_where_the_tree_is_real(in_child):
    """Where it is not, the policy refuses, and its line is one more than they count."""
    outcomes, acted = in_child(registered_outcomes, timeout_s=300.0)
    (other,) = [test for test, outcome in outcomes.items() if outcome != "pass"]
    assert other.endswith("test_failing_flush_is_logged_once_and_harmless")
    assert len(outcomes) > 40 and acted > 40
