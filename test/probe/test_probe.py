"""The verdict about loops of every kind, from both ways into the probe."""

import copy
import importlib
import os
import sys
from types import SimpleNamespace

import pytest
import scheduler_text
from mutants import MUTANTS, STOCK, WOVEN

from sglang_mamba_boundary import Refused, edits, engines, loop, weave
from sglang_mamba_boundary.batches import Mode
from sglang_mamba_boundary.probe import (
    Broken,
    CannotTell,
    Stable,
    Stale,
    probe_live,
    probe_source,
)
from sglang_mamba_boundary.rig import MAX_TICKS, Driven, Run
from sglang_mamba_boundary.source_class import CONSECUTIVE
from sglang_mamba_boundary.unknown import Journal, Known, Stop, Unknown


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_verdict_on_a_mutated_loop(mutant):
    verdict = probe_source(mutant.text)
    assert type(verdict) is mutant.verdict, verdict
    assert mutant.says in str(verdict)
    assert getattr(verdict, "loses_overlap", False) == mutant.loses_overlap


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_weave_takes_no_loop_that_stays_stale(mutant):
    woven = loop.weave_source(mutant.loop)
    if mutant.woven is None:
        assert isinstance(woven, Refused)
        return
    assert isinstance(woven, edits.WovenText), woven
    text = scheduler_text.with_fix(mutant.text, woven, engines.NEWEST)
    assert type(probe_source(text)) is mutant.woven


def test_the_evidence_names_what_was_captured():
    assert "a decode batch after a tracked prefill captured private slots (d1)" in (
        probe_source(STOCK).evidence
    )
    assert "a decode batch after a tracked prefill captured canonical slots" in (
        probe_source(WOVEN).evidence
    )
    assert probe_source(WOVEN).overlap_lost == ()


def test_overlap_that_is_given_up_in_part_is_named():
    verdict = probe_source(next(m.text for m in MUTANTS if m.name == "fix inline"))
    assert "MLP sync" in verdict.overlap_lost and "a decode" not in verdict.overlap_lost
    assert f"given up for {verdict.overlap_lost[0]}" in str(verdict)


def test_what_decides_is_named_and_nothing_else():
    mutant = next(m for m in MUTANTS if m.name == "unknown global in its decision")
    assert probe_source(mutant.text).found.endswith(": it depends on PUBLISH_EARLY")


# ---- texts that are no engine's, each with a loop of our own

OWN = """
from collections import deque
{head}

class Scheduler:
    {member}

    def event_loop_overlap(self):
        while True:
            self.process_input_requests(self.recv_requests())
            if self._engine_paused:
                continue
            {early}
            batch = self.get_next_batch_to_run()
            if batch:
                self.result_queue.append((batch.copy(), self.run_batch(batch)))
            if self.last_batch and self.result_queue:
                self.process_batch_result(*self.result_queue.popleft())
            self.last_batch = batch
"""


def own(early="pass", head="", member="pass"):
    return probe_source(OWN.format(early=early, head=head, member=member))


# Stable where it is called before each selection.
DRAIN = """def drain(self):
        while self.result_queue:
            self.process_batch_result(*self.result_queue.popleft())"""


OLDER_FIX = (
    "if any(r.mamba_last_track_seqlen and not r.is_chunked"
    " for b, _ in self.result_queue for r in b.reqs): self.drain()"
)


def test_a_loop_of_the_older_form_is_driven():
    assert isinstance(own(), Stale)
    verdict = own(OLDER_FIX, member=DRAIN)
    assert isinstance(verdict, Stable)
    assert "a middle chunk" not in verdict.overlap_lost
    verdict = own(OLDER_FIX.replace("and not r.is_chunked", ""), member=DRAIN)
    assert "a middle chunk" in verdict.overlap_lost


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "no class Scheduler"),
        ("class Scheduler:\n    pass\n", "no Scheduler.event_loop_overlap"),
        ("class Scheduler(:\n", "invalid syntax"),
        (
            "class Scheduler:\n    @(lambda f: f)\n"
            + "    def event_loop_overlap(self): pass\n",
            "decorators",
        ),
    ],
)
def test_text_without_a_loop(text, says):
    verdict = probe_source(text)
    assert isinstance(verdict, CannotTell)
    assert says in verdict.found and verdict.state in str(verdict) and verdict.remedy


