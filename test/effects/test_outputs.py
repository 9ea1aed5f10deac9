"""Everything that a request is answered with, woven against overlap disabled: the
messages with their tokens, finish reasons and logprobs, bit for bit."""

import json
import re

import pytest
from traffic import (
    ANSWERED,
    LOGPROB_IDS,
    REGEX,
    SCHEMA,
    abort,
    chunked_logprobs,
    eos,
    grammar,
    late,
    lengths,
    logit_bias,
    logprobs,
    min_new_tokens,
    own,
    parallel_samples,
    plain,
    stop_strings,
    stop_tokens,
    streaming,
)

from sglang_cpu_testbed.request import same_bits
from sglang_cpu_testbed.scenarios import (
    CONFIGURATIONS,
    FIXED,
    NO_OVERLAP,
    STOCK,
    WOVEN,
)

FEATURES = [*ANSWERED, chunked_logprobs]
# Requests that are consumed early and decoded.
# Not with a grammar: a thread compiles it, and decides in which turn its request arrives.
EARLY = [
    (plain, "twin 1"),
    (plain, "twin 2"),
    (lengths, "length 2"),
    (lengths, "lone length 2"),
    (stop_tokens, "stop at 2"),
    (stop_strings, "string at 2"),
    (eos, "eos ends"),
    (min_new_tokens, "least 2"),
    (logprobs, "logprobs of all"),
    (streaming, "stream 4"),
    (logit_bias, "bias"),
    (chunked_logprobs, "chunked logprobs"),
]
by_feature = pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.__name__)
by_configuration = pytest.mark.parametrize(
    "configuration", CONFIGURATIONS, ids=lambda c: c.name
)


def messages(outputs):
    return {rid: output.messages for rid, output in outputs.items()}


@by_feature
@pytest.mark.parametrize("fixed", FIXED, ids=lambda c: c.name)
def test_fixed_answers_as_without_overlap(seen, feature, fixed):
    assert messages(seen(fixed, feature)) == messages(seen(NO_OVERLAP, feature))


@by_feature
def test_stock_answers_so_too(seen, feature):
    assert messages(seen(STOCK, feature)) == messages(seen(NO_OVERLAP, feature))


@pytest.mark.parametrize(
    "feature, rid", EARLY, ids=lambda x: x if isinstance(x, str) else x.__name__
)
def test_the_first_output_was_known_to_the_first_decode(seen, feature, rid):
    assert seen(WOVEN, feature)[rid].known == [1]
    assert seen(STOCK, feature)[rid].known == [0]


@pytest.mark.parametrize(
    "feature, rid", [(plain, "twin 2"), (parallel_samples, "n 2"), (late, "late 2")]
)
def test_free_running_requests_are_the_oracles(seen, oracle, feature, rid):
    output = seen(WOVEN, feature)[rid]
    prompt = own(re.sub(" 2$", "", rid) if feature is not late else rid)
    tokens, values = oracle.greedy(prompt, 6)
    assert output.tokens == tokens
    assert same_bits(output.logprobs, values)


@by_configuration
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_lengths(seen, configuration, length):
    output = seen(configuration, lengths)[f"length {length}"]
    assert len(output.tokens) == length
    assert output.finish == {"type": "length", "length": length}


@by_configuration
@pytest.mark.parametrize(
    "kind, feature", [("stop", stop_tokens), ("string", stop_strings)]
)
@pytest.mark.parametrize("position", [1, 2, 3])
def test_stops(seen, free, configuration, kind, feature, position):
    rid = f"{kind} at {position}"
    output = seen(configuration, feature)[rid]
    assert output.tokens == free(rid)[:position]
    assert output.finish["type"] == "stop"


@by_configuration
def test_a_stop_string_over_two_tokens(seen, free, configuration):
    output = seen(configuration, stop_strings)["string streamed"]
    assert output.tokens == free("string streamed")[:3]
    # A text that may become the stop string is held back.
    assert output.chunks == [output.tokens[:1], output.tokens[1:]]


