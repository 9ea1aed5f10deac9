"""The boundary between a tracked Mamba prefill and the selection of the next batch.

The real `Scheduler.event_loop_overlap` runs over a scripted scheduler. Processing
a prefill publishes its tracked requests: each row changes from PRIVATE to
CANONICAL slots. A decode, verify or mixed batch captures the rows of its
requests when it is selected, so a row that it captured as PRIVATE after a
publication was due is stale.
"""

import unittest
from types import SimpleNamespace

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.environ import envs
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

PRIVATE = "private"
CANONICAL = "canonical"


class _Req:
    """A request with one row of slots and what the scheduler reads of it."""

    def __init__(self, rid, tracked=True, **state):
        self.rid = rid
        self.slots = PRIVATE
        self.kv = SimpleNamespace(mamba_last_track_seqlen=64 if tracked else None)
        self.inflight_middle_chunks = 0
        self.skip_radix_cache_insert = False
        self.is_retracted = False
        self.is_finished = False
        self.finishes_in_prefill = False
        for name, value in state.items():
            setattr(self, name, value)

    def finished(self):
        return self.is_finished


class _Batch:
    """A batch that captures its decoding rows when it is selected."""

    def __init__(self, name, mode, reqs, decoding_reqs=None, **state):
        self.name = name
        self.forward_mode = mode
        self.reqs = reqs
        self.decoding_reqs = decoding_reqs
        self.is_prefill_only = False
        self.is_extend_in_batch = mode.is_extend()
        self.spec_algorithm = SpeculativeAlgorithm.NONE
        self.has_grammar = False
        self.error = None
        self.captured = None
        for name, value in state.items():
            setattr(self, name, value)

    def capture(self):
        rows = self.reqs if self.forward_mode.is_decode() else self.decoding_reqs
        self.captured = {req.rid: req.slots for req in rows or ()}

    def copy(self):
        return self

    def grammar_needs_sync(self):
        return self.has_grammar


def _prefill(name, *reqs, mode=ForwardMode.EXTEND, **state):
    return _Batch(name, mode, list(reqs), **state)


def _decode(name, *reqs, **state):
    return _Batch(name, ForwardMode.DECODE, list(reqs), **state)


def _mixed(name, prefilling, decoding):
    return _Batch(name, ForwardMode.MIXED, prefilling + decoding, decoding)


class _ScriptedScheduler(Scheduler):
    """Runs one turn of the loop per entry of `turns` and records what happens.

    An entry is the batch to select, None, a callable that chooses one at
    selection, or "paused" for a turn in which the engine is paused.
    """

    def __init__(self, turns, tree_cache=None, **state):
        self.turns = list(turns)
        self.events = []
        self.idle_turns = 0
        self.flush_error = None
        self.gracefully_exit = False
        self._engine_paused = False
        self.running_batch = None
        self.last_batch = None
        self.is_generation = True
        self.require_mlp_sync = False
        self.enable_unified_memory = False
        self.enable_overlap = True
        self.tree_cache = tree_cache or _tree_cache()
        self.req_to_token_pool = SimpleNamespace(enable_mamba_extra_buffer=True)
        self.token_to_kv_pool_allocator = SimpleNamespace(
            flush_opportunistic=self._flush
        )
        for name, value in state.items():
            setattr(self, name, value)

    def run(self):
        self.event_loop_overlap()
        return self.events

    def ingest_requests(self, *args, **kwargs):
        self.turn = self.turns.pop(0) if self.turns else None
        # Graceful exit is looked at on top of a turn, so one more turn is seen.
        self.gracefully_exit = not self.turns
        self._engine_paused = self.turn == "paused"

    def _record_scheduler_state_for_paused_engine(self):
        self.events.append("paused")

    def get_next_batch_to_run(self, running_batch, last_batch):
        batch = self.turn() if callable(self.turn) else self.turn
        self.events.append(f"select {batch.name if batch else None}")
        if batch:
            batch.capture()
        return SimpleNamespace(running_batch=running_batch, batch_to_run=batch)

    def run_batch(self, batch):
        self.events.append(f"launch {batch.name}")
        return SimpleNamespace(name=batch.name)

    def process_batch_result(self, batch, result):
        assert result.name == batch.name
        self.events.append(f"process {batch.name}")
        if batch.error:
            raise batch.error
        if not batch.forward_mode.is_extend():
            return
        for req in batch.reqs:
            if req.inflight_middle_chunks > 0:
                req.inflight_middle_chunks -= 1
            elif req.finishes_in_prefill:
                req.is_finished = True
            elif req.kv.mamba_last_track_seqlen is not None:
                if req not in (batch.decoding_reqs or ()):
                    req.slots = CANONICAL
                    req.kv.mamba_last_track_seqlen = None

    def _flush(self):
        self.events.append("flush")
        if self.flush_error:
            raise self.flush_error

    def _apply_war_barrier(self):
        pass

    def launch_batch_sample_if_needed(self, batch_result, batch):
        pass

    def on_idle(self):
        self.idle_turns += 1