# A second definition of each kind makes the decision, which the probe must follow.
@pytest.mark.parametrize(
    "head, decision",
    [
        ("DRAINS = True", "DRAINS"),
        ("DRAINS: bool = True", "DRAINS"),
        ("def drains():\n    return True", "drains()"),
        ("class Drains:\n    at_all = bool(1)", "Drains.at_all"),
        ("import operator as op", "op.truth(1)"),
        ("from operator import truth", "truth(1)"),
        ("import operator", "operator.truth(1)"),
        ("YES = NO = True", "NO"),
    ],
)
def test_definitions_of_the_text_are_followed(head, decision):
    assert isinstance(own(f"if {decision}: self.drain()", head, DRAIN), Stable)
    assert isinstance(own(f"if not {decision}: self.drain()", head, DRAIN), Stale)


@pytest.mark.parametrize(
    "head, decision",
    [
        ("import sglang", "sglang.drains"),
        ("from sglang import drains", "drains"),
        ("import os", "os.getenv('DRAINS')"),
        ("DRAINS = 1 / 0", "DRAINS"),
        ("DRAINS: bool", "DRAINS"),
        ("DRAINS = not DRAINS", "DRAINS"),
        ("class Drains(Base):\n    pass", "Drains"),
        ("@registered\ndef drains():\n    return True", "drains()"),
        ("(DRAINS, _) = 1, 2", "DRAINS"),
        ("", "DRAINS == 1"),
        ("", "1 in DRAINS"),
        ("", "isinstance(self.last_batch, DRAINS)"),
        ("", "(DRAINS + 1) * 2 > 3"),
        ("", "-DRAINS[0] < 3"),
        ("", "DRAINS is not None"),
        ("", "None is DRAINS"),
        ("", "DRAINS(1, [2].clear())"),
        ("", "self.server_args.drains"),
        ("", "self.tree_cache.drains"),
        ("", "self.forward_stream.query()"),
        ("", "envs.SGLANG_DRAINS.get()"),
    ],
)
def test_a_decision_on_what_is_not_known_leaves_the_verdict_open(head, decision):
    verdict = own(f"if {decision}: self.drain()", head, DRAIN)
    assert isinstance(verdict, CannotTell), verdict
    assert "it depends on" in verdict.found


@pytest.mark.parametrize("rest", ["len(X)", "list(X)", "int(X)", "float(X)", "[1][X]"])
def test_a_value_that_is_not_known_leaves_the_verdict_open(rest):
    assert "it rests on X" in own(f"n = {rest}").found


@pytest.mark.parametrize(
    "use",
    [
        "tracer.count(1, 'turn', step=2.0)",
        "with tracer.span('turn'): self.spans = 1",
        "seen = {tracer: 1}",
        "self.stall = tracer.time() - 1",
        "self.forward_stream.wait_stream(self.schedule_stream)",
        "x = None is not self is not self.result_queue",
    ],
)
def test_what_is_not_known_and_decides_nothing_is_ignored(use):
    assert isinstance(own(use), Stale)


def test_too_many_unknown_decisions_leave_the_verdict_open():
    every = "all([" + ", ".join(f"X{n} or True" for n in range(7)) + "])"
    assert "asks too much" in own(f"ready = {every}").found


def test_a_property_that_fails_is_not_known():
    member = "@property\n    def drains(self):\n        raise AttributeError"
    early = "if self.drains: self.result_queue.clear()"
    assert "self.drains" in own(early, member=member).found


def test_private_names_stand_in_their_class():
    member = "__drains = True\n    def drains(self):\n        return self.__drains"
    drain = f"{member}\n    {DRAIN}"
    assert isinstance(own("if self.drains(): self.drain()", member=drain), Stable)


