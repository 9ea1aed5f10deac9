"""The registered tests against the woven engine, within this suite's measurement."""

import importlib.util
from pathlib import Path


def woven_outcomes():
    file = Path(__file__).parent.parent / "red_green.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    red_green = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(red_green)
    return red_green.run_tests("woven")


def test_registered_tests_pass_woven(in_child):
    outcomes = in_child(woven_outcomes)
    assert len(outcomes) > 40
    assert {t: o for t, o in outcomes.items() if o != "pass"} == {}
