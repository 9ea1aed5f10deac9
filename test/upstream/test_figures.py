"""Every figure of the description is the record's, and nothing is claimed that was not
run: boxes are ticked for what the command has seen."""

import dataclasses
import json
import re

import pytest
from scratch import REPOSITORY

from upstream import records
from upstream.description import description
from upstream.evidence import Evidence
from upstream.trial import Tests, Trial

# A name has no figure of its own: `sha256`, N+1, the name of a version or of a width.
NUMBER = re.compile(r"(?<![\w.+-])\d[\d,]*(?:\.\d+)?(?![\w.])")


def load(file):
    return json.loads((REPOSITORY / file).read_text())


@pytest.fixture
def tried(evidence):
    """As if the tests had run on the few files."""
    tests = Tests(fail_before=11, pass_before=22, pass_after=33)
    # The name of a hook has a number that is no figure.
    trial = dataclasses.replace(evidence.trial, tests=tests, lint=("ruff format",))
    return dataclasses.replace(evidence, trial=trial)


def other(value):
    """The same shape with every number another, that of an answer's digest too."""
    if isinstance(value, str) and re.fullmatch(r"\d+ [0-9a-f]{4}", value):
        tokens, digest = value.split()
        return f"{int(tokens) + 7} x{digest}"
    if isinstance(value, dict):
        return {key: other(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [other(inner) for inner in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return value + 7 if isinstance(value, int) else value + 0.777


def with_other_numbers(evidence: Evidence) -> Evidence:
    kept = evidence.records
    tests = Tests(*(number + 7 for number in (11, 22, 33)))
    return dataclasses.replace(
        evidence,
        trial=dataclasses.replace(evidence.trial, tests=tests),
        records=records.Records(
            simulation=other(kept.simulation),
            smoke=other(kept.smoke),
            benchmark=[
                other(row) | {"running": row["running"]} for row in kept.benchmark
            ],
        ),
    )


def figures(text: str) -> list[str]:
    """All numbers but those that name a column, or a row by its running requests."""
    lines = [line for line in text.splitlines() if not line.startswith("| config")]
    return [
        number
        for line in lines
        for number in NUMBER.findall(re.sub(r"^\| \w+ \| \d+ \|", "", line))
    ]


def test_no_figure_is_typed_by_hand(tried):
    """Other records give another number in every place where one stands."""
    before = figures(description(tried))
    after = figures(description(with_other_numbers(tried)))
    assert len(before) == len(after) > 100
    # How many configurations a record has is a count of them, which stay.
    count = str(len(tried.records.simulation[0]["configurations"]))
    same = {x for x, y in zip(before, after) if x == y} - {count}
    assert same == set()


def test_figures_of_the_simulation(evidence):
    text = description(evidence)
    runs = [r for r in load(records.SIMULATION).values() if r["policy"] == "flush"]
    again, run = sorted(runs, key=lambda run: run["seeds"])
    cells = [f"{run[name]:,}" for name in ("seeds", "turns", "requests")]
    rest = f"{run['violations']} | {again['seeds']} seeds |"
    assert f"| {' | '.join(cells)} | {rest}" in text


def test_figures_of_the_servers(evidence):
    text = description(evidence)
    smoke = load(records.SMOKE)
    for row in smoke["servers"]:
        (line,) = [
            line
            for line in text.splitlines()
            if line.startswith(
                f"| {row['configuration']} | {'yes' if row['slots_matter'] else 'no'} |"
            )
        ]
        for figure in (*row["answers"], f"{row['shared_difference']:.6f}"):
            assert f"| {figure} " in line
    for name, count in smoke["load"].items():
        if name not in ("clients", "seconds"):
            assert f"{name} {count:,}" in text
    assert f"All {smoke['expectations']} expectations" in text


def test_figures_of_the_benchmark(evidence):
    text = description(evidence)
    shown = 0
    for row in load(records.BENCHMARK):
        ratio = f"{100 * row['ratio_to_stock']:.1f} %, {100 * row['device_idle']:.1f} %"
        lines = [
            line
            for line in text.splitlines()
            if line.startswith(f"| {row['workload']} | {row['running']} |")
        ]
        if lines and row["policy"] in records.POLICIES:
            assert f"{ratio}, {row['cached_tokens']:,}" in lines[0]
            shown += 1
    assert shown == 6 * 2 * len(records.POLICIES)
    assert "publish`" not in text.partition("## Speed")[2]


def boxes(text: str) -> dict[str, bool]:
    found = re.findall(r"^- \[( |x)\] (\w+)", text, re.MULTILINE)
    return {word: mark == "x" for mark, word in found}


def test_what_did_not_run_is_said_and_not_ticked(evidence):
    text = description(evidence)
    assert boxes(text) == {
        "Formatted": True,
        "Unit": False,
        "Documentation": False,
        "Accuracy": False,
        "Code": False,
    }
    assert "on the commit above: not run, its package cannot be imported" in text
    assert "Nothing below was run on a GPU" in text
    assert "No speed was measured on a GPU" in text
    assert any("tests not run" in note for note in evidence.notes)


def test_what_ran_is_ticked_with_its_numbers(tried):
    text = description(tried)
    assert boxes(text)["Unit"]
    assert "11 fail by an assertion and 22 pass, with it 33 pass" in text


def test_lint_that_fails_is_said_and_not_ticked(tried):
    trial = Trial("title", tried.trial.tests, (), "isort")
    text = description(dataclasses.replace(tried, trial=trial))
    assert not boxes(text)["Formatted"] and "not passed: isort" in text


def test_the_whole_checkout_has_its_tests_run(made):
    kept = json.loads((made / "record.json").read_text())
    tests = kept["trial"]["tests"]
    assert tests["not_run"] == "" and tests["fail_before"] > 10
    assert tests["pass_after"] == tests["fail_before"] + tests["pass_before"]
    text = (made / "DESCRIPTION.md").read_text()
    assert boxes(text)["Unit"] and boxes(text)["Formatted"]
    assert f"{tests['fail_before']} fail by an assertion" in text
