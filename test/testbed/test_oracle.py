"""The engine against the model as a plain function: whatever the schedule, the
tokens are the same and the logprobs the same bits."""

from dataclasses import replace

import pytest

from sglang_cpu_testbed.capture import Recorder
from sglang_cpu_testbed.engine import Engine
from sglang_cpu_testbed.fork import fork
from sglang_cpu_testbed.request import Request, same_bits
from sglang_cpu_testbed.scenarios import BOUNDARY_SWITCH, prompt

A, B, C = prompt("A", 422), prompt("B", 700), prompt("C", 130)
FOLLOW = "follow"
SETTINGS = {
    "stock": {},
    "overlap off": dict(disable_overlap_schedule=True),
    "chunks of 128": dict(chunked_prefill_size=128),
    "mixed chunks": dict(
        chunked_prefill_size=256, enable_mixed_chunk=True, logprobs=False
    ),
    "pages of 64": dict(page_size=64),
    "lazy buffer": dict(mamba_radix_cache_strategy="extra_buffer_lazy"),
    "no cache": dict(disable_radix_cache=True),
    "bfloat16 pools": dict(dtype="bfloat16"),
    "states at 64 tokens": dict(mamba_track_interval=64),
    "few states": dict(max_mamba_cache_size=20),
}

BURST = [Request("a", A, 12), Request("twin", A, 3), Request("c", C, 70)]
LATER = [
    Request("b", B, 9),
    Request("spliced", A[:300] + B[:300], 5),
    Request("one", A[:200] + C, 1),
]
WARM = [
    Request("again", A, 8),
    Request("longer", B + C, 8),
    Request("shorter", B[:650], 8),
]


def traffic(engine):
    yield BURST
    yield None
    yield from LATER
    while engine.open_rids:
        yield None
    yield WARM
    yield follow_up(engine.outputs["c"].tokens)


def follow_up(answer):
    """A second turn of c, over states that were tracked while it decoded."""
    return Request(FOLLOW, C + tuple(answer) + A[:20], 8)


def case(logprobs=True, **server_args):
    engine = Engine(**server_args)
    recorder = Recorder(engine.scheduler)
    script = traffic(engine)
    outputs = engine.run(script if logprobs else map(without_logprobs, script))
    return outputs, {row.mode for row in recorder.rows}


def without_logprobs(item):
    if isinstance(item, Request):
        return replace(item, logprobs=False)
    return item and [replace(request, logprobs=False) for request in item]


@pytest.fixture(scope="module")
def expected(oracle):
    """Per request the tokens and logprobs of the plain function."""
    requests = BURST + LATER + WARM
    found = {r.rid: oracle.greedy(r.prompt, r.max_new_tokens) for r in requests}
    second = follow_up(found["c"][0])
    found[FOLLOW] = oracle.greedy(second.prompt, second.max_new_tokens)
    return found


@pytest.fixture(scope="module")
def outputs(warmed):
    """Outputs and the modes that decoded, per name of settings, each run once."""
    ran = {}

    def of(name):
        if name not in ran:
            ran[name] = fork(case, env={BOUNDARY_SWITCH: "off"}, **SETTINGS[name])
        return ran[name]

    return of


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_schedule_gives_the_oracle_s_output(outputs, expected, settings):
    found, _ = outputs(settings)
    assert {rid: output.tokens for rid, output in found.items()} == {
        rid: tokens for rid, (tokens, _) in expected.items()
    }
    for rid, (_, logprobs) in expected.items():
        wanted = [] if settings == "mixed chunks" else logprobs
        assert same_bits(found[rid].logprobs, wanted), rid


def test_the_settings_differ_in_what_they_reuse(outputs):
    assert outputs("stock")[0]["again"].cached_tokens == 384
    assert outputs("stock")[0]["longer"].cached_tokens == 640
    assert outputs("no cache")[0]["again"].cached_tokens == 0
    assert outputs("mixed chunks")[1] == {"MIXED", "DECODE"}
    assert outputs("chunks of 128")[0]["twin"].cached_tokens == 384


def test_a_state_tracked_while_decoding_is_reused(outputs):
    # 130 prompt tokens and 70 answers: 192 is a boundary of this interval only.
    assert outputs("stock")[0][FOLLOW].cached_tokens == 128
    assert outputs("states at 64 tokens")[0][FOLLOW].cached_tokens == 192


def test_greedy_output_does_not_collapse(oracle):
    for name in ("x", "y", "z"):
        tokens, logprobs = oracle.greedy(prompt(name, 100), 64)
        assert len(set(tokens)) > 48
        assert len(set(zip(tokens, tokens[1:], strict=False))) == 63
        assert all(-5 < value < -0.1 for value in logprobs)


@pytest.mark.parametrize("position", [0, 1, 99, 198, 199])
def test_every_token_matters(oracle, position):
    tokens = list(prompt("x", 200))
    before = oracle.logits(tokens)
    tokens[position] = (tokens[position] + 1) % 512
    assert not (before == oracle.logits(tokens)).all()


def test_the_order_of_tokens_matters(oracle):
    tokens = list(prompt("x", 200))
    swapped = tokens[:50] + [tokens[51], tokens[50]] + tokens[52:]
    assert not (oracle.logits(tokens) == oracle.logits(swapped)).all()
