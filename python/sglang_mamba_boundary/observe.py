"""Counting around one scheduler's publications, without changing what it does.

Attached to the instance when its loop starts, and only where somebody counts:
a server without metrics and without audit has none of this on its path.
"""

from __future__ import annotations

import time

from .loop import ACT
from .policies import FLUSH

# How a request is published while it runs, by release.
_PUBLISH = ("checkpoint", "cache_unfinished_req")


class Observer:
    """Counts early results, rebound rows and stale captures of `scheduler`.

    Source: a row is rebound where the tree's insertion matched further than
    the request's protected prefix; a capture is stale where that request is a
    decoding row of a batch launched before.
    """

    def __init__(self, scheduler, counters):
        self._scheduler = scheduler
        self._counters = counters
        # The request that is being published in the result being processed.
        self._published = None
        self._processing_extend = False
        # Whether the act runs and has consumed no result.
        self._ahead = False
        self._wrap(scheduler, "process_batch_result", self._process_batch_result)
        tree = scheduler.tree_cache
        for name in _PUBLISH:
            if hasattr(tree, name):
                self._wrap(tree, name, self._publish)
        # Through a session wrapper the insertion is the inner tree's own.
        self._wrap(getattr(tree, "inner", tree), "insert", self._insert)
        allocator = scheduler.token_to_kv_pool_allocator
        if hasattr(allocator, "flush_opportunistic"):
            self._wrap(allocator, "flush_opportunistic", self._flush)
        if hasattr(scheduler, FLUSH):
            self._wrap(scheduler, FLUSH, self._flush_early)
            self._wrap(scheduler, ACT, self._act)
        elif hasattr(scheduler, ACT):
            self._wrap(scheduler, ACT, self._flush_early)

    @staticmethod
    def _wrap(owner, name, around):
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: around(original, *args, **kwargs))

    def _act(self, act, pop_and_process) -> bool:
        """The act of another policy than flush."""
        self._ahead = True
        try:
            return act(pop_and_process)
        finally:
            self._ahead = False

    def _flush_early(self, flush, pop_and_process) -> bool:
        def wait_and_pop():
            self._ahead = False
            _, result = self._scheduler.result_queue[0]
            start = time.perf_counter()
            # Processing waits for the same event first, so this waits in its place.
            if result.copy_done is not None:
                result.copy_done.synchronize()
            self._counters.observe_wait(time.perf_counter() - start)
            pop_and_process()

        falls_back = self._ahead
        consumed = flush(wait_and_pop)
        if consumed:
            self._counters.add("early_results")
            self._counters.add("policy_fallbacks", int(falls_back))
        return consumed

    def _process_batch_result(self, process, batch, result, *args, **kwargs):
        self._processing_extend = batch.forward_mode.is_extend()
        try:
            return process(batch, result, *args, **kwargs)
        finally:
            self._processing_extend = False

    def _publish(self, publish, req, *args, **kwargs):
        if not (self._processing_extend or self._ahead) or req.finished():
            return publish(req, *args, **kwargs)
        if self._ahead:
            self._counters.add("published_ahead")
        self._published = req
        try:
            return publish(req, *args, **kwargs)
        finally:
            self._published = None

    def _insert(self, insert, params, *args, **kwargs):
        result = insert(params, *args, **kwargs)
        if self._published is not None:
            rebound = result.prefix_len - params.prev_prefix_len
            if rebound > 0:
                self._counters.add("rebound_rows")
                self._counters.add("rebound_tokens", rebound)
                if self._is_captured(self._published):
                    self._counters.add("stale_captures")
        return result

    def _is_captured(self, req) -> bool:
        """Whether a batch launched after the one being processed decodes `req`."""
        for batch, _ in self._scheduler.result_queue:
            rows = batch.decoding_reqs if batch.forward_mode.is_extend() else batch.reqs
            if any(row is req for row in rows or ()):
                return True
        return False

    def _flush(self, flush, *args, **kwargs):
        try:
            return flush(*args, **kwargs)
        except Exception:
            self._counters.add("flush_failures")
            raise
