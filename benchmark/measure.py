"""One engine per policy, many measurements on it. Runs in a forked child, which one
engine owns; hands plain values back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from sglang_cpu_testbed.virtual.timeline import Timeline
from sglang_mamba_boundary.settings import WEAVING

POLICIES = ("stock", "overlap-off", *WEAVING)
# SGLang's own fence, which it has on by itself on CUDA only.
BARRIER = "SGLANG_ENABLE_WAR_BARRIER"
SERVER = dict(
    max_running_requests=256,
    max_total_tokens=400_000,
    max_mamba_cache_size=2048,
    chunked_prefill_size=2048,
    log_level="error",
)
MAX_TURNS = 100_000


@dataclass(frozen=True)
class Job:
    """One measurement: a workload with so many clients under a clock."""

    workload: str
    running: int
    clock: str
    repetition: int = 0


@dataclass
class Row:
    """What a job gave; a line of build/bench.json. Times in milliseconds."""

    workload: str
    running: int
    policy: str
    clock: str
    repetition: int
    requests: int
    output_tokens: int
    makespan_ms: float
    tok_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    device_idle: float
    turns: int
    early_results: int
    published_ahead: int
    policy_fallbacks: int
    rebound_rows: int
    stale_captures: int
    cached_tokens: int
    mapping_stable: bool
    # Of the scheduler's CPU time, per turn; the wall clock only.
    host_us_per_turn: float = 0.0
    left_out_us_per_turn: float = 0.0
    ratio_to_stock: float | None = None
    ratio_spread: list[float] = field(default_factory=list)


def environment(policy: str) -> dict[str, str]:
    boundary = policy if policy in WEAVING else "off"
    required = "1" if boundary != "off" else "0"
    return {
        "SGLANG_MAMBA_BOUNDARY": boundary,
        "SGLANG_MAMBA_BOUNDARY_REQUIRED": required,
        BARRIER: "1",
    }


def run(policy: str, jobs: Iterable[Job]) -> list[tuple[dict, Timeline]]:
    """All jobs of one policy, in this process. Set `environment` first."""
    bench = Bench(policy)
    return [bench.play(job) for job in jobs]


class Bench:
    """One engine under one policy on the virtual device."""

    def __init__(self, policy: str):
        import gc

        from sglang_cpu_testbed.engine import Engine
        from sglang_cpu_testbed.virtual.clock import VirtualClock
        from sglang_cpu_testbed.virtual.device import VirtualDevice
        from sglang_cpu_testbed.virtual.machine import H200
        from sglang_cpu_testbed.virtual.meter import Meter
        from sglang_mamba_boundary.counters import LoggedCounters
        from sglang_mamba_boundary.observe import Observer

        self.policy = policy
        self.engine = Engine(**SERVER, disable_overlap_schedule=policy == "overlap-off")
        self.device = VirtualDevice(self.engine.scheduler, H200, VirtualClock())
        self.meter = Meter(self.engine, self.device)
        self.counters = LoggedCounters()
        Observer(self.engine.scheduler, self.counters)
        gc.collect()
        gc.freeze()

    def play(self, job: Job) -> tuple[dict, Timeline]:
        from benchmark.workloads import WORKLOADS, play
        from sglang_cpu_testbed.virtual.clock import VirtualClock, WallClock

        engine, meter = self.engine, self.meter
        clients = WORKLOADS[job.workload](job.running)
        self._start_over()
        clock = {"virtual": VirtualClock, "wall": WallClock}[job.clock]()
        self.device.begin(clock)
        engine.run(play(clients, meter, engine), max_turns=MAX_TURNS)
        timeline = self.device.timeline
        row = asdict(self._row(job, timeline, clock))
        return row, timeline

    def _start_over(self) -> None:
        """Engine, counts and meter as they were at the beginning."""
        scheduler = self.engine.scheduler
        if not scheduler.flush_cache(empty_cache=False):
            raise RuntimeError("the engine was not at rest after a measurement")
        scheduler.new_token_ratio_tracker.reset()
        self.engine.outputs.clear()
        self.meter.begin()
        for name in self.counters.counts:
            self.counters.counts[name] = 0

    def _row(self, job: Job, timeline: Timeline, clock) -> Row:
        streams = self.meter.streams.values()
        outputs = self.engine.outputs.values()
        first = min(stream.arrived_ns for stream in streams)
        last = max(stream.token_ns[-1] for stream in streams)
        tokens = sum(len(stream.token_ns) for stream in streams)
        ttft = [stream.token_ns[0] - stream.arrived_ns for stream in streams]
        itl = [
            later - earlier
            for stream in streams
            for earlier, later in zip(stream.token_ns, stream.token_ns[1:])
        ]
        counts, turns = self.counters.counts, self.meter.turns
        host_ns = sum(
            span.end_ns - span.start_ns
            for span in timeline.on("host")
            if span.kind not in ("wait", "publish")
        )
        wall = job.clock == "wall"
        return Row(
            workload=job.workload,
            running=job.running,
            policy=self.policy,
            clock=job.clock,
            repetition=job.repetition,
            requests=len(streams),
            output_tokens=tokens,
            makespan_ms=_ms(last - first),
            tok_per_s=round(tokens * 1e9 / (last - first), 1),
            ttft_p50_ms=_ms(_percentile(ttft, 50)),
            ttft_p99_ms=_ms(_percentile(ttft, 99)),
            itl_p50_ms=_ms(_percentile(itl, 50)),
            itl_p99_ms=_ms(_percentile(itl, 99)),
            device_idle=round(timeline.idle_share(), 4),
            turns=turns,
            early_results=self.meter.early,
            published_ahead=counts.get("published_ahead", 0),
            policy_fallbacks=counts.get("policy_fallbacks", 0),
            rebound_rows=counts["rebound_rows"],
            stale_captures=counts["stale_captures"],
            cached_tokens=sum(output.cached_tokens for output in outputs),
            mapping_stable=self.meter.rows.changed == 0,
            host_us_per_turn=round(host_ns / turns / 1e3, 1) if wall else 0.0,
            left_out_us_per_turn=round(clock.left_out_ns / turns / 1e3, 1),
        )


def _ms(ns: int) -> float:
    return round(ns / 1e6, 3)


def _percentile(values: list[int], percent: int) -> int:
    """The nearest rank, an observed value."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0
