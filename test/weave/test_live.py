"""The live weave on the real engine, each case in a process of its own."""

import importlib
import inspect
import sys
import traceback
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from unittest.mock import patch

import pytest
from registered import first_decode_captures

from sglang_mamba_boundary import (
    AlreadyFixed,
    Refused,
    Unwoven,
    Woven,
    fix,
    in_place,
    live,
    loop,
    policies,
    unweave,
    weave,
)

SCHEDULER = "sglang.srt.managers.scheduler"
LOOP = f"{SCHEDULER}.Scheduler.event_loop_overlap"


def scheduler_class():
    return importlib.import_module(SCHEDULER).Scheduler


def hook(target, function, kind):
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(target, function, HookType[kind])
    HookRegistry.apply_hooks()


def exchange_penalty(**changes):
    flush = policies.POLICIES["flush"]
    event_loop, penalty = flush.targets
    changed = replace(flush, targets=(event_loop, replace(penalty, **changes)))
    policies.POLICIES["flush"] = changed


def refusal(outcome) -> Refused:
    assert isinstance(outcome, Refused), outcome
    assert outcome.sought and outcome.found and outcome.state and outcome.remedy
    return outcome


def assert_stock():
    """Nothing half-done: no member, no changed code, and the fault is there."""
    assert not hasattr(scheduler_class(), "publish_pending_mamba_prefill")
    assert "published_early" not in live_loop().__code__.co_varnames
    assert first_decode_captures() == "private"


@contextmanager
def source_on_disk(text):
    """The engine's file holds `text` for the loop; an exception: it cannot be read."""
    real, loop_function = inspect.getsource, live_loop()

    def getsource(function):
        if function is not loop_function:
            return real(function)
        if isinstance(text, Exception):
            raise text
        return text

    with patch.object(inspect, "getsource", getsource):
        yield


def loop_source() -> str:
    return inspect.getsource(live_loop())


def run_text(text):
    """The engine as if its file held `text` when it was imported."""
    lines = range(1, text.count("\n") + 2)
    live_loop().__code__ = live._compile(text, lines, live_loop())


def installed(version):
    effect = {
        "side_effect" if isinstance(version, Exception) else "return_value": version
    }
    return patch.object(live.metadata, "version", **effect)


def live_loop():
    return inspect.unwrap(scheduler_class().__dict__["event_loop_overlap"])


# ---- what is woven


def weave_and_undo():
    scheduler = scheduler_class()
    outer, inner = scheduler.__dict__["event_loop_overlap"], live_loop()
    original = inner.__code__
    assert first_decode_captures() == "private"

    assert isinstance(weave(), Woven) and weave().already
    assert isinstance(in_place(scheduler), Woven)
    # The same function objects, so whoever holds one runs the woven loop.
    assert scheduler.__dict__["event_loop_overlap"] is outer
    assert live_loop() is inner
    for identity in ("co_name", "co_qualname", "co_filename", "co_firstlineno"):
        assert getattr(inner.__code__, identity) == getattr(original, identity)
    assert first_decode_captures() == "canonical"

    assert unweave() == Unwoven() and unweave() == Unwoven(already=True)
    assert inner.__code__ is original
    assert_stock()
    assert isinstance(weave(), Woven) and not live._current.outcome.already
    assert first_decode_captures() == "canonical"


def penalties_are_woven_with_the_loop():
    batch = importlib.import_module("sglang.srt.managers.schedule_batch").ScheduleBatch
    count = batch.cumulate_penalty_output_tokens
    original = count.__code__
    weave()
    assert batch.penalty_token is fix.penalty_token
    assert "penalty_token" in names_of(count.__code__)
    unweave()
    assert count.__code__ is original and not hasattr(batch, "penalty_token")


def loop_is_woven_where_penalties_count_by_position_already():
    exchange_penalty(carries_act=lambda source: True)
    assert isinstance(weave(), Woven)
    assert [e.function for e in live._current.exchanges] == [live_loop()]
    assert first_decode_captures() == "canonical"


def names_of(code):
    nested = [c for c in code.co_consts if hasattr(c, "co_names")]
    return {*code.co_names}.union(*map(names_of, nested))


