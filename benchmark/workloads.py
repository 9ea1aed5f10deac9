"""The traffic: clients that send their next request once the last one is answered.

A client holds one request at a time, so the number of clients is the number of
running requests, as far as memory admits them. Everything follows from names and
numbers: the same arguments give the same traffic on any machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from sglang_cpu_testbed.request import Request
from sglang_cpu_testbed.scenarios import prompt


@dataclass(frozen=True)
class Turn:
    """One request to send: tokens that follow what `keeps` of the last exchange kept."""

    own: tuple[int, ...]
    new_tokens: int
    keeps: bool = False


Client = list[Turn]


def requests_of(running: int) -> int:
    """Enough that the clients get out of step, few enough to be played often."""
    return max(12, running * (4 if running <= 16 else 2))


def _clients(name: str, running: int, turn_of) -> list[Client]:
    """`running` clients that share all requests; `turn_of(source, client, number)`."""
    each = -(-requests_of(running) // running)
    source = random.Random(f"{name} {running}")
    return [
        [turn_of(source, client, number) for number in range(each)]
        for client in range(running)
    ]


def _cold(running: int) -> list[Client]:
    def turn(source, client, number):
        name = f"cold {client} {number}"
        return Turn(prompt(name, source.randrange(300, 700)), source.randrange(32, 65))

    return _clients("cold", running, turn)


def _shared(running: int) -> list[Client]:
    def turn(source, client, number):
        prefix = prompt(f"prefix {source.randrange(8)}", 384)
        own = prompt(f"shared {client} {number}", source.randrange(38, 102))
        return Turn(prefix + own, source.randrange(32, 65))

    return _clients("shared", running, turn)


def _burst(running: int) -> list[Client]:
    def turn(source, client, number):
        # Four neighbours ask the same, and are answered at the same length.
        name = f"burst {client // 4} {number}"
        length = 32 + random.Random(name).randrange(33)
        return Turn(prompt(name, 422), length)

    return _clients("burst", running, turn)


def _chat(running: int) -> list[Client]:
    def turn(source, client, number):
        own = prompt(f"chat {client} {number}", source.randrange(40, 160))
        if number % 4 == 0:
            own = prompt("system", 256) + own
        return Turn(own, source.randrange(32, 65), keeps=number % 4 > 0)

    return _clients("chat", running, turn)


def _long(running: int) -> list[Client]:
    def turn(source, client, number):
        name = f"document {source.randrange(max(4, running // 4))}"
        question = prompt(f"long {client} {number}", source.randrange(50, 150))
        return Turn(prompt(name, 4800) + question, source.randrange(16, 33))

    return _clients("long", running, turn)


def _decode(running: int) -> list[Client]:
    def turn(source, client, number):
        name = f"decode {source.randrange(8)}"
        return Turn(prompt(name, 130), source.randrange(192, 257))

    return _clients("decode", running, turn)


WORKLOADS = {
    "cold": _cold,
    "shared": _shared,
    "burst": _burst,
    "chat": _chat,
    "long": _long,
    "decode": _decode,
}
RUNNING = (1, 16, 64, 256)


def play(clients: list[Client], meter, engine) -> Iterator:
    """A script for `Engine.run`: each turn sends what the answered clients ask next."""
    left = [iter(client) for client in clients]
    asked: list[Request | None] = [None] * len(clients)
    sent = 0
    while True:
        arriving = []
        for number, client in enumerate(left):
            last = asked[number]
            if last is not None and engine.outputs[last.rid].finish is None:
                continue
            turn = next(client, None)
            asked[number] = None
            if turn is None:
                left[number] = iter(())
                continue
            before = ()
            if turn.keeps:
                before = last.prompt + tuple(engine.outputs[last.rid].tokens)
            asked[number] = Request(
                f"{number}-{sent}",
                before + turn.own,
                turn.new_tokens,
                logprobs=False,
                sampling={"ignore_eos": True},
                extra={"stream": True},
            )
            sent += 1
            arriving.append(asked[number])
        if not any(asked):
            return
        yield lambda engine, arriving=arriving: meter.turn(arriving)
