"""What each request of a history has to give, by the model as a plain function.
Prompts of histories repeat, so answers are kept and extended on demand."""

from sglang_cpu_testbed.oracle import Oracle
from sglang_cpu_testbed.request import Output, same_bits
from sglang_cpu_testbed.simulation.history import Arrive


class Expected:
    """Greedy outputs per prompt. ``answers`` may be handed to another process."""

    def __init__(self, config=None, answers: dict | None = None):
        self._oracle = Oracle(config)
        self.answers = {} if answers is None else answers

    def of(self, arrive: Arrive) -> tuple[list[int], list[float]]:
        """Token ids and logprobs in nats, cut behind the stop token."""
        tokens, logprobs = self._greedy(arrive.prompt, arrive.new_tokens)
        stop = self.stop_token(arrive)
        if stop in tokens:
            end = tokens.index(stop) + 1
            return tokens[:end], logprobs[:end]
        return tokens, logprobs

    def stop_token(self, arrive: Arrive) -> int | None:
        if arrive.stop_at is None:
            return None
        return self._greedy(arrive.prompt, arrive.new_tokens)[0][arrive.stop_at]

    def _greedy(self, prompt, new_tokens: int):
        tokens, logprobs = self.answers.get(prompt, ((), ()))
        missing = new_tokens - len(tokens)
        if missing > 0:
            more = self._oracle.greedy([*prompt.tokens(), *tokens], missing)
            tokens, logprobs = (*tokens, *more[0]), (*logprobs, *more[1])
            self.answers[prompt] = tokens, logprobs
        return list(tokens[:new_tokens]), list(logprobs[:new_tokens])


def wrong(arrive: Arrive, output: Output, expected, aborted: bool) -> str | None:
    """How an output differs from what was expected, or None. An aborted request
    may be cut anywhere, since the moment decides how far it came."""
    tokens, logprobs = expected
    kind = (output.finish or {}).get("type")
    if kind == "abort":
        if not aborted:
            return f"{arrive.rid} ended by {output.finish}, nobody aborted it"
        tokens = tokens[: len(output.tokens)]
        logprobs = logprobs[: len(output.tokens)]
    elif kind not in ("length", "stop"):
        return f"{arrive.rid} ended by {output.finish}"
    if output.tokens != tokens:
        at = next(
            (i for i, (a, b) in enumerate(zip(output.tokens, tokens)) if a != b),
            min(len(output.tokens), len(tokens)),
        )
        return f"{arrive.rid} gave {output.tokens[at : at + 1]} as token {at}, expected {tokens[at : at + 1]}"
    if arrive.logprobs and not same_bits(output.logprobs, logprobs):
        pairs = zip(output.logprobs, logprobs, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(logprobs))
        return f"{arrive.rid} gave other logprob bits from token {at} on"
    return None
