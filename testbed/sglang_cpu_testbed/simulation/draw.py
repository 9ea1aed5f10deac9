"""The history that a seed stands for. Separate from the values themselves: whatever
changes here changes what every seed means."""

import random
from dataclasses import dataclass, field

from sglang_cpu_testbed.simulation.history import (
    Abort,
    Arrive,
    Complete,
    Continue,
    Evict,
    Flush,
    History,
    Operation,
    Pause,
    Prompt,
    Retract,
)


@dataclass(frozen=True)
class Traffic:
    """What a configuration's histories are drawn from. ``grid`` is the number of
    tokens between two states that the cache may keep."""

    grid: int
    max_requests: int = 7
    max_turns: int = 20
    logprobs: float = 0.9
    # The share of requests that decode across a state's boundary.
    long_outputs: float = 0.15
    priorities: bool = False
    weights: dict = field(default_factory=dict)


# How often an operation other than an arrival is drawn, against the others.
WEIGHTS = dict(
    Abort=3, Complete=8, Flush=1, Pause=1, Continue=3, Evict=2, Retract=1, AbortAll=0.3
)


def draw(configuration: str, traffic: Traffic, seed: int) -> History:
    """The history of this seed; the same for the same arguments, on any machine."""
    source = random.Random(f"{configuration} {seed}")
    count = source.randint(2, traffic.max_requests)
    turns = [[] for _ in range(source.randint(4, traffic.max_turns))]
    # Arrivals crowd: sharing a batch is what makes two requests meet.
    moments = sorted(source.randrange(len(turns)) for _ in range(count))
    prompts: list[Prompt] = []
    arrived: dict[int, list[str]] = {}
    for number in range(count):
        if number and source.random() < 0.4:
            moments[number] = moments[number - 1]
        prompts.append(_prompt(source, traffic, prompts))
        arrive = _arrive(source, traffic, f"r{number}", prompts[-1])
        turns[moments[number]].append(arrive)
        arrived.setdefault(moments[number], []).append(arrive.rid)
    known: list[str] = []
    for number, turn in enumerate(turns):
        known += arrived.get(number, [])
        while source.random() < 0.3:
            turn.append(_other(source, traffic, known))
    return History(configuration, tuple(map(tuple, turns)), seed)


def _prompt(source, traffic: Traffic, earlier: list[Prompt]) -> Prompt:
    grid, kind = traffic.grid, source.random()
    if earlier and kind < 0.35:
        return source.choice(earlier)
    lengths = [1, grid - 1, grid, grid + 1, 2 * grid, 2 * grid + 3, 3 * grid + 5]
    length = source.choice([*lengths, 5 * grid + 1])
    if earlier and kind < 0.75:
        family = source.choice(earlier).family
    else:
        family = source.randrange(4)
    shared = source.choice([grid // 2, grid, 2 * grid + 1])
    return Prompt(family, length, source.choice([0, 0, 1, 2]), shared)


def _arrive(source, traffic: Traffic, rid: str, prompt: Prompt) -> Arrive:
    new_tokens = source.choice([1, 2, 2, 3, 3, 4, 5, 6, 8])
    if source.random() < traffic.long_outputs:
        new_tokens = traffic.grid + source.randrange(4)
    stop_at = source.randrange(new_tokens) if source.random() < 0.2 else None
    return Arrive(
        rid,
        prompt,
        new_tokens,
        stop_at,
        logprobs=source.random() < traffic.logprobs,
        priority=source.randrange(3) * 10 if traffic.priorities else None,
    )


def _other(source, traffic: Traffic, known: list[str]) -> Operation:
    weights = WEIGHTS | traffic.weights
    kind = source.choices([*weights], [*weights.values()])[0]
    if kind == "Abort" and known:
        return Abort(source.choice(known))
    if kind == "AbortAll":
        return Abort(None)
    if kind == "Pause":
        return Pause(source.choice(["in_place", "retract"]))
    if kind == "Evict":
        return Evict(source.choice([traffic.grid, 1000]), source.randrange(3))
    plain = dict(Flush=Flush, Continue=Continue, Retract=Retract)
    return plain.get(kind, Complete)()