def pr_31687_results_are_processed_behind_the_last_launch():
    """The fence of each launch stands before whatever rewrites rows after it."""
    rig = importlib.import_module("registered").load()

    class Fenced(rig._ScriptedScheduler):
        def _apply_war_barrier(self):
            self.events.append("fence")

    weave()
    req = rig._Req("r")
    turns = [rig._prefill("p", req), rig._decode("d1", req), rig._decode("d2", req)]
    assert Fenced([*turns, None]).run() == [
        *("select p", "launch p", "fence"),
        *("process p", "select d1", "launch d1", "fence"),
        *("select d2", "launch d2", "fence", "process d1"),
        *("select None", "process d2"),
    ]


def tracebacks_show_the_engine_text():
    rig = importlib.import_module("registered").load()
    weave()
    req = rig._Req("r")
    failing = rig._prefill("p", req, error=ZeroDivisionError())
    try:
        rig._ScriptedScheduler([failing, rig._decode("d", req)]).run()
    except ZeroDivisionError as error:
        frames = traceback.extract_tb(error.__traceback__)
    shown = [f.line for f in frames if f.name == "event_loop_overlap"]
    # The act stands on no line of the engine's file: the selection below it is shown.
    assert shown == ["plan = self.get_next_batch_to_run("]
    assert [f.line for f in frames if f.name == "publish_pending_mamba_prefill"] == [
        "pop_and_process()"
    ]


def woven_under_hooks_applied_before():
    calls = []

    def around(original, *args, **kwargs):
        calls.append(original.__name__)
        return original(*args, **kwargs)

    hook(LOOP, around, "AROUND")
    selection = f"{SCHEDULER}.Scheduler.get_next_batch_to_run"
    hook(selection, around, "AROUND")
    assert isinstance(weave(), Woven)
    assert isinstance(in_place(scheduler_class()), Woven)
    assert first_decode_captures() == "canonical"
    assert calls == ["event_loop_overlap"]
    assert scheduler_class().get_next_batch_to_run.__wrapped__
    assert unweave() == Unwoven()
    assert first_decode_captures() == "private"


def woven_under_hooks_applied_after():
    weave()
    hook(LOOP, lambda original, *a, **k: original(*a, **k), "AROUND")
    assert isinstance(in_place(scheduler_class()), Woven)
    assert weave().already
    assert first_decode_captures() == "canonical"


def woven_through_a_class_replacement_that_inherits():
    weave()
    replacement = type("Replacement", (scheduler_class(),), {})
    hook(f"{SCHEDULER}.Scheduler", replacement, "REPLACE")
    assert scheduler_class() is replacement
    assert isinstance(in_place(replacement), Woven)
    assert first_decode_captures() == "canonical"


def already_fixed_upstream():
    patched = loop.weave_source(loop_source()).source
    run_text(patched)
    for member in fix.MEMBERS:
        setattr(scheduler_class(), member, getattr(fix, member))
    with source_on_disk(patched):
        assert isinstance(weave(), AlreadyFixed)
        assert isinstance(in_place(scheduler_class()), AlreadyFixed)
    assert unweave() == Unwoven(already=True)
    assert first_decode_captures() == "canonical"


WOVEN = [
    weave_and_undo,
    penalties_are_woven_with_the_loop,
    loop_is_woven_where_penalties_count_by_position_already,
    pr_31687_results_are_processed_behind_the_last_launch,
    tracebacks_show_the_engine_text,
    woven_under_hooks_applied_before,
    woven_under_hooks_applied_after,
    woven_through_a_class_replacement_that_inherits,
    already_fixed_upstream,
]


@pytest.mark.parametrize("case", WOVEN, ids=lambda case: case.__name__)
def test_woven(in_child, case):
    in_child(case)


# ---- what is refused


def loop_replaced_before():
    hook(LOOP, lambda scheduler: "theirs", "REPLACE")
    found = refusal(weave())
    assert "replaced by" in found.found and __name__ in found.found
    assert "the replacement runs" in found.state
    assert scheduler_class().event_loop_overlap(None) == "theirs"


def loop_replaced_after():
    weave()
    hook(LOOP, lambda scheduler: "theirs", "REPLACE")
    assert "replaced by" in refusal(in_place(scheduler_class())).found
    assert "replaced by" in refusal(weave()).found
    assert unweave() == Unwoven()
    assert scheduler_class().event_loop_overlap(None) == "theirs"


