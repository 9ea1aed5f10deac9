"""Which token each decode step's penalties count, and what that gives.

Overlap is one step behind: when decode step k is built, output k is pending, and
the token at the last committed position is counted: the prompt's last one for the
first step, output k-1 afterwards. So each token is counted once. Stock SGLang takes
the newest token it knows instead, which is the same unless nothing is pending.
"""

from collections import Counter

import pytest
from penalised import penalised
from traffic import (
    LENGTH,
    PENALTIES,
    RETRACKED,
    UNTRACKED,
    own,
    penalties,
    penalties_and_prefills,
    penalties_chunked,
    penalties_mixed,
    penalties_preempted,
    penalties_retracted,
)

from sglang_cpu_testbed.request import same_bits
from sglang_cpu_testbed.scenarios import FIXED, NO_OVERLAP, STOCK, WOVEN, Configuration

WOVEN_NO_OVERLAP = Configuration(
    "woven, overlap disabled", WOVEN.boundary, NO_OVERLAP.server_args
)

# (feature, request, prompt length, kind of penalty)
UNDISTURBED = [
    (penalties, f"{kind} {how}", length, kind)
    for kind in PENALTIES
    for how, length in (("alone", LENGTH), ("short", UNTRACKED))
] + [(penalties_chunked, f"{kind} chunked", 400, kind) for kind in PENALTIES]
DISTURBED = [
    (penalties_and_prefills, f"{kind} {how} a prefill", LENGTH, kind)
    for kind in PENALTIES
    for how in ("before", "in")
]
RESTARTED = [
    (
        penalties_retracted,
        f"{kind} retracted",
        RETRACKED if kind == "frequency" else LENGTH,
        kind,
    )
    for kind in PENALTIES
] + [(penalties_preempted, f"low {i}", LENGTH, "frequency") for i in (1, 2)]
MIXED = [(penalties_mixed, f"{kind} mixed", LENGTH, kind) for kind in PENALTIES]
ALL = UNDISTURBED + DISTURBED + RESTARTED + MIXED


def by_request(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case[1])


@pytest.fixture
def expected(oracle):
    """What the oracle gives for an output's own prefills, a step behind or not."""

    def expected(output, case, behind):
        _, rid, length, kind = case
        return penalised(
            oracle,
            own(rid, length),
            len(output.tokens),
            output.prefilled,
            behind,
            PENALTIES[kind],
        )

    return expected


def check(output, expected):
    tokens, logprobs, counted = expected
    # A step whose result was dropped has counted too.
    completed = [
        steps[: len(wanted)]
        for steps, wanted in zip(output.counted, counted, strict=True)
    ]
    assert completed == counted
    assert output.tokens == tokens
    assert not output.logprobs or same_bits(output.logprobs, logprobs)


by_policy = pytest.mark.parametrize("fixed", FIXED, ids=lambda c: c.name)


@by_policy
@by_request(ALL)
def test_fixed_counts_each_token_once(seen, expected, case, fixed):
    feature, rid, *_ = case
    output = seen(fixed, feature)[rid]
    check(output, expected(output, case, behind=1))


@by_request(ALL)
def test_without_overlap_the_newest_token_is_counted(seen, expected, case):
    feature, rid, *_ = case
    output = seen(NO_OVERLAP, feature)[rid]
    check(output, expected(output, case, behind=0))


@pytest.mark.parametrize("feature", [penalties, penalties_and_prefills])
def test_the_weave_changes_nothing_without_overlap(seen, feature):
    assert seen(WOVEN_NO_OVERLAP, feature) == seen(NO_OVERLAP, feature)


@by_request(UNDISTURBED)
def test_stock_counts_each_token_once_while_a_result_is_pending(seen, expected, case):
    feature, rid, *_ = case
    output = seen(STOCK, feature)[rid]
    assert output.known == [0]
    check(output, expected(output, case, behind=1))


@by_policy
@by_request(UNDISTURBED)
def test_fixed_is_stock_where_stock_counts_each_token_once(seen, case, fixed):
    feature, rid, *_ = case
    assert seen(fixed, feature)[rid].messages == seen(STOCK, feature)[rid].messages


@by_request(DISTURBED)
def test_stock_counts_a_token_twice_behind_a_prefill(seen, expected, case):
    """The fault that an early result would bring is in stock SGLang elsewhere."""
    feature, rid, *_ = case
    output = seen(STOCK, feature)[rid]
    *_, (once,) = expected(output, case, behind=1)
    (counted,) = output.counted
    assert max(Counter(once).values()) == 1
    assert max(Counter(counted).values()) == 2
    assert set(once) - set(counted)


@by_request(UNDISTURBED + DISTURBED)
def test_the_rules_can_be_told_apart(seen, expected, case):
    feature, rid, *_ = case
    output = seen(WOVEN, feature)[rid]
    behind, newest = (expected(output, case, behind=n) for n in (1, 0))
    assert behind[1] != newest[1]


@by_request(MIXED)
def test_they_were_decoded_within_a_mixed_batch(seen, case):
    feature, rid, *_ = case
    assert seen(WOVEN, feature)[rid].mixed


@by_request(RESTARTED)
def test_they_were_prefilled_again(seen, case):
    feature, rid, *_ = case
    for configuration in (WOVEN, NO_OVERLAP):
        output = seen(configuration, feature)[rid]
        assert output.retractions == 1
        assert len(output.prefilled) == len(output.counted) == 2


def test_a_second_prefill_is_consumed_early_too(seen):
    output = seen(WOVEN, penalties_retracted)["frequency retracted"]
    assert output.known == [1, output.prefilled[1] + 1]
