"""The official client and SGLang's benchmark on the woven server, held against the
server with overlap disabled: the reference model is exact, so equal means equal."""

import json

import pytest
from bench import ANSWER_LEN, GROUPS, MEMBERS, bench
from clients import (
    ASKS,
    NEW_TOKENS,
    PENALTY,
    SCHEMA,
    chat,
    client,
    complete,
    messages,
    penalised,
    streamed,
    twice,
    written,
)

from sglang_cpu_testbed.engine import Engine
from sglang_cpu_testbed.request import Request, same_bits
from sglang_cpu_testbed.scenarios import BOUNDARY_SWITCH, STOCK

ALIGNED_LEN = 64


@pytest.mark.parametrize("name", ASKS)
def test_answers_as_without_overlap(wanted, woven, name):
    assert twice(woven, name) == wanted.asks[name]


def test_warm_answers_came_from_the_cache(wanted):
    # The others have asked with the same prompt before their first answer.
    names = [name for name in ASKS if not name.endswith((" n", " stop"))]
    for name in names:
        cold, warm = (answer["usage"] for answer in wanted.asks[name])
        assert _cached(cold) == 0 and _cached(warm) >= 4 * ALIGNED_LEN


def _cached(usage: dict) -> int:
    return (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)


@pytest.mark.parametrize("create", [chat, complete])
def test_streams_say_what_whole_answers_say(woven, create):
    api, name = client(woven), f"streamed {create.__name__}"
    whole = create(api, name)
    said = streamed(create, api, name)
    assert len(said["text"]) > NEW_TOKENS / 2
    assert said["text"] == written(create, whole)
    assert said["finish"] == whole.choices[0].finish_reason == "length"


def test_options_have_their_effect(wanted):
    for kind in ("chat", "completion"):
        (several, _), (one, _), (stop, _) = (
            wanted.asks[f"{kind} {option}"] for option in ("n", "one token", "stop")
        )
        assert len(several["choices"]) == 3
        assert one["usage"]["completion_tokens"] == 1
        assert stop["choices"][0]["finish_reason"] == "stop"
        assert stop["piece"] in stop["free"]
        assert len(_text(stop)) < len(stop["free"])
        assert stop["free"].startswith(_text(stop))


def test_schemas_are_followed(wanted):
    for kind in ("chat", "completion"):
        (answer, _) = wanted.asks[f"{kind} schema"]
        lamp = json.loads(_text(answer))
        assert lamp.keys() == SCHEMA["properties"].keys()
        assert lamp["lamp"] in SCHEMA["properties"]["lamp"]["enum"]


def _text(answer: dict) -> str:
    choice = answer["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def test_penalties_count_as_in_the_stock_loop(wanted, woven, in_child):
    """Under overlap they are one step behind, in the stock engine and with the fix."""
    answer = penalised(woven, "penalised")
    tokens = woven.post("/tokenize", messages=messages("penalised"))["tokens"]
    sampling = {"frequency_penalty": PENALTY, "ignore_eos": True}
    request = Request("penalised", tuple(tokens), NEW_TOKENS, sampling=sampling)
    stock = in_child(_run, request, env={BOUNDARY_SWITCH: STOCK.boundary})
    logprobs = [part["logprob"] for part in _logprobs(answer)]
    assert same_bits(logprobs, stock.logprobs)
    assert not same_bits(
        logprobs, [part["logprob"] for part in _logprobs(wanted.penalised)]
    )


def _run(request: Request):
    return Engine().run([request])[request.rid]


def _logprobs(answer: dict) -> list[dict]:
    return answer["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize("rate", ["6", "inf"])
def test_benchmark_answers_as_without_overlap(wanted, woven, rate, tmp_path):
    assert woven.get("/flush_cache?timeout=60")
    report = bench(woven, rate, tmp_path)
    assert report["completed"] == GROUPS * MEMBERS
    assert report["output_lens"] == [ANSWER_LEN] * (GROUPS * MEMBERS)
    assert not any(report["errors"]) and all(report["generated_texts"])
    assert len(set(report["generated_texts"])) > GROUPS * MEMBERS // 2
    assert report["generated_texts"] == wanted.bench["generated_texts"]
