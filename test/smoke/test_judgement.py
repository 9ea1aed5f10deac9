"""The smoke's judgement: right answers pass, and each wrong one is found."""

from dataclasses import replace

import pytest

from sglang_cpu_testbed.scenarios import NO_OVERLAP, STOCK, WOVEN
from sglang_cpu_testbed.smoke.asks import Answer, Answers, largest_difference
from sglang_cpu_testbed.smoke.judgement import exactly, of_each, table

FIXED = Answer(list(range(128)), [-1.0] * 128, 0, "length")
STOP = Answer([5, 6, 1], [-1.0, -2.0, -3.0], 0, "stop")
BRANCH = Answer([7, 8], [-1.0, -2.0], 0, "length")
SHIFTED = replace(BRANCH, logprobs=[-1.0, -2.25])


def warmed(cold: Answer) -> list[Answer]:
    return [cold] + [replace(cold, cached_tokens=384)] * 2


RIGHT = Answers(warmed(FIXED), warmed(STOP), BRANCH)
STALE = replace(RIGHT, branch=SHIFTED)


def failed(asked, slots_matter=False) -> list[str]:
    checks = [*of_each(asked, ""), *exactly(asked, slots_matter)]
    return [one.subject for one in checks if not one.holds]


def all_like(answers: Answers) -> dict:
    return {one: answers for one in (NO_OVERLAP, STOCK, WOVEN)}


def test_right_answers_pass():
    assert failed(all_like(RIGHT)) == []
    assert failed(all_like(RIGHT) | {STOCK: STALE}, slots_matter=True) == []


def test_a_stock_engine_that_is_not_stale_where_slots_matter_is_found():
    found = failed(all_like(RIGHT), slots_matter=True)
    assert found == [
        "answers of stock engine and overlap disabled, slots matter",
        "answers of stock engine and woven engine, shared, slots matter",
    ]


@pytest.mark.parametrize("slots_matter", [False, True])
def test_a_woven_engine_that_is_stale_is_found(slots_matter):
    asked = all_like(RIGHT) | {WOVEN: STALE}
    assert any(
        subject.startswith("answers of woven engine and overlap disabled")
        for subject in failed(asked, slots_matter)
    )


def test_where_slots_matter_warm_answers_are_compared_under_overlap():
    runs = warmed(FIXED)
    runs[1] = replace(runs[1], logprobs=[-1.5] * 128)
    moved = replace(RIGHT, fixed=runs)
    stale = replace(STALE, fixed=runs)
    asked = {NO_OVERLAP: RIGHT, STOCK: stale, WOVEN: moved}
    assert failed(asked, slots_matter=True) == []
    (subject,) = failed(asked | {WOVEN: RIGHT}, slots_matter=True)
    assert (
        subject == "answers of stock engine and woven engine but shared, slots matter"
    )


@pytest.mark.parametrize(
    "kind, change, subject",
    [
        ("fixed", {"cached_tokens": 320}, "cached tokens of woven engine, fixed"),
        ("fixed", {"tokens": [1, 2]}, "lengths of woven engine"),
        ("stop", {"cached_tokens": 0}, "cached tokens of woven engine, stop"),
        ("stop", {"finish": "length"}, "ends of woven engine"),
        ("stop", {"tokens": [5, 7, 1]}, "stop of woven engine, warm"),
        ("fixed", {"logprobs": [-1.5] * 128}, "cold/warm of woven engine"),
    ],
)
def test_a_wrong_warm_answer_is_found(kind, change, subject):
    runs = list(getattr(RIGHT, kind))
    runs[2] = replace(runs[2], **change)
    assert subject in failed(all_like(RIGHT) | {WOVEN: replace(RIGHT, **{kind: runs})})


def test_the_table_shows_what_was_compared():
    lines = table(all_like(RIGHT) | {STOCK: STALE}).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "stock engine",
        "woven engine",
        "overlap disabled",
    ]
    assert lines[1].endswith("0 384 384      3 3 3        0.000000   0.250000")
    assert lines[2].endswith("0.000000   0.000000")


def test_logprobs_are_compared_up_to_the_first_other_token():
    other = Answer([7, 9], [-1.5, -9.0], 0, "length")
    assert largest_difference(BRANCH, other) == 0.5
