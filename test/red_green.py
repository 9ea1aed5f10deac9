"""Runs the registered tests on the unmodified engine and on the woven one.

The tests that state the fault must fail on the first, by an assertion, and all
must pass on the second; `red_green.toml` lists both kinds. A test in neither
list, or in the wrong one, is an error: `python test/red_green.py`.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

HERE = Path(__file__).parent
REGISTERED = HERE / "registered"
LISTS = HERE / "red_green.toml"


def run_tests(engine: str) -> dict[str, str]:
    """Outcome per test id, in this process: "pass", "fail", or "error: ..." for
    anything that is not an assertion."""
    if engine == "woven":
        from sglang_mamba_boundary import Woven, weave

        outcome = weave()
        if not isinstance(outcome, Woven):
            raise SystemExit(f"the engine was not woven: {outcome}")
    suite = unittest.TestSuite()
    for file in sorted(REGISTERED.rglob("test_*.py")):
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
    ids = [test.id() for test in _flatten(suite)]
    result = unittest.TestResult()
    suite.run(result)
    outcomes = dict.fromkeys(ids, "pass")
    for test, trace in result.failures + result.errors:
        last = trace.strip().splitlines()[-1]
        failed = "AssertionError" in trace
        # A subtest is reported under its own id; it fails its test.
        name = getattr(test, "test_case", test).id()
        outcomes[name] = "fail" if failed else f"error: {last}"
    outcomes.update((test.id(), "error: skipped") for test, _ in result.skipped)
    return outcomes


def _flatten(suite):
    for test in suite:
        yield from _flatten(test) if isinstance(test, unittest.TestSuite) else [test]


def run_in_process(engine: str) -> dict[str, str]:
    """`run_tests` in an interpreter of its own, since a weave is process-wide."""
    print(f"running the registered tests on the {engine} engine", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "outcomes.json")
        command = [sys.executable, __file__, "--run", engine, "--report", report]
        environ = {"OMP_NUM_THREADS": "1", **os.environ}
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        if done.returncode or not report.exists():
            raise SystemExit(f"{engine}: exit {done.returncode}\n{done.stderr[-4000:]}")
        return json.loads(report.read_text())


def compare(stock: dict[str, str], woven: dict[str, str], lists: dict) -> list[str]:
    """Every way in which the outcomes differ from the lists, one line each."""
    expected = dict.fromkeys(lists["must_fail_on_stock"], "fail")
    expected |= dict.fromkeys(lists["must_pass_on_both"], "pass")
    problems = [f"{t}: stands in no list" for t in stock if t not in expected]
    for test, outcome in expected.items():
        found = stock.get(test, "not run"), woven.get(test, "not run")
        for engine, seen, wanted in zip(
            ("stock", "woven"), found, (outcome, "pass"), strict=True
        ):
            if seen != wanted:
                problems.append(f"{test}: {engine} must {wanted}, found {seen}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", choices=("stock", "woven"), help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        options.report.write_text(json.dumps(run_tests(options.run)))
        return

    lists = tomllib.loads(LISTS.read_text())
    stock, woven = run_in_process("stock"), run_in_process("woven")
    problems = compare(stock, woven, lists)
    for problem in problems:
        print(problem)
    if problems:
        raise SystemExit(f"{len(problems)} outcomes differ from {LISTS.name}")
    print(
        f"stock engine: {len(lists['must_fail_on_stock'])} tests fail as they must, "
        f"{len(lists['must_pass_on_both'])} pass; woven engine: {len(woven)} pass"
    )


if __name__ == "__main__":
    main()
