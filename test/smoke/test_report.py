"""What the smoke prints and writes, and its exit status, from answers made by hand."""

import json
from argparse import Namespace
from dataclasses import replace

import pytest
from test_judgement import RIGHT, STALE, all_like
from test_ledger import right

from sglang_cpu_testbed.scenarios import STOCK, WOVEN
from sglang_cpu_testbed.smoke.__main__ import _report

TOOK_S = 90.0


@pytest.fixture
def options(tmp_path):
    return Namespace(model=None, json=tmp_path / "build" / "smoke.json")


def asked(woven=RIGHT) -> dict:
    plain, sensitive = all_like(RIGHT), all_like(RIGHT) | {STOCK: STALE}
    return {False: plain | {WOVEN: woven}, True: sensitive}


def test_right_answers_end_with_0(options, capsys):
    assert _report(options, asked(), right(), TOOK_S) == 0
    said = capsys.readouterr().out
    assert "no GPU was used" in said and "SGLANG_TESTBED_SLOT_DEPENDENCE=1" in said
    assert said.count("woven engine  ") == 2
    written = json.loads(options.json.read_text())
    holding = sum(one["holds"] for one in written["expectations"])
    assert said.endswith(f"\n{holding} of {holding} expectations hold\n")
    assert len(written["servers"]) == 6
    assert written["load"]["cut"] == len(right().sent) // 2


def test_a_wrong_answer_ends_with_1_and_says_what_was_found(options, capsys):
    wrong = replace(
        RIGHT, stop=[*RIGHT.stop[:2], replace(RIGHT.stop[2], finish="abort")]
    )
    assert _report(options, asked(wrong), None, TOOK_S) == 1
    said = capsys.readouterr().out
    ends = "expected ['stop', 'stop', 'stop'], found ['stop', 'stop', 'abort']"
    assert f"FAILED: ends of woven engine: {ends}" in said
    written = json.loads(options.json.read_text())
    failed = [one for one in written["expectations"] if not one["holds"]]
    assert [one["subject"] for one in failed] == [
        "ends of woven engine",
        "answers of woven engine and overlap disabled",
    ]


def test_a_wrong_load_ends_with_1(options, capsys):
    load = right()
    load.counted["num_requests_total"] += 1
    assert _report(options, asked(), load, TOOK_S) == 1
    assert "FAILED: finished requests by log and /metrics" in capsys.readouterr().out


def test_what_depends_on_the_clock_is_not_printed(options, capsys):
    said = []
    for more in (0, 5):
        load = right()
        load.counted["mamba_boundary_rebound_rows_total"] += more
        load.counted["num_retracted_requests_total"] += more
        load.counted["realtime_tokens_total/prefill_cache"] += more
        load.logged.cached_tokens += more
        assert _report(options, asked(), load, TOOK_S) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
