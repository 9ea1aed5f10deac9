"""The timelines as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from pathlib import Path

from sglang_cpu_testbed.virtual.timeline import DEVICE, HOST, Timeline

TRACKS = {HOST: 1, DEVICE: 2}


def events(timelines: dict[str, Timeline]) -> list[dict]:
    """One process per policy, one thread per track; times in microseconds."""
    found = []
    for pid, (policy, timeline) in enumerate(timelines.items(), 1):
        found.append(_name("process_name", pid, 0, policy))
        for track, tid in TRACKS.items():
            found.append(_name("thread_name", pid, tid, track))
        for span in timeline.spans:
            found.append(
                dict(
                    ph="X",
                    pid=pid,
                    tid=TRACKS[span.track],
                    name=span.kind,
                    ts=span.start_ns / 1000,
                    dur=(span.end_ns - span.start_ns) / 1000,
                    args={"what": span.label} if span.label else {},
                )
            )
    return found


def _name(what: str, pid: int, tid: int, name: str) -> dict:
    return dict(ph="M", pid=pid, tid=tid, name=what, args={"name": name})


def write(path: Path, timelines: dict[str, Timeline]) -> None:
    path.write_text(json.dumps({"traceEvents": events(timelines)}) + "\n")
