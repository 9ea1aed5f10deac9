"""What the observer counts on the real engine, and that it changes nothing."""

import logging
import os

import pytest

from sglang_cpu_testbed.capture import Recorder, stale_steps
from sglang_cpu_testbed.engine import Engine
from sglang_cpu_testbed.request import same_bits
from sglang_cpu_testbed.scenarios import (
    BARRIER_SWITCH,
    NO_OVERLAP,
    SCENARIOS,
    TOGETHER,
    run,
    run_here,
)
from sglang_mamba_boundary import counters, plugin
from sglang_mamba_boundary.counters import LoggedCounters
from sglang_mamba_boundary.settings import POLICY

# In both scenarios one request's prompt is rebound once, by so many tokens.
REBOUND = {"together": 384, "warm": 256}


def run_counted(scenario):
    """Counts, outputs and stale captures of a scenario, with one log line each."""
    counted = LoggedCounters()
    plugin.LoggedCounters = lambda: counted
    if os.environ[POLICY] != "audit":
        plugin.metrics_of = lambda scheduler: counted
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger(counters.__name__).addHandler(handler)
    run = run_here(scenario)
    stale = sum(len(stale_steps(run.rows_of(rid))) for rid in scenario.watched)
    return counted.counts, run.outputs, stale, lines


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_audit_counts_the_fault_and_changes_nothing(in_child, scenario):
    counts, outputs, stale, lines = in_child(
        run_counted, scenario, env={POLICY: "audit"}
    )
    assert counts == {
        "early_results": 0,
        "published_ahead": 0,
        "policy_fallbacks": 0,
        "rebound_rows": 1,
        "rebound_tokens": REBOUND[scenario.name],
        "stale_captures": 1,
        "flush_failures": 0,
    }
    assert stale == 1
    assert "1 publications so far rebound a row" in lines[0]
    stock = in_child(lambda: run_here(scenario).outputs, env={POLICY: "off"})
    assert outputs.keys() == stock.keys()
    for rid, output in stock.items():
        assert outputs[rid].tokens == output.tokens
        assert same_bits(outputs[rid].logprobs, output.logprobs)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_flush_rebinds_early_and_captures_nothing_stale(in_child, scenario):
    counts, _, stale, lines = in_child(run_counted, scenario, env={POLICY: "flush"})
    assert counts["rebound_rows"] == 1
    assert counts["rebound_tokens"] == REBOUND[scenario.name]
    assert counts["stale_captures"] == stale == 0
    assert counts["early_results"] >= 1
    assert lines == []


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_publish_rebinds_ahead_and_consumes_no_result_early(in_child, scenario):
    env = {POLICY: "publish", BARRIER_SWITCH: "1"}
    counts, outputs, stale, lines = in_child(run_counted, scenario, env=env)
    assert counts["rebound_tokens"] == REBOUND[scenario.name]
    assert counts["stale_captures"] == stale == 0
    assert counts["published_ahead"] == 2
    assert counts["early_results"] == counts["policy_fallbacks"] == 0
    assert lines == []
    reference = run(scenario, NO_OVERLAP).outputs
    for rid, output in reference.items():
        assert outputs[rid].tokens == output.tokens
        assert same_bits(outputs[rid].logprobs, output.logprobs)


@pytest.mark.parametrize("policy", ["late", "rebind"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_an_early_result_within_the_selection_is_no_fallback(
    in_child, scenario, policy
):
    counts, _, stale, lines = in_child(run_counted, scenario, env={POLICY: policy})
    assert counts["rebound_tokens"] == REBOUND[scenario.name]
    assert counts["stale_captures"] == stale == counts["policy_fallbacks"] == 0
    # In both scenarios one prefill of the two moves a row, if there are two.
    waits = {"together": 1, "warm": 1 if policy == "rebind" else 2}
    assert counts["early_results"] == waits[scenario.name]
    assert lines == []


def test_publish_falls_back_where_nothing_orders_the_streams(in_child):
    env = {POLICY: "publish", BARRIER_SWITCH: "0"}
    counts, _, stale, lines = in_child(run_counted, TOGETHER, env=env)
    assert counts["policy_fallbacks"] == counts["early_results"] == 1
    assert counts["published_ahead"] == counts["stale_captures"] == stale == 0


def test_nothing_is_attached_where_nobody_counts(in_child):
    def attached():
        engine = Engine()
        recorder = Recorder(engine.scheduler)
        engine.run(TOGETHER.script(engine))
        assert recorder.rows
        return [
            name
            for owner, name in [
                (engine.scheduler, "process_batch_result"),
                (engine.scheduler, "publish_pending_mamba_prefill"),
                (engine.scheduler.tree_cache, "insert"),
                (engine.scheduler.tree_cache, "checkpoint"),
            ]
            if name in vars(owner)
        ]

    assert in_child(attached, env={POLICY: "flush"}) == []
