"""Plays histories on one engine, one after the other, and judges each. Separate
from the runner: everything here happens in one process, which one engine owns."""

import hashlib

from sglang_cpu_testbed.engine import Engine, Stalled
from sglang_cpu_testbed.simulation import history as h
from sglang_cpu_testbed.simulation import shims
from sglang_cpu_testbed.simulation.actor import Actor
from sglang_cpu_testbed.simulation.configurations import Configuration
from sglang_cpu_testbed.simulation.device import Device
from sglang_cpu_testbed.simulation.expected import Expected, wrong
from sglang_cpu_testbed.simulation.ledger import Ledger, Totals
from sglang_cpu_testbed.simulation.poison import Poison
from sglang_cpu_testbed.simulation.verdict import (
    ENGINE,
    OUTPUT,
    OWNERSHIP,
    Verdict,
    Violation,
)
from sglang_cpu_testbed.simulation.watch import Watch

MAX_TURNS = 600


class Stage:
    """One engine on a lagging device, with all oracles around it."""

    def __init__(self, configuration: Configuration, expected: Expected):
        configuration.prepare()
        self.engine = Engine(**configuration.arguments)
        self.scheduler = self.engine.scheduler
        self.device = self.watch = None
        if self.scheduler.enable_overlap:
            self.device = Device(self.scheduler, configuration.lags)
            self.watch = Watch(self.scheduler, configuration.waits_between_prefills)
        if configuration.virtual_slots:
            self.ledger = Totals(self.scheduler)
        else:
            self.ledger = Ledger(self.scheduler)
            self.poison = Poison(self.scheduler, self.device)
        self.expected = expected

    def play(self, history: h.History) -> Verdict:
        """Run one history to its end; the engine is reusable if the verdict says so."""
        engine, verdict = self.engine, Verdict(requests=len(history.arrivals))
        engine.outputs.clear()
        engine.control_outputs.clear()
        engine.turn = 0
        self.actor = Actor(engine, self.device, self.expected)
        if self.watch:
            self.watch.begin()
        found = self._violations = []
        launched = self.device.launched if self.device else 0
        try:
            engine.run(self._script(history), max_turns=MAX_TURNS)
            if self.watch:
                self.watch.end()
            self._judge_rest(verdict)
        except Stalled as stalled:
            found.append(Violation(ENGINE, engine.turn, str(stalled)))
            verdict.reusable = False
        except Exception as error:
            found.append(Violation(_kind(error), engine.turn, _words(error)))
            verdict.reusable = False
        else:
            self._judge_outputs()
        watch = self.watch
        if watch:
            found[:0] = watch.violations
            verdict.early, verdict.within = watch.early, watch.within
            verdict.overlapped, verdict.alone = watch.overlapped, watch.alone
            verdict.reached = watch.reached
            verdict.launches = self.device.launched - launched
        verdict.turns = engine.turn
        verdict.retractions = sum(o.retractions for o in engine.outputs.values())
        self._count(verdict, history)
        verdict.violations = found
        verdict.digest = self._digest()
        return verdict

    def _script(self, history: h.History):
        for turn in history.turns:
            yield lambda engine, turn=turn: self._turn(turn)
        # A paused engine would stay so.
        yield lambda engine: self._turn((h.Continue(),))
        while True:
            if not self.engine.open_rids and not self._busy():
                return
            yield lambda engine: self._turn(())

    def _busy(self) -> bool:
        scheduler = self.scheduler
        return bool(scheduler.last_batch) or not scheduler.running_batch.is_empty()

    def _turn(self, operations) -> None:
        if self.watch:
            self.watch.begin_turn()
            self._judge_ownership(at_rest=False)
        self.actor.retract_next(False)
        for operation in operations:
            self.actor.act(operation)
        if self.watch:
            self.watch.end_ingest()

    def _judge_ownership(self, at_rest: bool) -> None:
        for text in self.ledger.wrong(at_rest):
            self._violations.append(Violation(OWNERSHIP, self.engine.turn, text))

    def _judge_rest(self, verdict: Verdict) -> None:
        """Nothing may be left: first with the cache, then after a flush."""
        self.actor.retract_next(False)
        self._judge_ownership(at_rest=True)
        flushed = self.scheduler.flush_cache(empty_cache=False)
        self.scheduler.new_token_ratio_tracker.reset()
        verdict.reusable = flushed and self.ledger.as_at_start()
        if not verdict.reusable:
            text = f"after a flush (done: {flushed}) the pools are not as at the start"
            self._violations.append(Violation(OWNERSHIP, self.engine.turn, text))

    def _judge_outputs(self) -> None:
        for rid, arrive in self.actor.arrived.items():
            output = self.engine.outputs[rid]
            expected = self.expected.of(arrive)
            text = wrong(arrive, output, expected, rid in self.actor.aborted)
            if text is not None:
                self._violations.append(Violation(OUTPUT, self.engine.turn, text))

    def _count(self, verdict: Verdict, history: h.History) -> None:
        """What the history reached, so that a run can show that it reaches it."""
        verdict.reached += self.actor.reached
        asked = (h.Retract(), h.Pause("retract"))
        if not any(op in asked for turn in history.turns for op in turn):
            # Memory ran out, or a request of higher priority came.
            verdict.reached["retracted by the engine itself"] += verdict.retractions
        for output in self.engine.outputs.values():
            kind = (output.finish or {}).get("type")
            verdict.reached[f"finished by {kind}"] += 1
            verdict.reached["cache hit"] += output.cached_tokens > 0
        verdict.reached["loaded from host"] += shims.loaded
        shims.loaded = 0
        for answer in self.engine.control_outputs:
            if hasattr(answer, "success"):
                verdict.reached[f"flush {'done' if answer.success else 'refused'}"] += 1

    def _digest(self) -> str:
        seen = [
            (o.rid, o.tokens, o.logprobs, str(o.finish), o.cached_tokens, o.retractions)
            for o in self.engine.outputs.values()
        ]
        trace = self.watch.trace if self.watch else []
        return hashlib.sha256(repr((seen, trace)).encode()).hexdigest()[:16]


def _kind(error: Exception) -> str:
    """SGLang's own memory checks raise with these words."""
    checks = ("Mem Leak", "leak", "double free", "use-after-free", "free pool")
    return OWNERSHIP if any(word in str(error) for word in checks) else ENGINE


def _words(error: Exception) -> str:
    trace, last = error.__traceback__, None
    while trace is not None:
        last, trace = trace, trace.tb_next
    place = f"{last.tb_frame.f_code.co_name}:{last.tb_lineno}" if last else "?"
    return f"{type(error).__name__} in {place}: {str(error)[:300]}"
