"""A running server on the testbed: its metrics, what it tells of itself, its log."""

import json
import os
import re

import pytest

from sglang_cpu_testbed.scenarios import PROMPT_LEN, prompt
from sglang_cpu_testbed.server import ServerFailed, serve
from sglang_mamba_boundary.server import check_url

PREFIX = "sglang:mamba_boundary_"


@pytest.fixture(scope="module")
def server():
    with serve(enable_metrics=True, env={"SGLANG_MAMBA_BOUNDARY": None}) as running:
        yield running


def metrics(server) -> dict[str, float]:
    sample = re.compile(rf"^{PREFIX}(\w+)\{{(.*)\}} (\S+)$", re.MULTILINE)
    return {
        name: float(value)
        for name, labels, value in sample.findall(server.get("/metrics"))
        if "le=" not in labels
    }


def test_counters_stand_at_zero_before_any_request(server):
    assert metrics(server) == {
        "early_results_total": 0,
        "rebound_rows_total": 0,
        "rebound_tokens_total": 0,
        "stale_captures_total": 0,
        "flush_failures_total": 0,
        "published_ahead_total": 0,
        "policy_fallbacks_total": 0,
        "wait_seconds_sum": 0,
        "wait_seconds_count": 0,
    }


def test_two_identical_prompts_are_counted_over_http(server):
    before = metrics(server)
    tokens = list(prompt("counted over http", PROMPT_LEN))
    answers = server.post(
        "/generate",
        input_ids=[tokens, tokens],
        sampling_params={"max_new_tokens": 4, "temperature": 0},
    )
    assert answers[0]["output_ids"] == answers[1]["output_ids"]
    after = metrics(server)
    grown = {name: after[name] - before[name] for name in after}
    # Together in one prefill, or in two: the second is rebound, or matches.
    assert grown["early_results_total"] == grown["wait_seconds_count"] >= 1
    assert grown["rebound_tokens_total"] in (0, 384)
    assert grown["rebound_rows_total"] == grown["rebound_tokens_total"] / 384
    assert grown["stale_captures_total"] == grown["flush_failures_total"] == 0


def test_labels_are_those_of_the_engines_own_metrics(server):
    page = server.get("/metrics")
    own = re.search(r"^sglang:num_running_reqs\{(.*)\}", page, re.MULTILINE)
    ours = re.search(rf"^{PREFIX}early_results_total\{{(.*)\}}", page, re.MULTILINE)
    assert ours.group(1) == own.group(1)


def test_the_server_tells_that_the_fix_acts(server):
    (state,) = json.loads(server.get("/server_info"))["internal_states"]
    assert state["mamba_boundary"]["status"] == "acts"
    report = check_url(server.url)
    assert report.exit_code == 0
    assert "woven into Scheduler.event_loop_overlap" in report.evidence[0]


def test_the_scheduler_logs_one_line_at_its_start(server):
    lines = [line for line in server.log().split("\n") if "mamba-boundary" in line]
    assert len(lines) == 1 and "policy flush, woven into" in lines[0]


def test_a_wrong_variable_ends_the_start_with_a_word():
    environ = {"SGLANG_MAMBA_BOUNDARY": "on"}
    with pytest.raises(ServerFailed, match="'on' is not one of"):
        with serve(env=environ):
            pytest.fail("it serves")
    assert "SGLANG_MAMBA_BOUNDARY" not in os.environ
