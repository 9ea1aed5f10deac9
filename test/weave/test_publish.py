"""The policy publish: what it publishes ahead, what it leaves to the policy flush, and
where it is refused; on stand-ins, and woven into the real engine."""

import importlib
import itertools
import logging
from types import SimpleNamespace

import pytest
from pending import NEEDS_RESULT, NOT_PUBLISHED, OTHER_CACHE, request, scheduler_of

from sglang_mamba_boundary import (
    Refused,
    Unwoven,
    Woven,
    fix,
    live,
    policies,
    publish,
    refusal,
    unweave,
    weave,
)

Scheduler = scheduler_of("publish")

WAIT = ("wait for", "forward stream")
OBSTACLES = {
    "cache Other": OTHER_CACHE,
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


@pytest.mark.parametrize("state", NEEDS_RESULT, ids=str)
def test_one_request_that_needs_its_result_has_it_processed_early(state):
    scheduler = Scheduler(request("a"), request("b", **state))
    assert scheduler.act() == (True, ["pop"])
    # Unless that request is not to be published at all.
    scheduler = Scheduler(request("a"), request("b", tracked=None, **state))
    assert scheduler.act() == (False, [WAIT, ("a", 70)])


@pytest.mark.parametrize("named", OBSTACLES)
def test_refused_by_name_and_told_once(named, caplog):
    scheduler = Scheduler(request(), **OBSTACLES[named])
    with caplog.at_level(logging.WARNING, refusal.__name__):
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
    names = [*publish.MEMBERS, policies.FLUSH, *fix.MEMBERS]
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
        return weave("publish"), hasattr(scheduler_class(), policies.FLUSH)

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
