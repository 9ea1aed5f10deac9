"""What happens to the scheduler, turn by turn: plain values that can be printed,
compared, cut down and played again. No engine and no chance in it."""

import random
from dataclasses import dataclass, fields

VOCAB = 512


@dataclass(frozen=True)
class Prompt:
    """``length`` tokens: the first ``shared`` of a family, then those of a branch.

    Branch 0 is the family's own continuation, so two prompts of it are equal as far
    as the shorter one goes.
    """

    family: int
    length: int
    branch: int = 0
    shared: int = 0

    def tokens(self) -> tuple[int, ...]:
        own = _tokens(f"family {self.family}", self.length)
        if self.branch == 0 or self.shared >= self.length:
            return own
        branch = f"family {self.family} branch {self.branch}"
        return own[: self.shared] + _tokens(branch, self.length - self.shared)


@dataclass(frozen=True)
class Arrive:
    """A request comes in. ``stop_at`` makes the output token of that index a stop
    token, ``logprobs`` asks for logprobs."""

    rid: str
    prompt: Prompt
    new_tokens: int
    stop_at: int | None = None
    logprobs: bool = True
    priority: int | None = None


@dataclass(frozen=True)
class Abort:
    """The client gives up: ``rid``, or every request there is."""

    rid: str | None


@dataclass(frozen=True)
class Complete:
    """The device executes this many launches although nobody waits for them."""

    launches: int = 1


@dataclass(frozen=True)
class Flush:
    """A flush_cache request; refused by the engine while it is busy."""


@dataclass(frozen=True)
class Pause:
    """pause_generation; ``mode`` is SGLang's in_place or retract."""

    mode: str


@dataclass(frozen=True)
class Continue:
    """continue_generation; without effect while not paused."""


@dataclass(frozen=True)
class Evict:
    """The tree gives up its oldest unlocked tokens and states."""

    tokens: int
    states: int


@dataclass(frozen=True)
class Retract:
    """The next decode finds memory short and retracts, as SGLang's own test mode."""


Operation = Arrive | Abort | Complete | Flush | Pause | Continue | Evict | Retract


@dataclass(frozen=True)
class History:
    """Operations per loop turn, to be played in one configuration."""

    configuration: str
    turns: tuple[tuple[Operation, ...], ...]
    seed: int | None = None

    @property
    def arrivals(self) -> list[Arrive]:
        return [op for turn in self.turns for op in turn if isinstance(op, Arrive)]

    def lines(self) -> list[str]:
        """The history as a person reads it, one turn per line."""
        return [
            f"turn {number:3}: " + ("; ".join(map(_text, turn)) or "-")
            for number, turn in enumerate(self.turns, 1)
        ]


def _tokens(name: str, length: int) -> tuple[int, ...]:
    source = random.Random(name)
    return tuple(source.randrange(VOCAB) for _ in range(length))


def _text(operation: Operation) -> str:
    shown = [
        f"{f.name}={getattr(operation, f.name)}"
        for f in fields(operation)
        if getattr(operation, f.name) != f.default
    ]
    return f"{type(operation).__name__}({', '.join(shown)})"
