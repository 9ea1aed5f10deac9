"""What ran when, on the host and on the device: plain values that cross a fork, are
drawn, and are written as a trace."""

from dataclasses import dataclass, field

HOST, DEVICE = "host", "device"
# On the host.
INGEST, SELECT, PUBLISH, LAUNCH, PROCESS, WAIT = (
    "ingest",
    "select",
    "publish",
    "launch",
    "process",
    "wait",
)
# On the device.
PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True)
class Span:
    track: str
    kind: str
    start_ns: int
    end_ns: int
    label: str = ""


@dataclass
class Timeline:
    """Spans in order of their end on the host, in launch order on the device."""

    spans: list[Span] = field(default_factory=list)

    def add(self, *span) -> None:
        self.spans.append(Span(*span))

    def on(self, track: str) -> list[Span]:
        return [span for span in self.spans if span.track == track]

    def idle_share(self) -> float:
        """Of the device, between its first launch and its last result."""
        spans = self.on(DEVICE)
        if not spans:
            return 0.0
        busy = sum(span.end_ns - span.start_ns for span in spans)
        return 1 - busy / (spans[-1].end_ns - spans[0].start_ns)
