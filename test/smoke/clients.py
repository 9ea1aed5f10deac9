"""What the official client is asked to do, by name. Every answer is plain data without
what differs from call to call, so that two servers' answers can be compared."""

import json
from collections.abc import Callable

import openai

from sglang_cpu_testbed.server import Server
from sglang_cpu_testbed.tokenizer import TEXT

MODEL = "default"
NEW_TOKENS = 24
PENALTY = 0.7
# Without its end token the model writes as much as it is asked for.
LIMITS = {
    "max_tokens": NEW_TOKENS,
    "temperature": 0,
    "extra_body": {"ignore_eos": True},
}
SCHEMA = {
    "type": "object",
    "properties": {
        "lamp": {"enum": ["oil", "paraffin", "electric"]},
        "lit": {"type": "boolean"},
    },
    "required": ["lamp", "lit"],
    "additionalProperties": False,
}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "lamp", "schema": SCHEMA, "strict": True},
}
# Names of one call only, or of the time it took.
PASSING = ("id", "created", "system_fingerprint", "metadata", "service_tier")


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def text(name: str) -> str:
    """Long enough to be tracked, and new to a server for each name."""
    return f"{name}: {TEXT}"


def messages(name: str) -> list[dict]:
    return [
        {"role": "system", "content": "Answer from the log."},
        {"role": "user", "content": text(name)},
    ]


def plain(answer) -> dict:
    fields = answer.model_dump()
    return {key: value for key, value in fields.items() if key not in PASSING}


def chat(api, name, **fields):
    fields = LIMITS | fields
    return api.chat.completions.create(model=MODEL, messages=messages(name), **fields)


def complete(api, name, **fields):
    fields = LIMITS | fields
    return api.completions.create(model=MODEL, prompt=text(name), **fields)


def streamed(create: Callable, api, name, **fields) -> dict:
    """Text, finish reason and usage of a stream, put together."""
    parts, finish, usage = [], None, None
    options = {"include_usage": True}
    for chunk in create(api, name, stream=True, stream_options=options, **fields):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta = choice.delta.content if create is chat else choice.text
            parts.append(delta or "")
            finish = choice.finish_reason or finish
    return {"text": "".join(parts), "finish": finish, "usage": usage.model_dump()}


def written(create: Callable, answer) -> str:
    choice = answer.choices[0]
    return choice.message.content if create is chat else choice.text


def stopped(create: Callable, api, name) -> dict:
    """The same request free, and stopped by a piece of its own answer."""
    free = written(create, create(api, name))
    pieces = (free[i : i + 2] for i in range(6, len(free)))
    piece = next(piece for piece in pieces if piece.isascii() and free.find(piece) > 5)
    return {"free": free, "piece": piece, **plain(create(api, name, stop=[piece]))}


ASKS = {
    "chat": lambda api, name: plain(chat(api, name)),
    "chat streamed": lambda api, name: streamed(chat, api, name),
    "chat n": lambda api, name: plain(chat(api, name, n=3)),
    "chat logprobs": lambda api, name: plain(
        chat(api, name, logprobs=True, top_logprobs=3)
    ),
    "chat stop": lambda api, name: stopped(chat, api, name),
    "chat one token": lambda api, name: plain(chat(api, name, max_tokens=1)),
    "chat schema": lambda api, name: plain(
        chat(api, name, max_tokens=200, response_format=FORMAT, extra_body={})
    ),
    "completion": lambda api, name: plain(complete(api, name)),
    "completion streamed": lambda api, name: streamed(complete, api, name),
    "completion n": lambda api, name: plain(complete(api, name, n=3)),
    "completion logprobs": lambda api, name: plain(complete(api, name, logprobs=3)),
    "completion stop": lambda api, name: stopped(complete, api, name),
    "completion one token": lambda api, name: plain(complete(api, name, max_tokens=1)),
    "completion schema": lambda api, name: plain(
        complete(api, name, max_tokens=200, extra_body={"json_schema": json.dumps(SCHEMA)})
    ),
}  # fmt: skip


def twice(server: Server, name: str) -> list[dict]:
    """Cold, then with the prompt in the cache."""
    api = client(server)
    return [ASKS[name](api, name) for _ in range(2)]


def penalised(server: Server, name: str) -> dict:
    api = client(server)
    return plain(chat(api, name, frequency_penalty=PENALTY, logprobs=True))