@by_configuration
def test_eos(seen, free, configuration):
    outputs = seen(configuration, eos)
    assert outputs["eos ends"].tokens == free("eos")[:3]
    assert outputs["eos ignored"].tokens == free("eos")[:6]


@by_configuration
@pytest.mark.parametrize("least", [1, 2, 4])
def test_min_new_tokens(seen, free, configuration, least):
    rid = f"least {least}"
    output = seen(configuration, min_new_tokens)[rid]
    assert len(output.tokens) >= least
    assert free(rid)[0] not in output.tokens[:least]


@by_configuration
def test_logprobs_of_outputs(seen, oracle, configuration):
    for rid in ("logprobs of outputs", "logprobs of all"):
        output = seen(configuration, logprobs)[rid]
        (message,) = output.messages
        tops = message.logprobs["output_top_logprobs_val"]
        ids = message.logprobs["output_token_ids_logprobs_val"]
        assert len(tops) == len(ids) == len(output.tokens) == 6
        for i in range(6):
            values = oracle.logits([*own(rid), *output.tokens[:i]]).log_softmax(-1)
            assert same_bits(list(tops[i]), values.topk(4).values.tolist())
            assert same_bits(list(ids[i]), values[LOGPROB_IDS].tolist())


@by_configuration
@pytest.mark.parametrize(
    "rid, start", [("logprobs of all", 0), ("logprobs of some", 100)]
)
def test_logprobs_of_the_prompt(seen, oracle, configuration, rid, start):
    (message,) = seen(configuration, logprobs)[rid].messages
    prompt, values = own(rid), message.logprobs["input_token_logprobs_val"]
    assert len(values) == len(prompt) - start
    for i in (1, 7, len(values) - 1):
        position = start + i
        expected = oracle.logits(prompt[:position]).log_softmax(-1)[prompt[position]]
        assert values[i] == float(expected)


@by_configuration
@pytest.mark.parametrize(
    "rid, chunks",
    [
        ("stream 1", [1] * 10),
        ("stream 4", [1, 4, 4, 1]),
        ("stream stop", [1, 4]),
        ("stream single", [1]),
    ],
)
def test_chunks(seen, free, configuration, rid, chunks):
    output = seen(configuration, streaming)[rid]
    assert [len(chunk) for chunk in output.chunks] == chunks
    assert output.tokens == free(rid)[: sum(chunks)]


@by_configuration
def test_grammars(seen, configuration):
    outputs = seen(configuration, grammar)
    texts = {rid: "".join(map(chr, outputs[rid].tokens[:-1])) for rid in outputs}
    assert re.fullmatch(REGEX, texts["regex"])
    assert json.loads(texts["schema"])["a"] in SCHEMA["properties"]["a"]["enum"]


@pytest.mark.parametrize("rid", ["aborted", "lone aborted"])
def test_an_abort_while_the_prefill_is_pending(seen, free, rid):
    """Without overlap nothing is pending: the abort then comes a step later."""
    outputs = {c: seen(c, abort)[rid] for c in CONFIGURATIONS}
    assert outputs[WOVEN].messages == outputs[STOCK].messages
    assert outputs[WOVEN].tokens == free(rid)[:1]
    assert outputs[NO_OVERLAP].tokens == free(rid)[:2]
    assert (
        outputs[WOVEN].finish["type"] == outputs[NO_OVERLAP].finish["type"] == "abort"
    )


def test_an_abort_leaves_the_others_alone(seen, free):
    outputs = {c: seen(c, abort)["abort not"].messages for c in CONFIGURATIONS}
    assert outputs[WOVEN] == outputs[STOCK] == outputs[NO_OVERLAP]
    assert outputs[WOVEN][0].tokens == free("abort not")[:6]


def test_a_request_finished_by_its_early_result_is_not_decoded(seen):
    """Stock SGLang decodes it once and drops the result."""
    finished = [
        (stop_tokens, "stop at 1"),
        (stop_strings, "string at 1"),
        (abort, "lone aborted"),
    ]
    for feature, rid in finished:
        assert seen(STOCK, feature)[rid].known == [0]
        assert seen(WOVEN, feature)[rid].known == []
