"""The smoke's requests: what is asked of one server and what it answered. Separate
from the judgement, which compares servers that do not run at the same time."""

import hashlib
from dataclasses import dataclass

from sglang_cpu_testbed.request import same_bits
from sglang_cpu_testbed.scenarios import PROMPT_LEN, SHARED_LEN
from sglang_cpu_testbed.server import Server
from sglang_cpu_testbed.tokenizer import TEXT

FIXED_TOKENS = 128
STOP_LIMIT = 512
BRANCH_TOKENS = 16
RUNS = ("cold", "warm 1", "warm 2")
QUESTION = "\nWhich lamp needed no keeper? Answer in a few words."
# The end of a prompt that is kept whole: question and turn markers.
TAIL_LEN = 32
IDLE_S = 60


@dataclass(frozen=True)
class Answer:
    """Logprobs in nats; ``finish`` is the type of SGLang's finish reason."""

    tokens: list[int]
    logprobs: list[float]
    cached_tokens: int
    finish: str

    @property
    def digest(self) -> str:
        """Count and four hex digits: enough to see two answers differ."""
        text = " ".join(map(str, self.tokens))
        return f"{len(self.tokens)} {hashlib.sha256(text.encode()).hexdigest()[:4]}"


@dataclass(frozen=True)
class Answers:
    """What one server answered. ``fixed`` and ``stop`` are one prompt each, cold and
    then warm twice; ``branch`` shares 300 tokens of its prompt with an earlier one,
    whose KV is in the tree and whose state at that length is not."""

    fixed: list[Answer]
    stop: list[Answer]
    branch: Answer

    def cold_warm_difference(self) -> float:
        """Largest logprob difference of a warm run to its cold run, in nats."""
        return max(
            largest_difference(runs[0], warm)
            for runs in (self.fixed, self.stop)
            for warm in runs[1:]
        )


def largest_difference(a: Answer, b: Answer) -> float:
    """Largest logprob difference up to the first token that differs."""
    largest = 0.0
    for i, (x, y) in enumerate(zip(a.logprobs, b.logprobs, strict=False)):
        if a.tokens[i] != b.tokens[i]:
            break
        largest = max(largest, abs(x - y))
    return largest


def same_answer(a: Answer, b: Answer) -> bool:
    """Same tokens, bit for bit the same logprobs, as much from the cache."""
    return (a.tokens, a.cached_tokens, a.finish) == (
        b.tokens,
        b.cached_tokens,
        b.finish,
    ) and same_bits(a.logprobs, b.logprobs)


def prompt_ids(server: Server, name: str) -> list[int]:
    """A chat about ``name`` by the server's own tokenizer, cut to PROMPT_LEN."""
    ask = {"role": "user", "content": f"{name}. {TEXT * 4}{QUESTION}"}
    tokens = server.post("/tokenize", messages=[ask], add_generation_prompt=True)
    tokens = tokens["tokens"]
    return tokens[: PROMPT_LEN - TAIL_LEN] + tokens[-TAIL_LEN:]


def generate(server: Server, ids: list[int], new_tokens: int, **sampling) -> Answer:
    """One greedy request."""
    got = server.post(
        "/generate",
        input_ids=ids,
        sampling_params={"temperature": 0, "max_new_tokens": new_tokens, **sampling},
        return_logprob=True,
    )
    meta = got["meta_info"]
    return Answer(
        tokens=got["output_ids"],
        logprobs=[logprob for logprob, *_ in meta["output_token_logprobs"]],
        cached_tokens=meta["cached_tokens"],
        finish=meta["finish_reason"]["type"],
    )


def flush(server: Server) -> None:
    """Empty the caches once the server is idle; also puts all slots in order."""
    server.get(f"/flush_cache?timeout={IDLE_S}")


def ask(server: Server) -> Answers:
    """Everything, one request at a time."""
    fixed, stop = (prompt_ids(server, name) for name in ("Harbour", "Letters"))
    answers = {}
    for name, ids, limit, ignore_eos in (
        ("fixed", fixed, FIXED_TOKENS, True),
        ("stop", stop, STOP_LIMIT, False),
    ):
        flush(server)
        answers[name] = [
            generate(server, ids, limit, ignore_eos=ignore_eos) for _ in RUNS
        ]
    flush(server)
    generate(server, fixed, 1)
    branch = fixed[:SHARED_LEN] + fixed[: PROMPT_LEN - SHARED_LEN]
    return Answers(
        **answers, branch=generate(server, branch, BRANCH_TOKENS, ignore_eos=True)
    )
