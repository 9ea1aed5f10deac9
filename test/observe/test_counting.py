"""The observer on a scheduler of stand-ins, and where its counts go."""

from functools import partial
from types import SimpleNamespace

import prometheus_client
import pytest

from sglang_mamba_boundary import counters
from sglang_mamba_boundary.counters import (
    COUNTERS,
    PREFIX,
    Both,
    LoggedCounters,
    PrometheusCounters,
    metrics_of,
)
from sglang_mamba_boundary.observe import Observer

EXTEND = SimpleNamespace(is_extend=lambda: True)
DECODE = SimpleNamespace(is_extend=lambda: False)


class Waits(LoggedCounters):
    def __init__(self):
        super().__init__()
        self.waits = []

    def observe_wait(self, wait_s):
        self.waits.append(wait_s)


class Tree:
    """Publishes by `name`; each insertion matches `matched` tokens."""

    def __init__(self, name="checkpoint", matched=8, error=None):
        self.matched, self.error = matched, error
        setattr(self, name, self._publish)

    def _publish(self, req, **kwargs):
        if self.error:
            raise self.error
        return self.insert(SimpleNamespace(prev_prefix_len=2))

    def insert(self, params):
        return SimpleNamespace(prefix_len=self.matched)


def request(finished=False):
    return SimpleNamespace(finished=lambda: finished)


def batch(mode, *reqs, decoding_reqs=None):
    return SimpleNamespace(forward_mode=mode, reqs=reqs, decoding_reqs=decoding_reqs)


def observed(tree, publish="checkpoint", in_flight=(), **scheduler):
    counts = Waits()

    def process_batch_result(batch, result):
        for req in batch.reqs:
            getattr(tree, publish)(req)

    scheduler = SimpleNamespace(
        tree_cache=tree,
        token_to_kv_pool_allocator=SimpleNamespace(),
        process_batch_result=process_batch_result,
        result_queue=[(b, None) for b in in_flight],
        **scheduler,
    )
    Observer(scheduler, counts)
    return scheduler, counts


def counted(counts):
    return {name: n for name, n in counts.counts.items() if n}


@pytest.mark.parametrize("publish", ["checkpoint", "cache_unfinished_req"])
def test_a_rebinding_publication(publish):
    scheduler, counts = observed(Tree(publish), publish)
    scheduler.process_batch_result(batch(EXTEND, request()), None)
    assert counted(counts) == {"rebound_rows": 1, "rebound_tokens": 6}


@pytest.mark.parametrize(
    "processed, matched",
    [
        (batch(EXTEND, request()), 2),
        (batch(EXTEND, request(finished=True)), 8),
        (batch(DECODE, request()), 8),
    ],
    ids=["nothing matched beyond", "finished request", "decode result"],
)
def test_what_rebinds_no_row(processed, matched):
    scheduler, counts = observed(Tree(matched=matched))
    scheduler.process_batch_result(processed, None)
    assert counted(counts) == {}


def test_publication_outside_of_processing_is_not_counted():
    scheduler, counts = observed(Tree())
    scheduler.tree_cache.checkpoint(request())
    scheduler.tree_cache.insert(SimpleNamespace(prev_prefix_len=0))
    assert counted(counts) == {}


def test_stale_where_a_later_batch_decodes_the_request():
    req = request()
    for in_flight, stale in [
        (batch(DECODE, req), 1),
        (batch(EXTEND, request(), req, decoding_reqs=[req]), 1),
        (batch(EXTEND, req), 0),
        (batch(DECODE, request()), 0),
    ]:
        scheduler, counts = observed(Tree(), in_flight=[in_flight])
        scheduler.process_batch_result(batch(EXTEND, req), None)
        assert counts.counts["stale_captures"] == stale


def test_a_failing_publication_ends_and_the_next_is_counted_anew():
    tree = Tree(error=RuntimeError("half-way"))
    scheduler, counts = observed(tree)
    with pytest.raises(RuntimeError, match="half-way"):
        scheduler.process_batch_result(batch(EXTEND, request()), None)
    scheduler.tree_cache.insert(SimpleNamespace(prev_prefix_len=0))
    assert counted(counts) == {}


def test_insertions_below_a_session_wrapper_are_seen():
    inner = Tree()
    wrapper = SimpleNamespace(inner=inner, checkpoint=inner.checkpoint)
    scheduler, counts = observed(wrapper)
    scheduler.process_batch_result(batch(EXTEND, request()), None)
    assert counts.counts["rebound_tokens"] == 6


