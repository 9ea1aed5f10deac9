"""The load's clients: many with shared prefixes, some of which hang up. Each client is
seeded; what arrives when is up to the clock, so that answers are held against those
of a server with overlap disabled, and counts against the clients' own."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

import aiohttp

from sglang_cpu_testbed.scenarios import prompt
from sglang_cpu_testbed.server import Server

CLIENTS = 64
# Lengths on both sides of the aligned ones; members differ behind a shared part. More
# prompts than the server keeps states for, so that they are published again and again.
SHARED = (64, 130, 200, 256, 300, 384)
OWN = (1, 40, 64, 90, 122, 150, 190, 240)
NEW_TOKENS = 128
HANG_UP = 0.3
END_S = 120.0


@dataclass
class Sent:
    """One request from its client's side. ``tokens`` are what it saw, all of them
    if it is ``complete``; ``cut`` if the client hung up; else ``problem`` says why."""

    rid: str
    prompt: int
    asked: int
    stream: bool
    tokens: list[int] = field(default_factory=list)
    complete: bool = False
    cut: bool = False
    problem: str = ""


def prompts(seed: int) -> list[list[int]]:
    return [
        [*prompt(f"{seed} {shared}", shared), *prompt(f"{seed} {shared} {own}", own)]
        for shared in SHARED
        for own in OWN
    ]


def references(server: Server, seed: int) -> list[list[int]]:
    """The longest answer to each prompt; a shorter one is its beginning."""
    answers = server.post(
        "/generate",
        input_ids=prompts(seed),
        sampling_params=_sampling(NEW_TOKENS),
    )
    return [answer["output_ids"] for answer in answers]


def drive(server: Server, load_s: float, seed: int) -> list[Sent]:
    """All clients for ``load_s``; each then ends the request it is in."""
    return asyncio.run(_drive(server.url, load_s, seed))


async def _drive(url: str, load_s: float, seed: int) -> list[Sent]:
    sent: list[Sent] = []
    end = time.monotonic() + load_s
    limits = aiohttp.TCPConnector(limit=CLIENTS, force_close=True)
    timeout = aiohttp.ClientTimeout(total=END_S)
    async with aiohttp.ClientSession(url, connector=limits, timeout=timeout) as session:
        texts = prompts(seed)
        clients = (
            _client(
                session, number, random.Random(f"{seed} {number}"), texts, end, sent
            )
            for number in range(CLIENTS)
        )
        await asyncio.gather(*clients)
    return sent


async def _client(session, number, source, texts, end, sent) -> None:
    count = 0
    while time.monotonic() < end:
        hang_up = source.random() < HANG_UP
        request = Sent(
            rid=f"client-{number}-{count}",
            prompt=source.randrange(len(texts)),
            # One that hangs up shall be running or waiting by then.
            asked=NEW_TOKENS if hang_up else source.choice((1, 2, 3, 8, 24, 48)),
            stream=source.random() < 0.5,
        )
        sent.append(request)
        count += 1
        patience_s = source.uniform(0.0, 1.5) if hang_up else None
        try:
            async with asyncio.timeout(patience_s):
                await _ask(session, request, texts[request.prompt])
            if not request.complete:
                request.problem = request.problem or "no finish reason"
        except TimeoutError:
            request.cut = hang_up
            request.problem = "" if hang_up else "no end in time"
        except (aiohttp.ClientError, ValueError, KeyError) as error:
            request.problem = repr(error)


async def _ask(session, request: Sent, ids: list[int]) -> None:
    body = dict(
        rid=request.rid,
        input_ids=ids,
        sampling_params=_sampling(request.asked),
        stream=request.stream,
    )
    async with session.post("/generate", json=body) as answer:
        answer.raise_for_status()
        if not request.stream:
            _take(request, await answer.json())
        else:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    _take(request, json.loads(line.removeprefix(b"data: ")))


def _take(request: Sent, answer: dict) -> None:
    # A streamed part holds all tokens so far.
    request.tokens = answer["output_ids"]
    finish = answer["meta_info"]["finish_reason"]
    if finish is not None:
        request.complete = finish["type"] == "length"
        request.problem = "" if request.complete else str(finish)


def _sampling(new_tokens: int) -> dict:
    return {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
