"""The policy late: when a decode waits for the pending result, when not, and where it is
refused, on stand-ins; and both places that late and rebind are woven into."""

import importlib
import logging
from types import SimpleNamespace

import pytest
from pending import (
    NEEDS_RESULT,
    NOT_PUBLISHED,
    OTHER_CACHE,
    decodes,
    request,
    scheduler_of,
)

from sglang_mamba_boundary import (
    Refused,
    Unwoven,
    Woven,
    late,
    live,
    loop,
    policies,
    rebind,
    refusal,
    selection,
    targets,
    unweave,
    weave,
)

OBSTACLES = {
    "cache Other": OTHER_CACHE,
    "external cache": {"enable_unified_cache_external_linker": True},
    "unified memory": {"enable_unified_memory": True},
    "sliding-window": {"is_hybrid_swa": True},
    "speculative": {"spec_algorithm": SimpleNamespace(is_none=lambda: False)},
}


def test_notes_at_the_boundary_and_pops_before_a_decode():
    scheduler = scheduler_of("late")(request())
    assert scheduler.act() == (False, [])
    batch = decodes(scheduler)
    assert scheduler.events == ["pop"] and scheduler.published_early is True
    assert batch.batch_is_full
    # Once only.
    decodes(scheduler)
    assert scheduler.events == ["pop"]


@pytest.mark.parametrize("state", NOT_PUBLISHED, ids=str)
def test_what_publishes_nothing_is_not_waited_for(state):
    scheduler = scheduler_of("late")(request(**state))
    assert scheduler.act() == (False, [])
    decodes(scheduler)
    assert scheduler.events == [] and not scheduler.published_early


def test_what_changes_within_the_selection_counts():
    """A request that was retracted since then is not decoded."""
    scheduler = scheduler_of("late")(request("a"))
    scheduler.act()
    scheduler.pending.reqs[0].is_retracted = True
    decodes(scheduler)
    assert scheduler.events == []


def test_what_ends_with_the_result_is_not_decoded():
    scheduler = scheduler_of("late")(request(ends=True))
    scheduler.act()
    decodes(scheduler)
    assert scheduler.events == []


@pytest.mark.parametrize("state", NEEDS_RESULT, ids=str)
@pytest.mark.parametrize("policy", ["late", "rebind"])
def test_one_request_that_needs_its_result_has_it_processed(policy, state):
    scheduler = scheduler_of(policy)(request("a"), request("b", **state))
    scheduler.act()
    decodes(scheduler)
    assert scheduler.events == ["pop"]


def test_a_note_lasts_one_turn():
    scheduler = scheduler_of("late")(request())
    scheduler.act()
    scheduler.result_queue = []
    assert scheduler.act() == (False, [])
    decodes(scheduler)
    assert scheduler.events == []


@pytest.mark.parametrize("queue", [[], [("another batch", None)]])
def test_only_the_noted_result_is_popped(queue):
    """Whoever calls the woven place outside of a selection gets nothing processed."""
    scheduler = scheduler_of("late")(request())
    scheduler.act()
    scheduler.result_queue = queue
    decodes(scheduler)
    assert scheduler.events == []


@pytest.mark.parametrize(
    "decodes_rows, decoding_reqs", [(True, None), (False, ["a row"])]
)
def test_a_selection_that_decodes_and_does_not_ask_is_met_by_flush(
    decodes_rows, decoding_reqs, caplog
):
    scheduler = scheduler_of("late")(request())
    scheduler.act()
    scheduler.last_batch = SimpleNamespace(
        forward_mode=SimpleNamespace(is_decode=lambda: decodes_rows),
        decoding_reqs=decoding_reqs,
    )
    with caplog.at_level(logging.WARNING, refusal.__name__):
        assert scheduler.act() == (True, ["pop"])
    (line,) = [record.getMessage() for record in caplog.records]
    assert "built without being asked for" in line


def test_a_selection_of_a_prefill_need_not_ask():
    scheduler = scheduler_of("late")(request())
    scheduler.act()
    scheduler.last_batch = SimpleNamespace(
        forward_mode=SimpleNamespace(is_decode=lambda: False), decoding_reqs=None
    )
    assert scheduler.act() == (False, [])


def test_rows_that_finish_there_leave_room():
    scheduler = scheduler_of("late")(request())
    scheduler.act()
    assert not decodes(scheduler, request(finished=True)).batch_is_full


