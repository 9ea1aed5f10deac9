"""What a server counts of itself: its ``/metrics``, and its log line by line."""

import re
from collections import Counter
from dataclasses import dataclass, field

SAMPLE = re.compile(r"^(sglang:\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
MODE = re.compile(r'mode="(\w+)"')
PREFILL = re.compile(
    r"Prefill batch.*?#new-seq: (\d+), #new-token: (\d+), #cached-token: (\d+)"
)
RECEIVED = re.compile(r'"event": "request.received", "rid": "([^"]+)"')
# The scheduler's own line: the front end logs no end of a stream that was cut.
FINISHED = re.compile(
    r"ReqTimeStats\(rid=([^,]+), input_len=(\d+), .*?output_len=(\d+)"
)
COMPLAINT = re.compile(r"leak|Traceback|CRITICAL|double free|use-after-free")
# A pool's counts whose sum is its size, whatever the caches hold.
POOLS = {"kv": ("available", "evictable"), "mamba": ("available", "evictable")}


def read(page: str) -> Counter:
    """Values by name, without buckets, summed over labels; the modes of
    ``realtime_tokens_total`` are kept apart, as name/mode."""
    values = Counter()
    for name, labels, value in SAMPLE.findall(page):
        if name.endswith("_bucket"):
            continue
        mode = MODE.search(labels) if "realtime_tokens" in name else None
        key = name.removeprefix("sglang:") + (f"/{mode.group(1)}" if mode else "")
        values[key] += float(value)
    return values


def slots(values: Counter) -> dict[str, tuple[int, int]]:
    """Per pool the slots that are free or only cached, and those in use."""
    return {
        pool: (
            int(sum(values[f"{pool}_{part}_tokens"] for part in parts)),
            int(values[f"{pool}_used_tokens"]),
        )
        for pool, parts in POOLS.items()
    }


@dataclass
class Logged:
    """What the log says. ``finished`` holds the prompt's and the answer's length of
    each request that ran, by rid; one that is aborted in the queue is not there."""

    received: Counter = field(default_factory=Counter)
    finishes: Counter = field(default_factory=Counter)
    finished: dict[str, tuple[int, int]] = field(default_factory=dict)
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    complaints: list[str] = field(default_factory=list)


def read_log(text: str) -> Logged:
    """Read a server's log, or the part that it has written since."""
    logged = Logged()
    for line in text.splitlines():
        if match := RECEIVED.search(line):
            logged.received[match.group(1)] += 1
        elif match := FINISHED.search(line):
            rid, *lengths = match.groups()
            logged.finishes[rid] += 1
            logged.finished[rid] = tuple(map(int, lengths))
        elif match := PREFILL.search(line):
            logged.prefilled_tokens += int(match.group(2))
            logged.cached_tokens += int(match.group(3))
        elif COMPLAINT.search(line):
            logged.complaints.append(line)
    return logged
