"""The stored virtual part byte for byte, and what the benchmark makes of its rows."""

import json
import sys

import pytest

from benchmark import __main__ as bench
from benchmark import check_cost, expected, picture, recorded, summary, table, trace
from benchmark.measure import POLICIES, Job, environment, run
from benchmark.workloads import RUNNING, WORKLOADS, play, requests_of
from sglang_cpu_testbed.fork import fork
from sglang_cpu_testbed.virtual import timeline as t
from sglang_cpu_testbed.virtual.machine import H200
from sglang_mamba_boundary.settings import WEAVING

# Of each policy these jobs are played again; `make bench` plays all.
JOBS = [Job("shared", 16, "virtual"), Job("burst", 16, "virtual")]
STORED = json.loads(expected.FILE.read_text())


@pytest.fixture(scope="session")
def measured(in_child):
    """Rows and timelines of JOBS by policy."""
    return {
        policy: fork(run, policy, JOBS, env=environment(policy), timeout_s=300.0)
        for policy in POLICIES
    }


def test_the_virtual_part_is_the_stored_one_byte_for_byte(measured):
    rows = [row for policy in POLICIES for row, _ in measured[policy]]
    assert expected.differences(table.with_ratios(rows)) == []


def test_a_difference_is_told():
    row = STORED[0] | {"tok_per_s": 1.0}
    (told,) = expected.differences([row])
    assert told.endswith(f"tok_per_s {STORED[0]['tok_per_s']} -> 1.0")
    (told,) = expected.differences([row | {"workload": "other"}])
    assert "not stored" in told


def test_the_recorded_part_prints_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "FILE", tmp_path / "wall.json")
    wall = STORED[0] | {"clock": "wall", "host_us_per_turn": 1000.0}
    costs = [{"pending": "nothing", "ns": 100.0, "peak_bytes": 48}]
    recorded.write([*STORED, wall], costs)
    head, row = recorded.lines("wall")
    assert head == table.HEAD and row.split()[:4] == "cold 1 stock wall".split()
    told = recorded.lines("costs")[1]
    assert "100 ns, 0.010 % of a turn; allocates 48 bytes" in told


@pytest.mark.parametrize("less", [("--running", "1"), ("--repetitions", "0")])
def test_only_whole_runs_are_stored(less, capsys):
    with pytest.raises(SystemExit):
        bench._options(["--update", *less])
    assert "whole runs only" in capsys.readouterr().err
    assert bench._options([*less]).update is False


def test_every_cell_is_stored_once():
    keys = [tuple(row[k] for k in expected.KEY) for row in STORED]
    cells = {(w, n, p) for w in WORKLOADS for n in RUNNING for p in POLICIES}
    assert set(keys) == cells and len(keys) == len(cells)


@pytest.mark.parametrize("running", [16, 64])
def test_shared_prefixes_under_the_recommended_policy(running):
    cell = {
        row["policy"]: row
        for row in STORED
        if (row["workload"], row["running"]) == ("shared", running)
    }
    assert cell["publish"]["ratio_to_stock"] >= 0.99
    assert cell["publish"]["cached_tokens"] >= cell["flush"]["cached_tokens"]
    assert not cell["stock"]["mapping_stable"]


def test_every_policy_keeps_the_mapping_in_every_cell():
    unstable = {row["policy"] for row in STORED if not row["mapping_stable"]}
    assert unstable == {"stock"}
    fixed = [row for row in STORED if row["policy"] in WEAVING]
    assert all(row["stale_captures"] == row["policy_fallbacks"] == 0 for row in fixed)
    ahead = [row for row in fixed if row["policy"] == "publish"]
    assert all(row["early_results"] == 0 for row in ahead)


def test_ratios_are_taken_within_a_repetition_and_merged_with_their_spread():
    def row(policy, repetition, rate, stable=True):
        keys = dict(workload="w", running=1, clock="wall", repetition=repetition)
        return keys | dict(policy=policy, tok_per_s=rate, mapping_stable=stable)

    rows = [row("stock", 0, 100.0), row("stock", 1, 200.0)]
    rows += [row("flush", 0, 90.0), row("flush", 1, 190.0, stable=False)]
    stock, flush = table.merged(rows)
    assert stock["ratio_spread"] == [1.0, 1.0]
    assert flush["ratio_spread"] == [0.9, 0.95] and flush["ratio_to_stock"] == 0.925
    assert flush["repetition"] == 2 and flush["mapping_stable"] is False
    assert table.with_ratios([row("flush", 0, 1.0)])[0]["ratio_to_stock"] is None


def test_the_table_has_a_line_per_row_and_says_what_the_clocks_are_for():
    wall = STORED[0] | {"clock": "wall", "host_us_per_turn": 1000.0}
    wall |= {"ratio_spread": [0.98, 1.02]}
    costs = [{"pending": "nothing", "ns": 100.0, "peak_bytes": 0}]
    lines = table.lines([*STORED, wall], costs, H200)
    text = "\n".join(lines)
    assert sum(line.startswith(tuple(WORKLOADS)) for line in lines) == len(STORED) + 1
    assert "(0.980..1.020)" in text and "100 ns, 0.010 % of a turn" in text
    assert H200.name in text
    assert all(use in text for use in table.USES)
    assert "%" not in table.lines(STORED, costs, H200)[-1]


