"""The traffic whose results are compared between the engines: one script for each
feature, run one after the other on a server. Every prompt is new to its server and
long enough to be tracked, unless said."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from sglang_cpu_testbed.request import Request
from sglang_cpu_testbed.scenarios import prompt

LENGTH = 150
NEW_TOKENS = 6
# Too short for a tracked state.
UNTRACKED = 40
# Tracked once more when it is prefilled again with a few outputs.
RETRACKED = 190
EOS = "eos"
PENALTIES = {
    "frequency": {"frequency_penalty": 0.5},
    "presence": {"presence_penalty": 0.5},
    "repetition": {"repetition_penalty": 1.5},
}
REGEX = "(ab|cd)[0-9]{3}"
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"]}
LOGPROB_IDS = [5, 250, 511]

# Gives the greedy output for the prompt of a name.
Free = Callable[[str], list[int]]


def own(name: str, length: int = LENGTH) -> tuple[int, ...]:
    return prompt(f"effects {name}", length)


def ask(rid: str, new_tokens=NEW_TOKENS, length=LENGTH, name=None, **sampling):
    """A request by its sampling fields; those with one ``name`` share a prompt."""
    return Request(rid, own(name or rid, length), new_tokens, sampling=sampling)


def when_idle(engine) -> Iterator[None]:
    while engine.open_rids:
        yield None


def plain(free: Free, engine) -> Iterator:
    yield [ask("alone"), ask("twin 1", name="twin"), ask("twin 2", name="twin")]


def parallel_samples(free: Free, engine) -> Iterator:
    """What SGLang's front end makes of n=2."""
    yield ask("n cached", 0, name="n")
    yield from when_idle(engine)
    yield [ask("n 1", name="n"), ask("n 2", name="n")]


def lengths(free: Free, engine) -> Iterator:
    yield [ask(f"length {n}", n) for n in (0, 1, 2, 3)] + [ask("length free")]
    yield from when_idle(engine)
    yield ask("lone length 1", 1)
    yield from when_idle(engine)
    yield ask("lone length 2", 2)


def stop_tokens(free: Free, engine) -> Iterator:
    stops = {n: free(f"stop at {n}")[n - 1] for n in (1, 2, 3)}
    yield [ask(f"stop at {n}", stop_token_ids=[stops[n]]) for n in stops]


def stop_strings(free: Free, engine) -> Iterator:
    decode = engine.scheduler.tokenizer.decode
    stops = {n: decode(free(f"string at {n}")[n - 1]) for n in (1, 2, 3)}
    streamed = ask("string streamed", stop=decode(free("string streamed")[1:3]))
    requests = [ask(f"string at {n}", stop=stops[n]) for n in stops]
    yield [*requests, replace(streamed, extra={"stream": True})]


def eos(free: Free, engine) -> Iterator:
    yield [ask("eos ends", name=EOS), ask("eos ignored", name=EOS, ignore_eos=True)]


def min_new_tokens(free: Free, engine) -> Iterator:
    for least in (1, 2, 4):
        stop = free(f"least {least}")[0]
        yield ask(f"least {least}", min_new_tokens=least, stop_token_ids=[stop])
        yield from when_idle(engine)


def logprobs(free: Free, engine) -> Iterator:
    top = dict(top_logprobs_num=4, token_ids_logprob=LOGPROB_IDS)
    yield [
        replace(ask("logprobs of outputs"), extra=top),
        replace(ask("logprobs of all"), extra=top | {"logprob_start_len": 0}),
        replace(ask("logprobs of some"), extra=top | {"logprob_start_len": 100}),
        replace(ask("logprobs of one", 1), extra=top | {"logprob_start_len": 100}),
    ]


def streaming(free: Free, engine) -> Iterator:
    stop = {"stop_token_ids": [free("stream stop")[4]]}
    requests = [
        ask("stream 1", 10, stream_interval=1),
        ask("stream 4", 10, stream_interval=4),
        ask("stream stop", 10, stream_interval=4, **stop),
        ask("stream single", 1, stream_interval=4),
    ]
    yield [replace(request, extra={"stream": True}) for request in requests]


def logit_bias(free: Free, engine) -> Iterator:
    yield ask("bias", logit_bias={"7": 1.0, "300": -2.0})


def grammar(free: Free, engine) -> Iterator:
    yield [
        ask("regex", 8, regex=REGEX),
        ask("schema", 24, json_schema=json.dumps(SCHEMA)),
        ask("grammar not", 8),
    ]