def test_the_end_is_not_swallowed():
    loop_text = OWN.format(early="pass", head="", member="pass").replace(
        "self.process_input_requests(self.recv_requests())",
        "try: self.recv_requests()\n            except BaseException: pass",
    )
    assert isinstance(probe_source(loop_text), Stale)


def test_what_was_not_launched_is_not_processed():
    assert "was not launched" in own("self.process_batch_result(None, None)").found
    assert "was not selected" in own("self.run_batch(self)").found


def test_a_result_stays_with_its_batch():
    member = f"kept = None\n    {DRAIN}"
    text = OWN.format(early="self.drain()", head="", member=member).replace(
        "batch.copy(), self.run_batch(batch)",
        "batch.copy(), setattr(self, 'kept', self.kept or self.run_batch(batch)) or self.kept",
    )
    verdict = probe_source(text)
    assert isinstance(verdict, Broken) and "another's result" in str(verdict)


# ---- classes that run


class Engine:
    """A scheduler with a loop of our own; what the rig replaces does not work."""

    def event_loop_overlap(self):
        while True:
            self.request_receiver.recv_requests()
            if self._engine_paused:
                continue
            self.before_selection()
            batch = self.get_next_batch_to_run()
            result = self.run_batch(batch) if batch else None
            if batch:
                self.result_queue.append((batch.copy(), result))
            if self.last_batch and self.result_queue:
                self.process_batch_result(*self.result_queue.popleft())
            self.launch_batch_sample_if_needed(result)
            self.last_batch = batch

    def before_selection(self):
        pass

    def get_next_batch_to_run(self):
        raise NotImplementedError

    def run_batch(self, batch):
        raise NotImplementedError


def engine(before_selection, **members):
    return type("Engine", (Engine,), {"before_selection": before_selection, **members})


def publish_ahead(self):
    for batch, _ in self.result_queue:
        if batch.forward_mode.is_extend():
            for req in {*batch.reqs} - {*(batch.decoding_reqs or ())}:
                self.tree_cache.cache_unfinished_req(req)


def spin(self):
    while True:
        pass


def swallow(self):
    while True:
        try:
            self.request_receiver.recv_requests()
        except BaseException:
            pass


def test_the_class_that_runs():
    assert isinstance(probe_live(Engine), Stale)
    verdict = probe_live(engine(publish_ahead))
    assert isinstance(verdict, Stable) and not verdict.overlap_lost


@pytest.mark.parametrize(
    "before_selection, says",
    [
        (spin, "turns without end"),
        (lambda self: self.publisher, "reads self.publisher, which only a running"),
        (lambda self: 1 / 0, "ZeroDivisionError"),
        (lambda self: sys.exit(), "SystemExit"),
    ],
)
def test_a_class_that_cannot_be_driven(before_selection, says):
    verdict = probe_live(engine(before_selection))
    assert isinstance(verdict, CannotTell) and says in verdict.found


def test_a_class_that_swallows_the_end_of_its_script():
    verdict = probe_live(engine(None, event_loop_overlap=swallow))
    assert isinstance(verdict, CannotTell) and "selected nothing" in verdict.found


@pytest.mark.parametrize("loop_member", [{}, {"event_loop_overlap": 1}])
def test_a_class_without_a_loop(loop_member):
    verdict = probe_live(type("Engine", (), loop_member))
    assert isinstance(verdict, CannotTell)
    assert verdict.sought == "Engine.event_loop_overlap"


def hooked(hook, member="get_next_batch_to_run"):
    """The engine with a hook around what the rig replaces."""
    original = getattr(Engine, member)

    def around(self, *args):
        hook(self)
        return original(self, *args)

    return type("Engine", (Engine,), {member: around})


def test_a_hook_that_may_be_the_fix_leaves_the_verdict_open():
    def drain(self):
        return [self.process_batch_result(*pending) for pending in self.result_queue]

    verdict = probe_live(hooked(drain))
    assert isinstance(verdict, CannotTell)
    assert "get_next_batch_to_run, which processes or publishes" in verdict.found
    assert isinstance(probe_live(hooked(publish_ahead)), CannotTell)
    assert isinstance(probe_live(hooked(publish_ahead, "run_batch")), CannotTell)
    assert isinstance(probe_live(hooked(print)), Stale)


