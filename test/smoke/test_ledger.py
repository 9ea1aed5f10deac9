"""The load's ledgers: a load that adds up passes, and each thing amiss is found."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from sglang_cpu_testbed.smoke.ledger import Load
from sglang_cpu_testbed.smoke.metrics import read, read_log, slots
from sglang_cpu_testbed.smoke.traffic import CLIENTS, Sent

WANTED = [[4, 5, 6, 7, 8]]
PAGE = """\
# HELP sglang:num_requests_total Number of requests processed.
sglang:num_requests_total{is_streaming="true",model_name="m"} 2.0
sglang:num_requests_total{is_streaming="false",model_name="m"} 3.0
sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"} 7.0
sglang:realtime_tokens_total{mode="decode",tp_rank="0"} 9.0
sglang:queue_time_seconds_bucket{le="0.1"} 5.0
sglang:kv_available_tokens{tp_rank="0"} 90.0
sglang:kv_evictable_tokens{tp_rank="0"} 8.0
sglang:kv_used_tokens{tp_rank="0"} 2.0
sglang:mamba_available_tokens{tp_rank="0"} 3.0
sglang:mamba_evictable_tokens{tp_rank="0"} 1.0
sglang:mamba_used_tokens{tp_rank="0"} 0.0
"""


def received(rid: str) -> str:
    fields = {"timestamp": "t", "event": "request.received", "rid": rid, "obj": {}}
    return "[t] " + json.dumps(fields)


def finished(rid: str, length: int, answer: int) -> str:
    lengths = f"input_len={length}, cached_input_len=0, output_len={answer}"
    return f"[t] ReqTimeStats(rid={rid}, {lengths}, attempts=1, type=unified): x"


def right() -> Load:
    """Each client sends one request; every second one hangs up while it is queued."""
    sent, log = [], []
    for number in range(CLIENTS):
        cut = number % 2 == 0
        rid = f"client-{number}-0"
        log.append(received(rid))
        if not cut:
            log.append(finished(rid, 10, 3))
        tokens = [] if cut else WANTED[0][:3]
        sent.append(Sent(rid, 0, 3, False, tokens, complete=not cut, cut=cut))
    log.append("[t] Prefill batch, #new-seq: 1, #new-token: 70, #cached-token: 30, x")
    half = CLIENTS / 2
    counted = Counter(
        {
            "num_requests_total": half,
            "prompt_tokens_total": 10 * half,
            "generation_tokens_total": 3 * half,
            "num_aborted_requests_total": half,
            "realtime_tokens_total/prefill_compute": 70.0,
            "realtime_tokens_total/prefill_cache": 30.0,
            "mamba_boundary_early_results_total": 4.0,
            "mamba_boundary_wait_seconds_count": 4.0,
            "mamba_boundary_rebound_rows_total": 1.0,
        }
    )
    pools = {"kv": (98, 0), "mamba": (4, 0)}
    logged = read_log("\n".join(log))
    return Load(1.0, True, sent, WANTED, counted, logged, pools, pools, True, True)


def failed(load: Load) -> list[str]:
    return [one.subject for one in load.expectations() if not one.holds]


def test_a_load_that_adds_up_passes():
    assert failed(right()) == []


@pytest.mark.parametrize(
    "name, change, subject",
    [
        ("num_requests_total", 1, "finished requests by log and /metrics"),
        ("prompt_tokens_total", 1, "prompt tokens by log and /metrics"),
        ("generation_tokens_total", -1, "generated tokens by log and /metrics"),
        (
            "realtime_tokens_total/prefill_compute",
            1,
            "prefilled tokens by log and /metrics",
        ),
        ("realtime_tokens_total/prefill_cache", 1, "cached tokens by log and /metrics"),
        ("num_aborted_requests_total", -1, "aborts as many as clients hung up"),
        ("num_aborted_requests_total", 1, "aborts as many as clients hung up"),
        ("mamba_boundary_wait_seconds_count", 1, "waits and early results"),
        (
            "mamba_boundary_stale_captures_total",
            1,
            "mamba_boundary_stale_captures_total",
        ),
        ("mamba_boundary_rebound_rows_total", -1, "mamba_boundary_rebound_rows_total"),
    ],
)
def test_a_counter_that_is_off_is_found(name, change, subject):
    load = right()
    load.counted[name] += change
    assert failed(load) == [subject]


@pytest.mark.parametrize(
    "change, subject",
    [
        ({"problem": "reset"}, "requests with a problem"),
        ({"tokens": [4, 5]}, "complete answers of another length"),
        ({"tokens": [4, 5, 9]}, "answers other than without overlap"),
        ({"asked": 2, "tokens": [4, 5]}, "complete answers logged otherwise"),
        ({"rid": "client-1-1"}, "requests that never finished"),
    ],
)
def test_an_answer_that_is_off_is_found(change, subject):
    load = right()
    load.sent[1] = replace(load.sent[1], **change)
    assert subject in failed(load)


@pytest.mark.parametrize(
    "line, subject",
    [
        ("[t] pool memory leak detected! x", "complaints in the log"),
        ("Traceback (most recent call last):", "complaints in the log"),
        (finished("client-1-0", 10, 3), "requests finished twice"),
        (received("stranger"), "requests nobody sent"),
    ],
)
def test_a_line_that_is_off_is_found(line, subject):
    logged = read_log(line)
    load = right()
    load.logged.complaints += logged.complaints
    load.logged.received += logged.received
    load.logged.finishes += logged.finishes
    assert failed(load) == [subject]


@pytest.mark.parametrize(
    "change, subject",
    [
        ({"idle": False}, "idle in the end"),
        ({"slots_after": {"kv": (97, 1), "mamba": (4, 0)}}, "slots in the end"),
        ({"serves_again": False}, "serves again, uncached"),
    ],
)
def test_an_end_that_is_off_is_found(change, subject):
    assert failed(replace(right(), **change)) == [subject]


def test_a_model_that_is_not_exact_may_answer_otherwise():
    load = replace(right(), exact=False)
    load.sent[1].tokens = [4, 5, 9]
    assert failed(load) == []


def test_the_metrics_page_is_summed_over_labels():
    values = read(PAGE)
    assert values["num_requests_total"] == 5
    assert values["realtime_tokens_total/prefill_compute"] == 7
    assert "queue_time_seconds_bucket" not in values
    assert slots(values) == {"kv": (98, 2), "mamba": (4, 0)}
