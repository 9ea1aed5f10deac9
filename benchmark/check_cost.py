"""What the woven loop asks in every turn, timed on a real scheduler's own objects."""

from __future__ import annotations

import copy
import time
import tracemalloc

from benchmark.workloads import prompt
from sglang_cpu_testbed.request import Request

SIZES = (1, 4, 16, 64, 256, 1024, 4096, 16384)
REPEATS = 25


def measure(repeats: int = REPEATS) -> list[dict]:
    """Nanoseconds per turn, and bytes that one check left or used at its peak."""
    from sglang_mamba_boundary.counters import LoggedCounters
    from sglang_mamba_boundary.observe import Observer

    scheduler, extend, decode = _with_pending()
    found = _common(scheduler, decode, repeats)
    pool = scheduler.req_to_token_pool
    pool.enable_mamba_extra_buffer = False
    name = "a prefill, without extra_buffer"
    found.append(_cost(scheduler, name, [(extend, None)], repeats))
    pool.enable_mamba_extra_buffer = True
    for size in SIZES:
        # None of them publishes, so that all are looked at.
        batch = copy.copy(extend)
        batch.reqs = [_untracked(extend.reqs[0]) for _ in range(size)]
        name = f"a prefill of {size} requests"
        found.append(_cost(scheduler, name, [(batch, None)], repeats))
    Observer(scheduler, LoggedCounters())
    return found + _common(scheduler, decode, repeats, ", counted")


def measure_briefly(policy: str, repeats: int = REPEATS) -> list[dict]:
    """The turns of this process's policy that have nothing to publish."""
    scheduler, _, decode = _with_pending()
    return _common(scheduler, decode, repeats, f", policy {policy}")


def _common(scheduler, decode, repeats: int, remark: str = "") -> list[dict]:
    pending = [("nothing", []), ("a decode of 1 request", [(decode, None)])]
    return [_cost(scheduler, f"{name}{remark}", q, repeats) for name, q in pending]


def _with_pending():
    """A scheduler that has run, and a prefill and a decode that were pending in it."""
    from sglang_cpu_testbed.engine import Engine

    engine = Engine()
    scheduler, kept = engine.scheduler, {}

    def keep(engine):
        # In the turn after its launch, a batch is pending.
        batch = scheduler.result_queue[0][0]
        kept.setdefault("extend" if batch.forward_mode.is_extend() else "decode", batch)

    engine.run([Request("a", prompt("cost", 200), 4, logprobs=False), keep, keep])
    return scheduler, kept["extend"], kept["decode"]


def _untracked(req):
    req = copy.copy(req)
    req.kv = copy.copy(req.kv)
    req.kv.mamba_last_track_seqlen = None
    return req


def _cost(scheduler, name: str, queue: list, repeats: int) -> dict:
    scheduler.result_queue = queue
    act = scheduler.publish_pending_mamba_prefill
    count = max(50, 200_000 // (10 * len(queue[0][0].reqs) if queue else 1))
    least = min(_time(act, count) for _ in range(repeats))
    used = _peak_bytes(act) - _peak_bytes(lambda _: False)
    return {"pending": name, "ns": round(least, 1), "peak_bytes": used}


def _peak_bytes(act) -> int:
    """What a call has allocated at its peak, with what the measuring itself takes."""
    tracemalloc.start()
    act(None)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    act(None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak - before


def _time(act, count: int) -> float:
    start = time.thread_time_ns()
    for _ in range(count):
        act(None)
    return (time.thread_time_ns() - start) / count