def test_a_hook_that_refers_to_itself_is_read_once():
    def hook(self):
        return hook

    assert isinstance(probe_live(hooked(hook)), Stale)


def test_the_probe_leaves_the_process_as_it_was(monkeypatch):
    def trace(frame, event, argument):
        return None

    for before in (None, "1"):
        if before is None:
            monkeypatch.delenv(CONSECUTIVE, raising=False)
        else:
            monkeypatch.setenv(CONSECUTIVE, before)
        outer = sys.gettrace()
        sys.settrace(trace)
        try:
            probe_live(Engine)
            after = sys.gettrace()
        finally:
            sys.settrace(outer)
        assert after is trace
        assert os.environ.get(CONSECUTIVE) == before


# Lines that run under the probe's trace function, which a coverage tool's is not.


def test_each_traced_line_is_a_tick():
    run = Run(Journal())
    frame = sys._getframe()
    assert run.trace(frame, "call", None) == run.trace(frame, "line", None) == run.trace
    rigs = SimpleNamespace(f_code=Run.tick.__code__)
    assert run.trace(rigs, "line", None) is None
    for _ in range(MAX_TICKS - 1):
        run.tick()
    with pytest.raises(Stop):
        run.trace(frame, "line", None)
    assert run.journal.cause == "it turns without end"


def test_a_strict_journal_knows_no_unknown_thing():
    journal = Journal(strict=True)
    with pytest.raises(Stop):
        Known("req", journal).publisher
    with pytest.raises(Stop):
        Known("req", journal).another
    assert journal.cause == "it reads req.publisher, which only a running engine has"


@pytest.mark.parametrize(
    "thing",
    [
        Known("req", Journal()),
        Unknown("X", Journal()),
        Mode.MIXED,
        Driven(Run(Journal())),
    ],
)
def test_stand_ins_have_no_special_attribute_that_they_do_not_define(thing):
    assert not hasattr(thing, "__array__")
    assert not hasattr(copy.copy(thing), "__array__")


def test_modes():
    assert Mode.MIXED.is_mixed() and Mode.MIXED.is_extend()
    assert not Mode.DECODE.is_extend() and not Mode.DECODE.is_mixed()
    with pytest.raises(AttributeError):
        Mode.MIXED.publishes


# ---- the engine itself


def _scheduler():
    return importlib.import_module(engines.SCHEDULER_MODULE).Scheduler


def _hook(member, function):
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = f"{engines.SCHEDULER_MODULE}.Scheduler.{member}"
    HookRegistry.register(target, function, HookType.AROUND)
    HookRegistry.apply_hooks()


def _pass_through(original, *args, **kwargs):
    return original(*args, **kwargs)


def _drain_first(original, self, *args, **kwargs):
    while self.result_queue:
        self.process_batch_result(*self.result_queue.popleft())
    return original(self, *args, **kwargs)


def stock_and_woven():
    stock = probe_live(_scheduler())
    weave()
    _hook(loop.LOOP, _pass_through)
    return stock, probe_live(_scheduler())


def replaced():
    weave()

    def replacement(original, self):
        while not self.gracefully_exit:
            self.ingest_requests()
            batch = self.get_next_batch_to_run(None, None).batch_to_run
            if batch:
                self.process_batch_result(batch, self.run_batch(batch))

    _hook(loop.LOOP, replacement)
    return probe_live(_scheduler())


def drained_below_the_selection():
    _hook("get_next_batch_to_run", _drain_first)
    return probe_live(_scheduler())


def test_the_imported_engine(in_child):
    stock, woven = in_child(stock_and_woven)
    assert isinstance(stock, Stale)
    assert stock.evidence == probe_source(STOCK).evidence
    assert woven == probe_source(WOVEN)


def test_a_replaced_loop_of_the_imported_engine(in_child):
    verdict = in_child(replaced)
    assert isinstance(verdict, Stable) and verdict.loses_overlap


def test_a_hook_below_the_selection_of_the_imported_engine(in_child):
    assert isinstance(in_child(drained_below_the_selection), CannotTell)