def _tree_cache(disable=False, mamba=True):
    return SimpleNamespace(disable=disable, supports_mamba=lambda: mamba)


class _BoundaryTestCase(CustomTestCase):
    def assert_order(self, events, *expected):
        """Each of `expected` happened exactly once, in this order."""
        for event in expected:
            self.assertEqual(events.count(event), 1, f"{event!r} in {events}")
        found = sorted(expected, key=events.index)
        self.assertEqual(found, list(expected), f"order of {events}")


class TestPublicationBeforeSelection(_BoundaryTestCase):
    """What depends on a publication is selected after it."""

    def test_decode_captures_canonical_slots(self):
        req = _Req("r")
        first, second = _decode("d1", req), _decode("d2", req)
        events = _ScriptedScheduler([_prefill("p", req), first, second, None]).run()
        self.assertEqual(first.captured, {"r": CANONICAL})
        self.assertEqual(second.captured, first.captured)
        self.assert_order(events, "process p", "select d1", "launch d1")

    def test_post_selection_sync_is_too_late(self):
        req = _Req("r")
        verify = _decode(
            "v", req, spec_algorithm=SpeculativeAlgorithm.EAGLE, has_grammar=True
        )
        events = _ScriptedScheduler([_prefill("p", req), verify, None]).run()
        self.assertEqual(verify.captured, {"r": CANONICAL})
        self.assert_order(events, "process p", "select v", "launch v", "process v")

    def test_mixed_batch_captures_canonical_slots_of_its_decode_rows(self):
        decoding, arriving = _Req("d"), _Req("a")
        mixed = _mixed("m", [arriving], [decoding])
        _ScriptedScheduler([_prefill("p", decoding), mixed, None]).run()
        self.assertEqual(mixed.captured, {"d": CANONICAL})

    def test_tracked_prefill_row_of_mixed_batch_is_published(self):
        decoding, arriving = _Req("d"), _Req("a")
        decode = _decode("d1", decoding, arriving)
        mixed = _mixed("m", [arriving], [decoding])
        events = _ScriptedScheduler([mixed, decode, None]).run()
        self.assertEqual(decode.captured["a"], CANONICAL)
        self.assert_order(events, "process m", "select d1")

    def test_completed_request_beside_a_middle_chunk_is_published(self):
        completed, chunked = _Req("r"), _Req("c", inflight_middle_chunks=1)
        decode = _decode("d", completed)
        _ScriptedScheduler([_prefill("p", completed, chunked), decode, None]).run()
        self.assertEqual(decode.captured, {"r": CANONICAL})

    def _consecutive_prefills(self, disable_overlap):
        one, two = _Req("1"), _Req("2")
        decode = _decode("d", one, two)
        turns = [_prefill("p1", one), _prefill("p2", two), decode, None]
        with envs.SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP.override(disable_overlap):
            events = _ScriptedScheduler(turns).run()
        self.assertEqual(decode.captured, {"1": CANONICAL, "2": CANONICAL})
        self.assert_order(
            events, "launch p1", "process p1", "launch p2", "process p2", "select d"
        )

    def test_consecutive_prefills_with_overlap(self):
        self._consecutive_prefills(disable_overlap=False)

    def test_consecutive_prefills_without_overlap(self):
        self._consecutive_prefills(disable_overlap=True)

    def test_finishing_in_prefill_schedules_no_decode(self):
        req = _Req("r", finishes_in_prefill=True)
        decode = _decode("d", req)
        turns = [_prefill("p", req), lambda: None if req.finished() else decode, None]
        events = _ScriptedScheduler(turns).run()
        self.assertNotIn("launch d", events)
        self.assertEqual(events.count("process p"), 1)

    def test_failing_prefill_launches_nothing_after_it(self):
        req = _Req("r")
        prefill = _prefill("p", req, error=RuntimeError("device lost"))
        scheduler = _ScriptedScheduler([prefill, _decode("d", req), None])
        with self.assertRaisesRegex(RuntimeError, "device lost"):
            scheduler.run()
        self.assertNotIn("launch d", scheduler.events)

    def test_paused_engine_publishes_on_resume(self):
        req = _Req("r")
        decode = _decode("d", req)
        turns = [_prefill("p", req), "paused", "paused", decode, None]
        events = _ScriptedScheduler(turns).run()
        self.assertEqual(decode.captured, {"r": CANONICAL})
        self.assertEqual(events[2:4], ["paused", "paused"])
        self.assert_order(events, "process p", "select d")


