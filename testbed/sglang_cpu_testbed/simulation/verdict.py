"""What a played history is judged by: one class of violation per oracle, and the
counts that say how much was judged. Plain values, so that they cross a fork."""

from collections import Counter
from dataclasses import dataclass, field

from sglang_cpu_testbed.request import same_bits

# (1) A decode read another slot for a position than a later step, or than its
# row named once the result before it was processed.
STALE = "stale capture"
# (2) A slot has two owners or none; SGLang's own busy check, or our census.
OWNERSHIP = "slot ownership"
# (3) Tokens or logprobs differ from those of the reference.
OUTPUT = "wrong output"
# (4) A result was processed twice, out of order or not at all.
RESULTS = "result order"
# (5) The loop waited for a result although the fix does not call for it.
WAIT = "needless wait"
# The engine raised, or did not come to an end.
ENGINE = "engine failure"
KINDS = (STALE, OWNERSHIP, OUTPUT, RESULTS, WAIT, ENGINE)


@dataclass(frozen=True)
class Violation:
    """``kind`` is one of KINDS, ``turn`` counts loop turns of the history from 1."""

    kind: str
    turn: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind} in turn {self.turn}: {self.text}"


@dataclass
class Verdict:
    """The outcome of one history."""

    violations: list[Violation] = field(default_factory=list)
    turns: int = 0
    requests: int = 0
    launches: int = 0
    # How results were processed: behind a younger launch, before or within the
    # selection because the fix calls for it, or with nothing to overlap with.
    overlapped: int = 0
    early: int = 0
    within: int = 0
    alone: int = 0
    retractions: int = 0
    # What the history came to, launches per forward mode among it: how often each.
    reached: Counter = field(default_factory=Counter)
    # A fingerprint of everything observed: the same history gives the same.
    digest: str = ""
    # False: the engine did not come back to its initial state.
    reusable: bool = True

    def compare(self, outputs: dict, reference: dict) -> None:
        """Judge outputs against those of the same history with overlap disabled:
        rid to tokens, logprobs and finish reason. An aborted request may have come
        less far in one of them."""
        self.reached["compared with overlap disabled"] += 1
        for rid, (tokens, logprobs, finish) in outputs.items():
            other_tokens, other_logprobs, other_finish = reference[rid]
            if "abort" in (finish["type"], other_finish["type"]):
                length = min(len(tokens), len(other_tokens))
            else:
                length = max(len(tokens), len(other_tokens))
            if tokens[:length] != other_tokens[:length] or not same_bits(
                logprobs[:length], other_logprobs[:length]
            ):
                text = f"{rid} gave other bits than with overlap disabled"
                self.violations.append(Violation(OUTPUT, self.turns, text))

    def kinds(self) -> set[str]:
        return {violation.kind for violation in self.violations}