def late(free: Free, engine) -> Iterator:
    """Prefills right after a prefill and between two decodes."""
    yield ask("late 1")
    yield ask("late 2")
    yield None
    yield ask("late short", length=UNTRACKED)
    yield None
    yield ask("late 3")


def penalties(free: Free, engine) -> Iterator:
    for kind, sampling in PENALTIES.items():
        yield ask(f"{kind} alone", **sampling)
        yield from when_idle(engine)
        yield ask(f"{kind} short", length=UNTRACKED, **sampling)
        yield from when_idle(engine)


def penalties_and_prefills(free: Free, engine) -> Iterator:
    """A prefill before the first decode, and later one between two decodes."""
    for kind, sampling in PENALTIES.items():
        yield ask(f"{kind} before a prefill", **sampling)
        yield [ask(f"{kind} in a prefill", **sampling), ask(f"{kind} not")]
        yield None
        yield None
        yield ask(f"{kind} not, short", length=UNTRACKED)
        yield from when_idle(engine)


def penalties_retracted(free: Free, engine) -> Iterator:
    """Retracted all three turns after arrival, and prefilled again."""
    from sglang.srt.managers.io_struct import (
        ContinueGenerationReqInput,
        PauseGenerationReqInput,
    )

    yield [
        ask(f"{kind} retracted", 8, length, **sampling)
        for kind, sampling in PENALTIES.items()
        for length in [RETRACKED if kind == "frequency" else LENGTH]
    ]
    yield None
    yield None
    yield lambda engine: engine.control(PauseGenerationReqInput(mode="retract"))
    yield lambda engine: engine.control(ContinueGenerationReqInput())


def penalties_preempted(free: Free, engine) -> Iterator:
    frequency = PENALTIES["frequency"]
    low = [ask(f"low {i}", 8, **frequency) for i in (1, 2)]
    yield [replace(request, extra={"priority": 1}) for request in low]
    yield None
    yield replace(ask("high", 3), extra={"priority": 100})
    yield replace(ask("higher", 3), extra={"priority": 200})


def penalties_chunked(free: Free, engine) -> Iterator:
    for kind, sampling in PENALTIES.items():
        yield ask(f"{kind} chunked", length=400, **sampling)
        yield from when_idle(engine)


def penalties_mixed(free: Free, engine) -> Iterator:
    # A request that wants logprobs is no part of a MIXED batch.
    short = [ask(f"{kind} mixed", 8, **fields) for kind, fields in PENALTIES.items()]
    long = ask("mixed long", 4, 700, **PENALTIES["frequency"])
    yield [replace(request, logprobs=False) for request in short]
    yield replace(long, logprobs=False)


def chunked_logprobs(free: Free, engine) -> Iterator:
    fields = {"logprob_start_len": 0, "top_logprobs_num": 2}
    yield replace(ask("chunked logprobs", length=400), extra=fields)


def logit_processor(free: Free, engine) -> Iterator:
    from processors import Discourage

    processor = {"custom_logit_processor": Discourage.to_str()}
    yield replace(ask("processor", 8, custom_params={}), extra=processor)


def abort(free: Free, engine) -> Iterator:
    """Abort while the prefill is pending."""
    yield [ask("aborted", 64), ask("abort not")]
    yield lambda engine: engine.abort("aborted")
    yield from when_idle(engine)
    yield ask("lone aborted", 64)
    yield lambda engine: engine.abort("lone aborted")


# Those whose answers are compared whole.
ANSWERED = (
    plain,
    parallel_samples,
    lengths,
    stop_tokens,
    stop_strings,
    eos,
    min_new_tokens,
    logprobs,
    streaming,
    logit_bias,
    grammar,
    late,
)

# Per kind of server its ServerArgs and what runs on it.
FULL = (
    dict(skip_tokenizer_init=False, enable_custom_logit_processor=True),
    (
        *ANSWERED,
        penalties,
        penalties_and_prefills,
        penalties_retracted,
        logit_processor,
        abort,
    ),
)
CHUNKING = (
    dict(chunked_prefill_size=256, enable_mixed_chunk=True),
    (penalties_chunked, chunked_logprobs, penalties_mixed),
)
PRIORITY = (
    dict(
        enable_priority_scheduling=True,
        priority_scheduling_preemption_threshold=10,
        max_running_requests=2,
    ),
    (penalties_preempted,),
)
SERVERS = (FULL, CHUNKING, PRIORITY)