@pytest.mark.parametrize("policy", ["late", "rebind"])
@pytest.mark.parametrize("named", OBSTACLES)
def test_refused_by_name_and_told_once(policy, named, caplog):
    scheduler = scheduler_of(policy)(request(), **OBSTACLES[named])
    with caplog.at_level(logging.WARNING, refusal.__name__):
        assert scheduler.act() == (True, ["pop"])
        assert scheduler.act() == (True, ["pop", "pop"])
    decodes(scheduler)
    assert scheduler.events == ["pop", "pop"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "policy late refused, found" in line and named in line


def scheduler_class():
    return importlib.import_module("sglang.srt.managers.scheduler").Scheduler


def added():
    own = (*late.MEMBERS, *rebind.MEMBERS, policies.FLUSH)
    return [name for name in own if hasattr(scheduler_class(), name)]


@pytest.mark.parametrize("policy", ["late", "rebind"])
def test_woven_in_two_places_and_taken_out_again(in_child, policy):
    def case():
        before = live._find_method(scheduler_class(), targets.SELECTION).__code__
        assert isinstance(weave(policy), Woven)
        method = live._find_method(scheduler_class(), targets.SELECTION)
        assert late.HOOK in method.__code__.co_names
        event_loop = live._find_method(scheduler_class(), targets.LOOP)
        assert loop.FLAG in event_loop.__code__.co_names
        assert loop.FLAG not in event_loop.__code__.co_varnames
        assert isinstance(live.in_place(scheduler_class()), Woven)
        assert weave(policy).already
        # One place alone is not the fix.
        woven, method.__code__ = method.__code__, before
        assert isinstance(live.in_place(scheduler_class()), Refused)
        method.__code__ = woven
        assert unweave() == Unwoven()
        assert method.__code__ is before
        return added()

    assert in_child(case) == []


def test_a_selection_of_another_shape_is_refused_and_nothing_changed(in_child):
    def case():
        def other(self):
            return []

        scheduler_class()._reqs_finishing_inflight = other
        return weave("late"), added()

    outcome, members = in_child(case)
    assert isinstance(outcome, Refused) and members == []
    assert "_reqs_finishing_inflight" in str(outcome)


def replaced(name, kind="REPLACE"):
    """By another plugin, whose hooks are applied after all have loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hook = {"REPLACE": lambda self, *_, **__: [], "BEFORE": lambda *_, **__: None}[kind]
    target = name if "." in name else f"scheduler.Scheduler.{name}"
    HookRegistry.register(f"sglang.srt.managers.{target}", hook, HookType[kind])
    HookRegistry.apply_hooks()


REACHED = [*selection.METHODS, *dict.fromkeys(a for a, _ in selection.REACHED_BY)]


@pytest.mark.parametrize("name", REACHED)
@pytest.mark.parametrize("kind", ["REPLACE", "BEFORE"])
def test_what_leads_to_the_second_place_has_to_be_the_engines_own(in_child, name, kind):
    def case():
        weave("late")
        replaced(name, kind)
        found = live.in_place(scheduler_class())
        unweave()
        return found, weave("late")

    kinds = [type(outcome) for outcome in in_child(case)]
    assert kinds == ([Refused] * 2 if kind == "REPLACE" else [Woven] * 2)


@pytest.mark.parametrize("policy", ["flush", "late"])
def test_penalties_that_another_plugin_counts_are_no_fix(in_child, policy):
    def case():
        weave(policy)
        replaced("schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens")
        return live.in_place(scheduler_class())

    assert isinstance(in_child(case), Refused)


def test_a_subclass_that_overrides_the_second_place_is_refused(in_child):
    def case():
        weave("rebind")
        own = {"_reqs_finishing_inflight": lambda self, batch: []}
        return live.in_place(type("Mine", (scheduler_class(),), own))

    assert isinstance(in_child(case), Refused)


def test_a_selection_that_does_not_lead_there_is_refused(in_child):
    def case():
        selecting = scheduler_class().update_running_batch
        selecting.__code__ = (lambda self, batch: None).__code__
        return weave("late"), weave("publish")

    late_outcome, publish_outcome = in_child(case)
    assert "a call of _reqs_finishing_inflight" in str(late_outcome)
    assert isinstance(publish_outcome, Woven)


def test_the_status_names_the_policy_that_is_woven(in_child):
    def case():
        weave("publish")
        return live.policy_in_place(), unweave(), live.policy_in_place()

    assert in_child(case) == ("publish", Unwoven(), None)


def test_a_selection_that_calls_the_policy_already_is_left(in_child):
    def case():
        carried = selection.weave_source(TEXT).source
        assert selection.carries_act(carried)
        return selection.carries_act(TEXT), selection.carries_act("no method")

    assert in_child(case) == (False, False)


TEXT = '''\
    def _reqs_finishing_inflight(self, batch):
        """One line."""
        if not self.result_queue:
            return []
        return self.rest(batch)
'''


def test_the_text_gets_one_call_before_its_first_question():
    woven = selection.weave_source(TEXT)
    lines = woven.source.split("\n")
    assert lines[3].strip() == "self.publish_before_decode(batch)"
    kept = [line for line in lines if "Publish" not in line and late.HOOK not in line]
    kept = [line for line in kept if line]
    assert kept == TEXT.rstrip().split("\n")
    assert woven.original_line[lines.index("        if not self.result_queue:")] == 3


@pytest.mark.parametrize(
    "before, after, told",
    [
        ("(self, batch)", "(self, batch, more)", "batch, more"),
        ("if not self.result_queue", "if not self.other", "self.other"),
        ("        if not", "        pass; if not", "function"),
        ("            return []\n", "            return []\r\n", "elsewhere"),
        ("_reqs_finishing_inflight", "_other", "_other"),
        ("        if not", "        x = 1\n        if not", "x = 1"),
    ],
)
def test_a_text_of_another_shape_is_refused(before, after, told):
    assert before in TEXT
    refused = selection.weave_source(TEXT.replace(before, after))
    assert isinstance(refused, Refused) and told in str(refused)
