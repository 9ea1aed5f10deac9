"""The demonstration: the race as captured rows, the fix, the slot switch, and that
it says no when an expectation does not hold."""

import subprocess
import sys

import pytest

from sglang_cpu_testbed import demo
from sglang_cpu_testbed.capture import Row, stale_steps
from sglang_cpu_testbed.scenarios import (
    NO_OVERLAP,
    SCENARIOS,
    STOCK,
    TOGETHER,
    WARM,
    WOVEN,
)


def found(run):
    return [(s.row.rid, s.row.step, s.differ, s.first) for s in stale_steps(run.rows)]


def test_stock_reads_stale_slots_once(runs):
    assert found(runs[False][STOCK, TOGETHER]) == [("second", 1, 384, 0)]
    assert found(runs[False][STOCK, WARM]) == [("branch", 1, 256, 0)]


@pytest.mark.parametrize("configuration", [WOVEN, NO_OVERLAP], ids=lambda c: c.name)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_the_others_never_do(runs, configuration, scenario):
    assert found(runs[False][configuration, scenario]) == []


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_content_alone_hides_the_fault(runs, scenario):
    plain = runs[False]
    for configuration in (STOCK, WOVEN):
        pair = plain[configuration, scenario], plain[NO_OVERLAP, scenario]
        assert demo.same_output(*pair)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_slot_dependence_shows_the_fault_in_one_step(runs, scenario):
    stock, reference = runs[True][STOCK, scenario], runs[True][NO_OVERLAP, scenario]
    stale_rid = scenario.watched[-1]
    size, step = demo.largest_difference(stock, reference, stale_rid)
    assert -step == 1
    assert 1e-3 < size < 1e-1
    woven = runs[True][WOVEN, scenario]
    assert demo.same_slots(woven, reference) and demo.same_output(woven, reference)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_the_slot_switch_moves_logprobs_a_little(runs, scenario):
    off, on = runs[False][NO_OVERLAP, scenario], runs[True][NO_OVERLAP, scenario]
    assert off.outputs.keys() == on.outputs.keys()
    assert not demo.same_output(off, on)


def test_the_report_holds_and_fits(runs, capsys):
    assert demo.report(runs[False], runs[True]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
    assert (
        lines[-1] == f"{len(expected(runs))} of {len(expected(runs))} expectations hold"
    )


def expected(runs):
    return list(demo.expectations(runs[False], runs[True]))


def test_the_report_says_what_failed(runs, capsys):
    unwoven = {
        slots_matter: dict(of) | {(WOVEN, s): of[STOCK, s] for s in SCENARIOS}
        for slots_matter, of in runs.items()
    }
    assert demo.report(unwoven[False], unwoven[True]) == 1
    printed = capsys.readouterr().out
    line = "FAILED: rows of woven engine, together: expected stable, found stale"
    assert line in printed.splitlines()


def test_the_report_fails_when_stock_is_not_stale(runs, capsys):
    fixed = {
        slots_matter: dict(of) | {(STOCK, s): of[WOVEN, s] for s in SCENARIOS}
        for slots_matter, of in runs.items()
    }
    assert demo.report(fixed[False], fixed[True]) == 1
    assert "rows of stock engine, warm: expected stale, found stable" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "name, text",
    [
        ("ENGINE_VERSION", "needs sglang 0.0.0, found 0.5.23"),
        ("entry_points", "plugin"),
    ],
)
def test_what_is_missing_is_said_before_anything_runs(monkeypatch, capsys, name, text):
    values = {"ENGINE_VERSION": "0.0.0", "entry_points": lambda **_: ()}
    monkeypatch.setattr(demo, name, values[name])
    assert demo.main() == 1
    printed = capsys.readouterr()
    assert text in printed.err and printed.out == ""


def test_importing_the_demonstration_imports_no_engine():
    code = "import sys, sglang_cpu_testbed.demo; print({'torch', 'sglang'} & set(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == "set()\n"


def row(rid, attempt, step, slots):
    return Row(rid, attempt, step, "DECODE", tuple(slots), 3)


def test_stale_steps_compares_prompt_slots_of_one_attempt():
    rows = [
        row("a", 1, 1, [7, 2, 9, 10]),
        row("b", 1, 1, [4, 5, 6, 11]),
        row("a", 1, 2, [1, 2, 3, 10, 12]),
        row("b", 1, 2, [4, 5, 6, 13, 14]),
        row("a", 2, 1, [20, 21, 22, 23]),
    ]
    (stale,) = stale_steps(rows)
    assert (stale.row, stale.differ, stale.first) == (rows[0], 2, 0)