def loop_overridden_by_a_class_replacement():
    weave()
    replacement = type(
        "Replacement", (scheduler_class(),), {"event_loop_overlap": lambda self: "own"}
    )
    hook(f"{SCHEDULER}.Scheduler", replacement, "REPLACE")
    assert "in its place" in refusal(in_place(scheduler_class())).found


def loop_assigned_by_hand():
    scheduler_class().event_loop_overlap = print
    assert "print" in refusal(weave()).found


def loop_gone():
    del scheduler_class().event_loop_overlap
    assert "None" in refusal(weave()).found


def wrapper_with_an_empty_cell():
    def wrapper(scheduler):
        return missing(scheduler)  # noqa: F821

    if False:
        missing = None
    wrapper.__wrapped__ = live_loop()
    scheduler_class().event_loop_overlap = wrapper
    assert "wrapper" in refusal(weave()).found


def test_what_a_function_holds_is_looked_at_once():
    def itself():
        return itself

    assert live._held_by(itself) == [itself]


def code_exchanged_since():
    weave()
    theirs = (lambda self: "theirs").__code__
    live_loop().__code__ = theirs
    assert "other code" in refusal(unweave()).state
    assert live_loop().__code__ is theirs
    assert "that is not what runs" in refusal(weave()).found


def half_of_it_exchanged_since():
    """The loop still calls the fix, and yet the fix is not in place."""
    weave()
    function = live._current.exchanges[1].function
    function.__code__ = (lambda self: "theirs").__code__
    assert "other code" in refusal(in_place(scheduler_class())).state


def source_unreadable():
    with source_on_disk(OSError("could not get source code")):
        assert "could not get source" in refusal(weave()).found


def source_changed_on_disk():
    text = loop_source().replace("_sched_idled = True", "_sched_idled = False")
    with source_on_disk(text):
        assert "not what runs" in refusal(weave()).found


def source_half_written():
    text = loop_source()
    with source_on_disk(text[: len(text) // 2].rstrip("\n") + " ("):
        assert "not what runs" in refusal(weave()).found


def loop_of_an_unknown_shape():
    text = loop_source().replace("self._engine_paused", "self._engine_asleep")
    run_text(text)
    with source_on_disk(text):
        assert "paused-engine" in refusal(weave()).sought


def penalties_of_an_unknown_shape():
    exchange_penalty(weave_source=lambda source: Refused(*"abc"))
    assert refusal(weave()).sought == "a"


def member_name_taken():
    scheduler_class().has_pending_mamba_publication = None
    assert "has_pending" in refusal(weave()).found
    del scheduler_class().has_pending_mamba_publication


def engine_too_old():
    with installed("0.5.10.post1"):
        assert "0.5.10.post1" in refusal(weave()).found


def engine_of_no_version():
    with installed("main"):
        assert "sglang main" in refusal(weave()).found


def engine_not_installed():
    with installed(metadata.PackageNotFoundError("sglang")):
        assert "no such distribution" in refusal(weave()).found


def engine_that_does_not_import():
    with patch.dict(sys.modules, {SCHEDULER: None}):
        assert "ModuleNotFoundError" in refusal(weave()).found


def engine_without_a_scheduler():
    with patch.object(importlib.import_module(SCHEDULER), "Scheduler", None):
        assert "None" in refusal(weave()).found


def not_woven_at_all():
    assert "a loop without it" in refusal(in_place(scheduler_class())).found


STOCK_AFTERWARDS = [
    source_unreadable,
    source_changed_on_disk,
    source_half_written,
    penalties_of_an_unknown_shape,
    member_name_taken,
    engine_too_old,
    engine_of_no_version,
    engine_not_installed,
    engine_that_does_not_import,
    engine_without_a_scheduler,
    not_woven_at_all,
]
OTHERS = [
    loop_replaced_before,
    loop_replaced_after,
    loop_overridden_by_a_class_replacement,
    loop_assigned_by_hand,
    loop_gone,
    wrapper_with_an_empty_cell,
    code_exchanged_since,
    half_of_it_exchanged_since,
    loop_of_an_unknown_shape,
]


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.__name__)
def test_refused(in_child, case):
    in_child(case)


@pytest.mark.parametrize("case", STOCK_AFTERWARDS, ids=lambda case: case.__name__)
def test_refused_and_unchanged(in_child, case):
    def child():
        case()
        assert_stock()

    in_child(child)
