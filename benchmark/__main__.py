"""`python -m benchmark`: every workload under the virtual clock, some under the wall
clock, the cost of the check; a table on stdout, the rest in build/. Exits 1 where the
virtual part is not what benchmark/virtual.json holds."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmark import check_cost, expected, picture, recorded, table, trace
from benchmark.measure import POLICIES, Job, environment, run
from benchmark.workloads import RUNNING, WORKLOADS
from sglang_cpu_testbed.fork import fork, warm
from sglang_cpu_testbed.virtual.machine import H200
from sglang_mamba_boundary.settings import WEAVING

BUILD = Path(__file__).parent.parent / "build"
TIMEOUT_S = 600.0
# What the wall clock is run on, and whose timeline is drawn.
WALL = (("shared", 16), ("shared", 64))
DRAWN = Job("shared", 16, "virtual")


def main(argv=None) -> int:
    options = _options(argv)
    started_s = time.monotonic()
    warm()
    rows, timelines = [], {}
    for policy in options.policy:
        jobs = [Job(w, n, "virtual") for w in options.workload for n in options.running]
        for job, (row, timeline) in zip(jobs, _run(policy, jobs), strict=True):
            rows.append(row)
            if job == DRAWN:
                timelines[policy] = timeline
        _say(f"{policy}: {len(jobs)} virtual rows", started_s)
    wall = []
    for repetition in range(options.repetitions):
        for policy in options.policy:
            jobs = [Job(w, n, "wall", repetition) for w, n in WALL]
            wall += [row for row, _ in _run(policy, jobs)]
        _say(f"wall repetition {repetition + 1}", started_s)
    costs = fork(check_cost.measure, env=environment("flush"), timeout_s=TIMEOUT_S)
    for policy in WEAVING[1:]:
        brief, env = check_cost.measure_briefly, environment(policy)
        costs += fork(brief, policy, env=env, timeout_s=TIMEOUT_S)

    all_rows = table.with_ratios(rows) + table.merged(wall)
    BUILD.mkdir(exist_ok=True)
    (BUILD / "bench.json").write_text(json.dumps(all_rows, indent=1) + "\n")
    (BUILD / "bench_check_cost.json").write_text(json.dumps(costs, indent=1) + "\n")
    if timelines:
        trace.write(BUILD / "bench_trace.json", timelines)
        picture.draw(BUILD / "bench_timelines.png", timelines)
    print(*table.lines(all_rows, costs, H200), sep="\n")
    _say("done", started_s)
    if options.update:
        expected.write(table.with_ratios(rows))
        recorded.write(all_rows, costs)
        return 0
    wrong = expected.differences(table.with_ratios(rows))
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


def _options(argv) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmark", description=__doc__)
    parser.add_argument("--policy", nargs="+", default=list(POLICIES))
    parser.add_argument("--workload", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--running", nargs="+", type=int, default=list(RUNNING))
    parser.add_argument("--repetitions", type=int, default=3, help="of the wall clock")
    parser.add_argument(
        "--update",
        action="store_true",
        help=f"write {expected.FILE.name} and {recorded.FILE.name} anew",
    )
    options = parser.parse_args(argv)
    whole = (list(POLICIES), list(WORKLOADS), list(RUNNING))
    chosen = (options.policy, options.workload, options.running)
    if options.update and (chosen != whole or options.repetitions < 1):
        parser.error("--update stores whole runs only: give no other option with it")
    return options


def _run(policy: str, jobs: list[Job]) -> list:
    if not jobs:
        return []
    return fork(run, policy, jobs, env=environment(policy), timeout_s=TIMEOUT_S)


def _say(text: str, started_s: float) -> None:
    print(f"[{time.monotonic() - started_s:4.0f} s] {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
