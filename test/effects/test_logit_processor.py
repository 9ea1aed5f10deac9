"""A custom logit processor reads its request's outputs when a step is sampled. Under
overlap they are one behind, which no scheduling can repair; woven, the first decode
sees the first output, so the second decode sees as many as the first."""

import pytest
from traffic import logit_processor, own

from sglang_cpu_testbed.request import same_bits
from sglang_cpu_testbed.scenarios import (
    LATE,
    NO_OVERLAP,
    PUBLISHED,
    REBOUND,
    STOCK,
    WOVEN,
)

RID = "processor"
VIEWS = {
    STOCK: [0, 0, 1, 2, 3, 4, 5, 6],
    WOVEN: [0, 1, 1, 2, 3, 4, 5, 6],
    NO_OVERLAP: [0, 1, 2, 3, 4, 5, 6, 7],
}
# No result is processed early where it need not be: nothing moves this row.
VIEWS |= {PUBLISHED: VIEWS[STOCK], LATE: VIEWS[WOVEN], REBOUND: VIEWS[STOCK]}
by_configuration = pytest.mark.parametrize("configuration", VIEWS, ids=lambda c: c.name)


@by_configuration
def test_outputs_seen_by_step(views, configuration):
    assert views(configuration, logit_processor)[RID] == VIEWS[configuration]


def test_woven_never_sees_less_than_stock(views):
    stock, woven = (views(c, logit_processor)[RID] for c in (STOCK, WOVEN))
    assert all(a >= b for a, b in zip(woven, stock, strict=True))
    assert woven != stock


@by_configuration
def test_each_step_is_sampled_from_what_was_seen(seen, views, oracle, configuration):
    from processors import discouragement

    output = seen(configuration, logit_processor)[RID]
    tokens, logprobs = [], []
    for view in views(configuration, logit_processor)[RID]:
        logits = oracle.logits([*own(RID), *tokens])
        logits -= discouragement(tokens[:view], len(logits))
        tokens.append(int(logits.argmax()))
        logprobs.append(float(logits.log_softmax(-1)[tokens[-1]]))
    assert output.tokens == tokens
    assert same_bits(output.logprobs, logprobs)