class TestOpportunisticFlush(_BoundaryTestCase):
    def _turns(self):
        one, two = _Req("1"), _Req("2")
        return [_prefill("p1", one), _prefill("p2", two), _decode("d", one, two), None]

    def test_flushes_between_processing_and_next_launch(self):
        req = _Req("r")
        turns = [_prefill("p", req), _decode("d", req), None]
        events = _ScriptedScheduler(turns, enable_unified_memory=True).run()
        self.assert_order(events, "launch p", "process p", "flush", "launch d")

    def test_failing_flush_is_logged_once_and_harmless(self):
        scheduler = _ScriptedScheduler(
            self._turns(),
            enable_unified_memory=True,
            flush_error=RuntimeError("no compaction"),
        )
        with self.assertLogs(level="WARNING") as logs:
            events = scheduler.run()
        self.assertEqual(events.count("flush"), 2)
        told = [r for r in logs.records if "lush" in r.getMessage()]
        self.assertEqual(len(told), 1, logs.output)
        self.assert_order(events, "process p1", "process p2", "launch d", "process d")

    def test_no_flush_without_unified_memory(self):
        self.assertNotIn("flush", _ScriptedScheduler(self._turns()).run())


class TestEachResultIsProcessedOnce(_BoundaryTestCase):
    def test_in_launch_order(self):
        one, two = _Req("1"), _Req("2")
        turns = [
            _prefill("p1", one),
            _decode("d1", one),
            _prefill("p2", two),
            _decode("d2", one, two),
            _decode("d3", one, two),
            None,
            None,
        ]
        events = _ScriptedScheduler(turns).run()
        launched = [e.split()[1] for e in events if e.startswith("launch")]
        processed = [e.split()[1] for e in events if e.startswith("process")]
        self.assertEqual(launched, ["p1", "d1", "p2", "d2", "d3"])
        self.assertEqual(processed, launched)

    def test_next_result_stays_pending_until_its_own_turn(self):
        req = _Req("r")
        turns = [_prefill("p", req), _decode("d1", req), _decode("d2", req), None]
        events = _ScriptedScheduler(turns).run()
        self.assert_order(events, "launch d1", "launch d2", "process d1", "process d2")

    def test_prefill_then_nothing_goes_idle_without_a_second_pop(self):
        req = _Req("r", finishes_in_prefill=True)
        scheduler = _ScriptedScheduler([_prefill("p", req), None, None])
        events = scheduler.run()
        self.assertEqual(events.count("process p"), 1)
        self.assertEqual(scheduler.idle_turns, 1)

    def test_graceful_exit_leaves_the_pending_result(self):
        scheduler = _ScriptedScheduler([_prefill("p", _Req("r"))])
        self.assertNotIn("process p", scheduler.run())
        self.assertEqual(len(scheduler.result_queue), 1)


class TestOverlapIsKept(_BoundaryTestCase):
    """What publishes nothing is processed under the next batch, as before."""

    def _assert_overlap(self, pending, **state):
        follower = _decode("next", _Req("other", tracked=False))
        events = _ScriptedScheduler([pending, follower, None], **state).run()
        name = pending.name
        self.assert_order(events, "select next", "launch next", f"process {name}")

    def test_dp_attention_and_mlp_sync(self):
        self._assert_overlap(_prefill("p", _Req("r")), require_mlp_sync=True)

    def test_disabled_cache(self):
        tree_cache = _tree_cache(disable=True)
        self._assert_overlap(_prefill("p", _Req("r")), tree_cache=tree_cache)

    def test_cache_without_mamba(self):
        # A plain pool has no such attribute, and none may be asked of it.
        self._assert_overlap(
            _prefill("p", _Req("r")),
            tree_cache=_tree_cache(mamba=False),
            req_to_token_pool=SimpleNamespace(),
        )

    def test_no_extra_buffer(self):
        pool = SimpleNamespace(enable_mamba_extra_buffer=False)
        self._assert_overlap(_prefill("p", _Req("r")), req_to_token_pool=pool)

    def test_embedding_model(self):
        self._assert_overlap(_prefill("p", _Req("r")), is_generation=False)

    def test_prefill_only_batch(self):
        self._assert_overlap(_prefill("p", _Req("r"), is_prefill_only=True))

    def test_untracked_prefill(self):
        self._assert_overlap(_prefill("p", _Req("r", tracked=False)))

    def test_finished_request(self):
        self._assert_overlap(_prefill("p", _Req("r", is_finished=True)))

    def test_retracted_request(self):
        self._assert_overlap(_prefill("p", _Req("r", is_retracted=True)))

    def test_insertion_skipped(self):
        self._assert_overlap(_prefill("p", _Req("r", skip_radix_cache_insert=True)))

    def test_middle_chunk(self):
        self._assert_overlap(_prefill("p", _Req("r", inflight_middle_chunks=1)))

    def test_decode_batch(self):
        self._assert_overlap(_decode("d", _Req("r")))

    def test_decode_rows_of_mixed_batch(self):
        arriving = _Req("a", tracked=False)
        self._assert_overlap(_mixed("m", [arriving], [_Req("d1"), _Req("d2")]))

    def test_empty_queue(self):
        events = _ScriptedScheduler([None, None, _prefill("p", _Req("r")), None]).run()
        self.assertEqual(events[:3], ["select None", "select None", "select p"])


if __name__ == "__main__":
    unittest.main()