def test_the_summary_has_a_column_per_policy_of_the_rows():
    other = [
        row | {"policy": "another", "cached_tokens": 1234567}
        for row in STORED
        if row["policy"] == "flush"
    ]
    head, _, *body = summary.lines([*STORED, *other], ["shared"])
    columns = ["workload", "running", "stock", *(f"`{p}`" for p in POLICIES[1:])]
    assert head == f"| {' | '.join([*columns, '`another`'])} |"
    rows = [line for line in body if line.startswith("|")]
    assert [row.split(" | ")[1] for row in rows] == ["16", "64"]
    assert all(row.endswith(", 1,234,567 |") for row in rows)
    # Of the policies only stock changes a row under a decode.
    assert all(row.count("*") == row.split(" | ")[2].count("*") == 1 for row in rows)
    assert H200.name in body[-1]


def test_the_summary_without_a_name_has_every_workload():
    lines = summary.lines(STORED, [])
    shown = {line.split(" | ")[0].lstrip("| ") for line in lines if line[:1] == "|"}
    assert set(WORKLOADS) <= shown


def test_the_trace_opens_with_a_process_per_policy(measured, tmp_path):
    timelines = {policy: measured[policy][0][1] for policy in POLICIES}
    trace.write(tmp_path / "trace.json", timelines)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == list(POLICIES)
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == sum(len(line.spans) for line in timelines.values())
    assert all(e["dur"] >= 0 and e["tid"] in (1, 2) for e in slices)


def test_the_picture_shows_bubbles_where_the_policy_waits(measured, tmp_path):
    from PIL import Image, ImageColor

    bubbles = ImageColor.getrgb(picture.COLOURS["bubble"])

    def red(policy):
        file = tmp_path / f"{policy}.png"
        picture.draw(file, {policy: measured[policy][0][1]})
        image = Image.open(file)
        image = image.crop((0, picture.TOP, *image.size))
        return sum(n for n, colour in image.getcolors(1 << 20) if colour == bubbles)

    assert red("overlap-off") > red("flush") > red("late") > red("publish")


def test_bubbles_are_what_lies_between_launches():
    timeline = t.Timeline()
    for start, end in [(0, 5), (5, 9), (12, 20)]:
        timeline.add(t.DEVICE, t.DECODE, start, end)
    (bubble,) = picture.bubbles(timeline)
    assert (bubble.start_ns, bubble.end_ns) == (9, 12)


def test_workloads_are_the_same_every_time_and_differ_from_each_other():
    for name, clients in WORKLOADS.items():
        assert clients(16) == clients(16)
        sent = sum(len(turns) for turns in clients(16))
        assert sent == requests_of(16), name
    assert len({str(clients(4)) for clients in WORKLOADS.values()}) == len(WORKLOADS)


def test_a_chat_turn_holds_what_was_said_before():
    class Answered:
        def __init__(self):
            self.outputs = {}

    class Meter:
        def turn(self, arriving):
            for request in arriving:
                done = type("O", (), {"finish": {"type": "length"}, "tokens": [7, 7]})
                engine.outputs[request.rid] = done
                sent.append(request)

    engine, sent = Answered(), []
    for item in play([WORKLOADS["chat"](1)[0][:2]], Meter(), engine):
        item(engine)
    first, second = sent
    assert second.prompt[: len(first.prompt) + 2] == (*first.prompt, 7, 7)


def untraced_costs():
    # What measures this suite's coverage allocates, too.
    sys.settrace(None)
    return check_cost.measure(1)


def untraced_costs_of(policy):
    sys.settrace(None)
    return check_cost.measure_briefly(policy, 1)


def test_the_check_allocates_nothing_but_the_iterator_of_its_loop(in_child):
    costs = in_child(untraced_costs, env=environment("flush"), timeout_s=300.0)
    peaks = [cost["peak_bytes"] for cost in costs]
    assert peaks[:3] == [0, 0, 0]
    prefills = peaks[3 : 3 + len(check_cost.SIZES)]
    assert 0 < max(prefills) <= 64


def reads_of(requests):
    """How often the check reads an attribute of a pending batch's requests."""
    from sglang_mamba_boundary.fix import has_pending_mamba_publication

    reads = []

    class Untracked:
        kv = type("Kv", (), {"mamba_last_track_seqlen": None})

        def __getattribute__(self, name):
            reads.append(name)
            return object.__getattribute__(self, name)

    scheduler, extend, _ = check_cost._with_pending()
    extend.reqs = [Untracked() for _ in range(requests)]
    scheduler.result_queue = [(extend, None)]
    assert has_pending_mamba_publication(scheduler) is False
    return len(reads)


def test_the_check_looks_at_each_request_once(in_child):
    """Its work is linear; its time is that and what the CPU's caches add."""
    env = environment("flush")
    for requests in (1, 64, 4096):
        assert in_child(reads_of, requests, env=env, timeout_s=300.0) == requests


@pytest.mark.parametrize("policy", WEAVING[1:])
def test_no_policy_allocates_where_nothing_is_published(in_child, policy):
    env = environment(policy)
    costs = in_child(untraced_costs_of, policy, env=env, timeout_s=300.0)
    assert [cost["peak_bytes"] for cost in costs] == [0, 0]
    assert all(policy in cost["pending"] for cost in costs)
