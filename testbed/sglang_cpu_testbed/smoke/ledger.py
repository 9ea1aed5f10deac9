"""Holds the load's ledgers against each other: what the clients sent and saw, what
the server logged, what it counted, and which slots it has in the end."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sglang_cpu_testbed.demo import Expectation
from sglang_cpu_testbed.smoke.metrics import Logged
from sglang_cpu_testbed.smoke.traffic import CLIENTS, Sent

OURS = "mamba_boundary_"


@dataclass
class Load:
    """One load and all that was found; counters are what the load added. A model that
    is not ``exact`` answers otherwise in another batch."""

    load_s: float
    exact: bool
    sent: list[Sent]
    wanted: list[list[int]]
    counted: Counter
    logged: Logged
    slots_before: dict[str, tuple[int, int]]
    slots_after: dict[str, tuple[int, int]]
    idle: bool
    serves_again: bool

    def title(self) -> str:
        return f"load: {CLIENTS} clients for {self.load_s:g} s, some of which hang up"

    def expectations(self) -> Iterator[Expectation]:
        yield from _of_clients(self)
        yield from _of_log(self)
        yield from _of_counters(self)
        yield from _of_the_end(self)

    def summary(self) -> dict[str, int]:
        """Counts that depend on the clock, for the JSON and for people."""
        return {
            "sent": len(self.sent),
            "complete": sum(one.complete for one in self.sent),
            "cut": sum(one.cut for one in self.sent),
            "aborted": int(self.counted["num_aborted_requests_total"]),
            "retracted": int(self.counted["num_retracted_requests_total"]),
            "evicted tokens": int(self.counted["evicted_tokens_total"]),
            "rebound rows": int(self.counted[f"{OURS}rebound_rows_total"]),
            "early results": int(self.counted[f"{OURS}early_results_total"]),
        }


def _of_clients(load: Load) -> Iterator[Expectation]:
    problems = [f"{one.rid}: {one.problem}" for one in load.sent if one.problem]
    yield Expectation("requests with a problem", "[]", str(problems[:3]))
    short = [
        one.rid for one in load.sent if one.complete and len(one.tokens) != one.asked
    ]
    yield Expectation("complete answers of another length", "[]", str(short[:3]))
    other = [
        one.rid for one in load.sent
        if load.exact and one.tokens != load.wanted[one.prompt][: len(one.tokens)]
    ]  # fmt: skip
    yield Expectation("answers other than without overlap", "[]", str(other[:3]))
    kinds = Counter("cut" if one.cut else "complete" for one in load.sent)
    seen = sorted(kind for kind in kinds if kinds[kind] >= CLIENTS // 4)
    yield Expectation("kinds of requests in number", "['complete', 'cut']", str(seen))


def _of_log(load: Load) -> Iterator[Expectation]:
    logged = load.logged
    yield Expectation("complaints in the log", "[]", str(logged.complaints[:3]))
    sent = {one.rid: one for one in load.sent}
    lost = sorted(
        one.rid for one in load.sent
        if not one.cut and one.rid not in logged.finished
    )  # fmt: skip
    yield Expectation("requests that never finished", "[]", str(lost[:3]))
    strange = sorted(logged.received.keys() - sent.keys())
    yield Expectation("requests nobody sent", "[]", str(strange[:3]))
    twice = [rid for rid, count in logged.finishes.items() if count != 1]
    yield Expectation("requests finished twice", "[]", str(twice[:3]))
    unlike = [
        one.rid for one in load.sent
        if one.complete and _length(logged, one.rid) != one.asked
    ]  # fmt: skip
    yield Expectation("complete answers logged otherwise", "[]", str(unlike[:3]))


def twice_counted(counted: Counter, logged: Logged) -> Iterator[Expectation]:
    """Each is one quantity from two sources."""
    lengths = logged.finished.values()
    for subject, metric, from_log in (
        ("finished requests", "num_requests_total", len(lengths)),
        (
            "prompt tokens",
            "prompt_tokens_total",
            sum(length for length, _ in lengths),
        ),
        (
            "generated tokens",
            "generation_tokens_total",
            sum(length for _, length in lengths),
        ),
        ("prefilled tokens", "realtime_tokens_total/prefill_compute", logged.prefilled_tokens),
        ("cached tokens", "realtime_tokens_total/prefill_cache", logged.cached_tokens),
    ):  # fmt: skip
        found = str(int(counted[metric]))
        yield Expectation(f"{subject} by log and /metrics", str(from_log), found)


def _of_counters(load: Load) -> Iterator[Expectation]:
    counted, logged = load.counted, load.logged
    yield from twice_counted(counted, logged)
    cut = {one.rid: one.asked for one in load.sent if one.cut}
    ended = [rid for rid in cut if _length(logged, rid) == cut[rid]]
    aborted = counted["num_aborted_requests_total"]
    # An abort may come too late: it counts, and the request ends by itself.
    within = len(cut & logged.received.keys()) - len(ended) <= aborted <= len(cut)
    yield Expectation("aborts as many as clients hung up", "True", str(within))
    early = counted[f"{OURS}early_results_total"]
    waits = f"{counted[f'{OURS}wait_seconds_count']:g}"
    yield Expectation("waits and early results", f"{early:g}", waits)
    for name, some in (
        ("num_aborted_requests_total", True),
        (f"{OURS}early_results_total", True),
        (f"{OURS}rebound_rows_total", True),
        (f"{OURS}stale_captures_total", False),
        (f"{OURS}flush_failures_total", False),
    ):
        found = "some" if counted[name] else "none"
        yield Expectation(name, "some" if some else "none", found)


def _length(logged: Logged, rid: str) -> int | None:
    """Of the answer, whether its client has seen it or not."""
    return logged.finished.get(rid, (None, None))[1]


def _of_the_end(load: Load) -> Iterator[Expectation]:
    yield Expectation("idle in the end", "True", str(load.idle))
    yield Expectation("slots in the end", str(load.slots_before), str(load.slots_after))
    yield Expectation("serves again, uncached", "True", str(load.serves_again))