def test_early_results_and_the_wait_before_them():
    waited = []
    copy_done = SimpleNamespace(synchronize=lambda: waited.append(True))
    popped = []

    def act(pop_and_process):
        if not scheduler.result_queue:
            return False
        pop_and_process()
        return True

    scheduler, counts = observed(Tree(), publish_pending_mamba_prefill=act)

    def pop():
        popped.append(scheduler.result_queue.pop(0))

    assert scheduler.publish_pending_mamba_prefill(pop) is False
    scheduler.result_queue[:] = [(None, SimpleNamespace(copy_done=copy_done))]
    assert scheduler.publish_pending_mamba_prefill(pop) is True
    scheduler.result_queue[:] = [(None, SimpleNamespace(copy_done=None))]
    assert scheduler.publish_pending_mamba_prefill(pop) is True
    assert waited == [True] and len(popped) == 2
    assert counted(counts) == {"early_results": 2}
    assert len(counts.waits) == 2 and min(counts.waits) >= 0


def test_publications_ahead_and_what_falls_back():
    tree, req = Tree(), request()

    def act(pop_and_process):
        if scheduler.falls_back:
            return scheduler.flush_pending_mamba_prefill(pop_and_process)
        tree.checkpoint(req)
        return False

    def flush(pop_and_process):
        pop_and_process()
        return True

    scheduler, counts = observed(
        tree,
        in_flight=[batch(EXTEND, req)],
        falls_back=False,
        publish_pending_mamba_prefill=act,
        flush_pending_mamba_prefill=flush,
    )

    def pop():
        popped, _ = scheduler.result_queue.pop(0)
        scheduler.process_batch_result(popped, None)

    assert scheduler.publish_pending_mamba_prefill(pop) is False
    ahead = {"published_ahead": 1, "rebound_rows": 1, "rebound_tokens": 6}
    assert counted(counts) == ahead
    scheduler.falls_back = True
    scheduler.result_queue[:] = [(batch(EXTEND, req), SimpleNamespace(copy_done=None))]
    assert scheduler.publish_pending_mamba_prefill(pop) is True
    early = {"early_results": 1, "policy_fallbacks": 1}
    assert counted(counts) == ahead | early | {"rebound_rows": 2, "rebound_tokens": 12}
    tree.checkpoint(req)
    assert counts.counts["published_ahead"] == 1


def test_flush_failures_are_counted_and_raised():
    outcomes = iter([None, RuntimeError("no")])

    def flush():
        outcome = next(outcomes)
        if outcome:
            raise outcome

    tree = Tree()
    scheduler = SimpleNamespace(
        tree_cache=tree,
        token_to_kv_pool_allocator=SimpleNamespace(flush_opportunistic=flush),
        process_batch_result=None,
    )
    counts = LoggedCounters()
    Observer(scheduler, counts)
    scheduler.token_to_kv_pool_allocator.flush_opportunistic()
    with pytest.raises(RuntimeError):
        scheduler.token_to_kv_pool_allocator.flush_opportunistic()
    assert counted(counts) == {"flush_failures": 1}


def test_the_log_tells_the_first_and_each_tenfold(caplog):
    counts = LoggedCounters()
    for _ in range(100):
        counts.add("stale_captures")
        counts.add("rebound_tokens", 2)
    told = [record.getMessage().split()[1] for record in caplog.records]
    assert told == ["1", "10", "100"]
    counts.observe_wait(1.0)


def collector(**more):
    return SimpleNamespace(labels={"model_name": "m", "tp_rank": 0}, **more)


def test_prometheus_counters_have_the_collectors_labels():
    registry = prometheus_client.CollectorRegistry()

    own = {
        "_counter_cls": partial(prometheus_client.Counter, registry=registry),
        "_histogram_cls": partial(prometheus_client.Histogram, registry=registry),
    }
    counts = Both(PrometheusCounters(collector(**own)), LoggedCounters())
    counts.add("rebound_tokens", 384)
    counts.observe_wait(0.002)
    labels = {"model_name": "m", "tp_rank": "0"}
    for name in COUNTERS:
        value = registry.get_sample_value(f"{PREFIX}{name}_total", labels)
        assert value == (384 if name == "rebound_tokens" else 0)
    wait = registry.get_sample_value(f"{PREFIX}wait_seconds_sum", labels)
    assert wait == pytest.approx(0.002)


def test_metrics_go_where_the_scheduler_emits_its_own(monkeypatch):
    monkeypatch.setattr(counters, "PrometheusCounters", lambda c: ("metrics", c))
    emitting = SimpleNamespace(current_scheduler_metrics_enabled=True)
    silent = SimpleNamespace(current_scheduler_metrics_enabled=False)
    here = collector()

    def scheduler(**attributes):
        return metrics_of(SimpleNamespace(**attributes))

    assert scheduler() is None
    assert scheduler(metrics_collector=None) is None
    assert scheduler(metrics_collector=here, metrics_reporter=silent) is None
    reported = scheduler(metrics_collector=here, metrics_reporter=emitting)
    assert reported == ("metrics", here)
    # Before 0.5.13 the scheduler reports itself.
    older = scheduler(metrics_collector=here, current_scheduler_metrics_enabled=True)
    assert older == ("metrics", here)
