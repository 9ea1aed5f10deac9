"""Loads one server and collects what there is to see of it. Separate from the ledger,
which needs no server."""

import time
from collections import Counter

from sglang_cpu_testbed.server import Server
from sglang_cpu_testbed.smoke.asks import flush, generate
from sglang_cpu_testbed.smoke.ledger import Load, twice_counted
from sglang_cpu_testbed.smoke.metrics import Logged, read, read_log, slots
from sglang_cpu_testbed.smoke.traffic import drive, prompts

IDLE_S = 60.0
SETTLE_S = 10.0
POLL_S = 0.2


def run_load(
    server: Server,
    load_s: float,
    seed: int,
    wanted: list[list[int]],
    exact: bool = True,
) -> Load:
    """Drive the load on an idle woven server and wait until it is idle again."""
    flush(server)
    # The gauges are set by traffic alone, so a little of it sets the first ones.
    generate(server, prompts(seed)[0], 4)
    _await_idle(server)
    before, mark = read(server.get("/metrics")), len(server.log())
    sent = drive(server, load_s, seed)
    idle = _await_idle(server)
    counted, logged = _settled(server, before, mark)
    slots_after = slots(read(server.get("/metrics")))
    flush(server)
    again = generate(server, prompts(seed)[0], 4, ignore_eos=True)
    return Load(
        load_s=load_s,
        exact=exact,
        sent=sent,
        wanted=wanted,
        counted=counted,
        logged=logged,
        slots_before=slots(before),
        slots_after=slots_after,
        idle=idle,
        serves_again=again.cached_tokens == 0
        and (not exact or again.tokens == wanted[0][:4]),
    )


def _await_idle(server: Server) -> bool:
    """Whether all is done and the gauges say so, within IDLE_S."""
    deadline = time.monotonic() + IDLE_S
    while time.monotonic() < deadline:
        page = read(server.get("/metrics"))
        open_requests = page["num_running_reqs"] + page["num_queue_reqs"]
        if not open_requests and not any(used for _, used in slots(page).values()):
            return True
        # The gauges offer nothing to wait for.
        time.sleep(POLL_S)
    return False


def _settled(server: Server, before: Counter, mark: int) -> tuple[Counter, Logged]:
    """What was counted and logged since; a last line may still be on its way."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        now, logged = read(server.get("/metrics")), read_log(server.log()[mark:])
        counted = Counter({name: now[name] - before[name] for name in now})
        agree = all(one.holds for one in twice_counted(counted, logged))
        if agree or time.monotonic() > deadline:
            return counted, logged
        time.sleep(POLL_S)
