"""What is counted, and where it goes: SGLang's own `/metrics`, or the log.

Metrics are registered only when the scheduler has a collector, that is under
`--enable-metrics`, with that collector's labels and in its multiprocess set-up.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

PREFIX = "sglang:mamba_boundary_"
COUNTERS = {
    "early_results": "Prefill results processed before the next batch was selected.",
    "published_ahead": "Requests published before their result was there.",
    "policy_fallbacks": "Early results under another policy than flush, which did as flush does.",
    "rebound_rows": "Publications that rebound a request's row to the tree's slots.",
    "rebound_tokens": "Tokens whose slot was exchanged by such a publication.",
    "stale_captures": "Publications that rebound a row which a batch in flight had captured.",
    "flush_failures": "Opportunistic unified-memory flushes that raised.",
}
WAIT = "wait_seconds"
WAIT_HELP = "Seconds the scheduler waited for the device before an early result."
WAIT_BUCKETS_S = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class PrometheusCounters:
    """Counters and the wait histogram in the registry of SGLang's collector."""

    def __init__(self, collector):
        # SGLang sets the multiprocess directory before this can be imported.
        import prometheus_client

        # A collector may bring its own metric classes, as the one for Ray does.
        counter = getattr(collector, "_counter_cls", None) or prometheus_client.Counter
        histogram = (
            getattr(collector, "_histogram_cls", None) or prometheus_client.Histogram
        )
        labels = {name: str(value) for name, value in collector.labels.items()}
        self._counters = {
            name: counter(
                name=f"{PREFIX}{name}",
                documentation=text,
                labelnames=list(labels),
            ).labels(**labels)
            for name, text in COUNTERS.items()
        }
        self._wait = histogram(
            name=f"{PREFIX}{WAIT}",
            documentation=WAIT_HELP,
            labelnames=list(labels),
            buckets=WAIT_BUCKETS_S,
        ).labels(**labels)

    def add(self, name: str, amount: int = 1) -> None:
        self._counters[name].inc(amount)

    def observe_wait(self, wait_s: float) -> None:
        self._wait.observe(wait_s)


class LoggedCounters:
    """Counts of the process, told in the log: the first stale capture and each tenfold."""

    def __init__(self):
        self.counts = dict.fromkeys(COUNTERS, 0)
        self._next_told = 1

    def add(self, name: str, amount: int = 1) -> None:
        self.counts[name] += amount
        if name == "stale_captures" and self.counts[name] >= self._next_told:
            self._next_told *= 10
            logger.warning(
                "mamba-boundary: %d publications so far rebound a row that a batch in "
                "flight had captured (%d tokens rebound in all)",
                self.counts[name],
                self.counts["rebound_tokens"],
            )

    def observe_wait(self, wait_s: float) -> None:
        """A wait is worth a histogram or nothing."""


class Both:
    """Counts that go to several places."""

    def __init__(self, *sinks):
        self._sinks = sinks

    def add(self, name: str, amount: int = 1) -> None:
        for sink in self._sinks:
            sink.add(name, amount)

    def observe_wait(self, wait_s: float) -> None:
        for sink in self._sinks:
            sink.observe_wait(wait_s)


def metrics_of(scheduler) -> PrometheusCounters | None:
    """Counters in the scheduler's own metrics; None where it emits none."""
    collector = getattr(scheduler, "metrics_collector", None)
    reporter = getattr(scheduler, "metrics_reporter", scheduler)
    if collector is None or not reporter.current_scheduler_metrics_enabled:
        return None
    return PrometheusCounters(collector)
