"""The rows of docs/smoke.json are what servers and schedulers answer here and now, and
nothing else is recorded than a smoke that holds."""

import importlib.util
import json
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from in_process import ask_here
from test_judgement import RIGHT, STALE, all_like
from test_ledger import right

from sglang_cpu_testbed import ENGINE_VERSION, SLOT_SWITCH
from sglang_cpu_testbed.scenarios import (
    BOUNDARY_SWITCH,
    CONFIGURATIONS,
    NO_OVERLAP,
    STOCK,
    WOVEN,
)
from sglang_cpu_testbed.smoke.__main__ import _report
from sglang_cpu_testbed.smoke.asks import ask
from sglang_cpu_testbed.smoke.record import recorded, row

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "docs" / "smoke.json").read_text())
CASE_S = 240.0


def stored(configuration, slots_matter) -> dict:
    (found,) = [
        one
        for one in RECORD["servers"]
        if one["configuration"] == configuration.name
        and one["slots_matter"] is slots_matter
    ]
    return found


def test_every_row_is_recorded_once():
    assert RECORD["engine"] == ENGINE_VERSION
    assert len(RECORD["servers"]) == 2 * len(CONFIGURATIONS)
    # The model is exact, so these two are the same: a server here answers for both.
    stock = stored(STOCK, False) | {"configuration": NO_OVERLAP.name}
    assert stock == stored(NO_OVERLAP, False)


@pytest.mark.parametrize("configuration", [NO_OVERLAP, WOVEN], ids=lambda c: c.name)
def test_a_server_answers_as_recorded(wanted, woven, configuration):
    answers = wanted.smoke if configuration is NO_OVERLAP else ask(woven)
    found = row(configuration.name, False, answers, wanted.smoke)
    assert asdict(found) == stored(configuration, False)


@pytest.fixture(scope="module")
def sensitive(in_child):
    """Answers by configuration where slots matter, without a server."""
    return {
        configuration: in_child(
            ask_here,
            configuration,
            env={SLOT_SWITCH: "1", BOUNDARY_SWITCH: configuration.boundary},
            timeout_s=CASE_S,
        )
        for configuration in CONFIGURATIONS
    }


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda c: c.name)
def test_a_scheduler_answers_as_recorded_where_slots_matter(sensitive, configuration):
    answers, reference = sensitive[configuration], sensitive[NO_OVERLAP]
    found = row(configuration.name, True, answers, reference)
    assert asdict(found) == stored(configuration, True)


def written(tmp_path, asked=None, load=None, model=None) -> dict:
    options = Namespace(model=model, json=tmp_path / "smoke.json")
    sensitive = all_like(RIGHT) | {STOCK: STALE}
    _report(options, asked or {False: all_like(RIGHT), True: sensitive}, load, 90.0)
    return json.loads(options.json.read_text())


def test_a_smoke_that_holds_is_kept(tmp_path):
    kept = recorded(written(tmp_path, load=right()), NO_OVERLAP.name)
    assert kept["minutes"] == 1.5 and kept["load"]["clients"] == 64
    differences = {
        (one["configuration"], one["slots_matter"]): one["shared_difference"]
        for one in kept["servers"]
    }
    assert len(differences) == 6
    assert {key: value for key, value in differences.items() if value} == {
        (STOCK.name, True): 0.25
    }


def test_a_smoke_that_does_not_hold_is_not_kept(tmp_path):
    aborted = replace(RIGHT.stop[2], finish="abort")
    wrong = replace(RIGHT, stop=[*RIGHT.stop[:2], aborted])
    asked = {
        False: all_like(RIGHT) | {WOVEN: wrong},
        True: all_like(RIGHT) | {STOCK: STALE},
    }
    with pytest.raises(ValueError, match="found: ends of woven engine"):
        recorded(written(tmp_path, asked, right()), NO_OVERLAP.name)


def test_a_smoke_without_its_load_is_not_kept(tmp_path):
    with pytest.raises(ValueError, match="load None"):
        recorded(written(tmp_path), NO_OVERLAP.name)


def test_the_command_leaves_the_record_alone_if_the_smoke_does_not_hold(
    tmp_path, monkeypatch
):
    spec = importlib.util.spec_from_file_location(
        "smoke_table", ROOT / "scripts" / "smoke_table.py"
    )
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.RECORD, script.WRITTEN = tmp_path / "record.json", tmp_path / "smoke.json"
    monkeypatch.setattr("sys.argv", ["smoke_table.py", "--record"])
    written(tmp_path)
    with pytest.raises(SystemExit, match="record.json stays as it is"):
        script.main()
    assert not script.RECORD.exists()
    written(tmp_path, load=right())
    script.main()
    assert len(script.lines(json.loads(script.RECORD.read_text()))) == 10
