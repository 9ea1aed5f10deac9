"""Publication of a tracked Mamba prefill, alone and inside the overlap loop.

Requests prefilled at the same time compute a shared prompt in private KV slots.
Publishing the second one frees its copies and points its row at the slots of the
first, so a decode batch built before that publication holds freed slots.
"""

import functools
import itertools
import unittest
from array import array
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.schedule_batch import (
    FINISH_LENGTH,
    NextBatchPlan,
    Req,
    ScheduleBatch,
)
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.batch_result_processor import (
    SchedulerBatchResultProcessor,
)
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import publish, reset_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.utils.common import ceil_align

register_cpu_ci(est_time=15, suite="base-a-test-cpu")

TREE_CORES = ("rust", "python")
PAGE_SIZES = (1, 16, 64)
CHUNK = 64  # a Mamba state is tracked at multiples of this
KV_SIZE = 2048
MAMBA_SIZE = 24
CONTEXT_LEN = 512

# 150 tokens: two tracked chunks, then a tail that is never published.
PROMPT = list(range(1, 151))
TRACKED = 128
LONG_PROMPT = PROMPT[:TRACKED] + list(range(2001, 2151))
# Leaves PROMPT inside a chunk, and inside a page unless pages hold one token.
FORK = 70
FORKED_PROMPT = PROMPT[:FORK] + list(range(3001, 3081))
SHORT_PROMPT = PROMPT[:40]
DECODE_STEPS = 3


class HybridCache:
    """The pools, the allocator and the radix cache of a small hybrid model."""

    def __init__(self, core, page_size):
        server_args = ServerArgs(model_path="dummy", device="cpu", page_size=page_size)
        # The dummy model has no config to derive the chunk size from.
        server_args._mamba_cache_chunk_size = CHUNK
        publish(server_args, role="scheduler")

        self.page_size = page_size
        shape = Mamba2StateShape.create(
            tp_world_size=1,
            intermediate_size=8,
            n_groups=1,
            num_heads=1,
            head_dim=8,
            state_size=4,
            conv_kernel=4,
        )
        self.rows = HybridReqToTokenPool(
            size=8,
            mamba_size=MAMBA_SIZE,
            mamba_spec_state_size=8,
            max_context_len=CONTEXT_LEN,
            device="cpu",
            enable_memory_saver=False,
            cache_params=Mamba2CacheParams(shape=shape, layers=[1]),
            mamba_layer_ids=[1],
            enable_mamba_extra_buffer=True,
        )
        kv_pool = HybridLinearKVPool(
            size=KV_SIZE,
            dtype=torch.bfloat16,
            page_size=page_size,
            head_num=1,
            head_dim=8,
            full_attention_layer_ids=[0],
            device="cpu",
            mamba_pool=self.rows.mamba_pool,
        )
        common = dict(
            size=KV_SIZE,
            dtype=torch.bfloat16,
            device="cpu",
            kvcache=kv_pool,
            need_sort=False,
        )
        self.kv = (
            TokenToKVPoolAllocator(**common)
            if page_size == 1
            else PagedTokenToKVPoolAllocator(page_size=page_size, **common)
        )
        self.tree = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.kv,
                page_size=page_size,
                tree_components=(ComponentType.FULL, ComponentType.MAMBA),
                enable_mamba_extra_buffer=True,
                tree_core_backend=core,
            )
        )
        self.initial = self.free_everywhere()

    def request(self, rid, tokens):
        sampling_params = SamplingParams(temperature=0, max_new_tokens=1 + DECODE_STEPS)
        sampling_params.normalize(None)
        return Req(
            rid=rid,
            origin_input_text="",
            origin_input_ids=array("q", tokens),
            sampling_params=sampling_params,
        )

    def prefill(self, *reqs):
        """Match and lock all requests, then give each its own slots."""
        for req in reqs:
            req.init_next_round_input(self.tree)
            req.lock = self.tree.lock(req.last_node)
            req.extend_end = len(req.full_untruncated_fill_ids)
        prefixes = [self.tree.prefix_device_indices(req) for req in reqs]
        self.rows.alloc(list(reqs))
        for req, prefix in zip(reqs, prefixes):
            fresh = self.kv.alloc(ceil_align(req.extend_len, self.page_size))
            self.write(req, 0, prefix)
            self.write(req, req.prefix_len, fresh[: req.extend_len])
            req.kv.kv_allocated_len = req.kv.kv_committed_len = req.extend_end
            self.track(req)

    def track(self, req):
        tracked = req.extend_len // CHUNK * CHUNK
        if tracked > 0:
            kv = req.kv
            kv.mamba_last_track_idx = kv.mamba_next_track_idx
            kv.mamba_next_track_idx = self.rows.get_mamba_ping_pong_other_idx(
                kv.mamba_next_track_idx
            )
            kv.mamba_last_track_seqlen = req.prefix_len + tracked

    def decode(self, req):
        """Give the next token of a running request its slot."""
        end = req.kv.kv_committed_len
        if end % self.page_size == 0:
            slot = self.kv.alloc(self.page_size)[:1]
        else:
            slot = self.row(req, end)[-1:] + 1
        self.write(req, end, slot)
        req.kv.kv_allocated_len += 1
        req.kv.kv_committed_len += 1
        req.decode_batch_idx += 1

    def write(self, req, start, slots):
        self.rows.write(
            (req.kv.req_pool_idx, slice(start, start + len(slots))),
            slots.to(torch.int32),
        )

    def row(self, req, end):
        return self.rows.req_to_token[req.kv.req_pool_idx, :end].clone()

    def publish_prefill(self, req):
        """What result processing does with the first token of a prefill."""
        req.output_ids.append(7)
        checkpoint_kv_cache(req, self.tree)

    def finish(self, req):
        req.finished_reason = FINISH_LENGTH(length=len(req.output_ids))
        release_kv_cache(req, self.tree, checkpoint=True)

    def evict_all(self):
        self.tree.evict(EvictParams(num_tokens=KV_SIZE, mamba_num=MAMBA_SIZE))

    def free_kv_slots(self):
        first = self.kv.get_all_free_pages() * self.page_size
        return sorted((first[:, None] + torch.arange(self.page_size)).view(-1).tolist())

    def free_mamba_slots(self):
        return sorted(self.rows.mamba_allocator.free_slots.tolist())

    def free_everywhere(self):
        return {
            "KV slots": self.free_kv_slots(),
            "Mamba slots": self.free_mamba_slots(),
            "rows": sorted(self.rows.free_slots),
        }


class OverlapLoop(Scheduler):
    """The scheduler's own overlap loop over a HybridCache and a batch script.

    The script lists ("extend", reqs) and ("decode", reqs). A batch gets its slots
    when it is selected; a decode batch also captures the rows it will read.
    """

    def __init__(self, cache, script):
        self.cache = cache
        self.script = list(script)
        self.captured = []
        self.pending = []
        self.freed_in_flight = {}
        self.sampled = {}

        self.gracefully_exit = False
        self._engine_paused = False
        self.is_generation = True
        self.enable_overlap = True
        self.enable_unified_memory = False
        self.require_mlp_sync = False
        self.disaggregation_mode = DisaggregationMode.NULL
        self.spec_algorithm = SpeculativeAlgorithm.NONE
        self.req_to_token_pool = cache.rows
        self.token_to_kv_pool_allocator = cache.kv
        self.tree_cache = cache.tree
        self.running_batch = self.new_batch(ForwardMode.DECODE, [])
        self.last_batch = None
        self.batch_result_processor = SchedulerBatchResultProcessor(
            is_generation=True,
            disaggregation_mode=DisaggregationMode.NULL,
            enable_overlap=True,
            enable_overlap_mlx=False,
            model_config=SimpleNamespace(self_opened_think_start_ids=None),
            token_to_kv_pool_allocator=cache.kv,
            tree_cache=cache.tree,
            hisparse_coordinator=None,
            req_to_token_pool=cache.rows,
            decode_offload_manager=None,
            metrics_collector=None,
            metrics_reporter=MagicMock(num_generated_tokens=0, forward_ct_decode=0),
            draft_worker=None,
            model_worker=SimpleNamespace(),
            logprob_result_processor=None,
            output_streamer=MagicMock(),
            beam_coordinator=None,
            abort_request=None,
        )

    def new_batch(self, forward_mode, reqs):
        return ScheduleBatch(
            reqs=list(reqs),
            forward_mode=forward_mode,
            req_to_token_pool=self.cache.rows,
            token_to_kv_pool_allocator=self.cache.kv,
            tree_cache=self.cache.tree,
            device="cpu",
            enable_overlap=True,
            spec_algorithm=SpeculativeAlgorithm.NONE,
        )

    def ingest_requests(self):
        if not self.script and self.last_batch is None:
            self.gracefully_exit = True

    def get_next_batch_to_run(self, running_batch, last_batch):
        batch = None
        if self.script:
            kind, reqs = self.script.pop(0)
            select = self.select_extend if kind == "extend" else self.select_decode
            batch = select(reqs)
        return NextBatchPlan(batch_to_run=batch, running_batch=running_batch)

    def select_extend(self, reqs):
        self.cache.prefill(*reqs)
        return self.new_batch(ForwardMode.EXTEND, reqs)

    def select_decode(self, reqs):
        self.pending.append(len(self.result_queue))
        for req in reqs:
            self.cache.decode(req)
        self.captured.append(
            {req.rid: self.cache.row(req, req.kv.kv_committed_len) for req in reqs}
        )
        batch = self.new_batch(ForwardMode.DECODE, reqs)
        # No decode here reaches a multiple of the default track interval.
        batch.mamba_track_mask_cpu = [False] * len(reqs)
        batch.mamba_track_mask_next_cpu = [False] * len(reqs)
        batch.mamba_decode_batch_idx_cpu = [req.decode_batch_idx for req in reqs]
        return batch

    def run_batch(self, batch):
        tokens = []
        for req in batch.reqs:
            outputs = self.sampled.setdefault(req.rid, [])
            outputs.append(1000 + len(outputs))
            tokens.append(outputs[-1])
        return GenerationBatchResult(next_token_ids=torch.tensor(tokens))

    def process_batch_result(self, batch, result):
        if batch.forward_mode.is_extend():
            self.batch_result_processor.process_batch_result_prefill(batch, result)
        else:
            self.batch_result_processor.process_batch_result_decode(batch, result)

    def launch_batch_sample_if_needed(self, batch_result, cur_batch):
        """The previous result is processed and the current batch is in flight."""
        if cur_batch is not None and cur_batch.forward_mode.is_decode():
            free = set(self.cache.free_kv_slots())
            for rid, row in self.captured[-1].items():
                self.freed_in_flight.setdefault(rid, set()).update(
                    free.intersection(row.tolist())
                )

    def _apply_war_barrier(self):
        pass

    def on_idle(self):
        pass


def for_each_cache(test):
    """Run a test once per tree core and page size, each with a fresh cache."""

    @functools.wraps(test)
    def run(self):
        for core, page_size in itertools.product(TREE_CORES, PAGE_SIZES):
            with self.subTest(core=core, page_size=page_size):
                test(self, HybridCache(core, page_size))

    return run


class PublicationTestCase(CustomTestCase):
    def tearDown(self):
        reset_context()

    def assert_same_slots(self, left, right, message):
        self.assertEqual(len(left), len(right))
        differing = (left != right).nonzero().view(-1).tolist()
        if differing:
            self.fail(
                f"{message}: {len(differing)} of {len(left)} slots differ, "
                f"positions {differing[0]}..{differing[-1]}"
            )

    def assert_free_once(self, slots, name):
        self.assertEqual(len(slots), len(set(slots)), f"{name} free more than once")

    def assert_ping_pong_whole(self, cache, req):
        pair = req.kv.mamba_ping_pong_track_buffer.tolist()
        mapped = cache.rows.req_index_to_mamba_ping_pong_track_buffer_mapping
        self.assertEqual(pair, mapped[req.kv.req_pool_idx].tolist())
        held = [*pair, int(req.kv.mamba_pool_idx)]
        self.assertEqual(len(set(held)), 3, f"{req.rid} holds a Mamba slot twice")
        self.assertFalse(
            set(held) & set(cache.free_mamba_slots()),
            f"{req.rid} holds a Mamba slot that is free",
        )
        self.assertFalse(
            set(held) & set(cache.tree.all_mamba_values_flatten().tolist()),
            f"{req.rid} holds a Mamba slot that the tree owns",
        )

    def assert_all_returned(self, cache):
        cache.evict_all()
        cache.tree.sanity_check()
        for name, slots in cache.free_everywhere().items():
            self.assert_free_once(slots, name)
            self.assertEqual(slots, cache.initial[name], f"{name} leaked")


class TestMambaPrefillPublication(PublicationTestCase):
    def assert_second_is_rebound(self, cache, first, second, shared):
        """Publish both; only [protected, shared) of the second may change hands."""
        start = second.kv.cache_protected_len
        cache.publish_prefill(first)
        canonical = cache.row(first, first.extend_end)[start:shared]
        private = cache.row(second, second.extend_end)
        duplicates = set(private[start:shared].tolist())
        self.assertFalse(duplicates & set(canonical.tolist()))
        free_before = set(cache.free_kv_slots())

        cache.publish_prefill(second)

        rebound = cache.row(second, second.extend_end)
        self.assert_same_slots(rebound[start:shared], canonical, "not rebound")
        self.assert_same_slots(rebound[:start], private[:start], "matched part moved")
        self.assert_same_slots(rebound[shared:], private[shared:], "own part moved")
        free_after = cache.free_kv_slots()
        self.assert_free_once(free_after, "KV slots")
        self.assertEqual(set(free_after) - free_before, duplicates)
        self.assertEqual(cache.kv.available_size(), len(free_before) + shared - start)
        for req in (first, second):
            self.assertIsNone(req.kv.mamba_last_track_seqlen)
            self.assert_ping_pong_whole(cache, req)

    def assert_publishes_nothing(self, cache, req):
        row = cache.row(req, req.extend_end)
        free = cache.free_everywhere()
        in_tree = cache.tree.total_size()

        cache.publish_prefill(req)

        self.assert_same_slots(cache.row(req, req.extend_end), row, "row moved")
        self.assertEqual(cache.free_everywhere(), free)
        self.assertEqual(cache.tree.total_size(), in_tree)
        self.assert_ping_pong_whole(cache, req)

    def assert_all_returned_after(self, cache, *reqs):
        for req in reqs:
            cache.finish(req)
        self.assert_all_returned(cache)

    @for_each_cache
    def test_same_prompt(self, cache):
        a, b = cache.request("a", PROMPT), cache.request("b", PROMPT)
        cache.prefill(a, b)
        self.assert_second_is_rebound(cache, a, b, shared=TRACKED)
        self.assert_all_returned_after(cache, a, b)

    @for_each_cache
    def test_shared_prefix_is_rebound_in_whole_pages(self, cache):
        a, b = cache.request("a", PROMPT), cache.request("b", FORKED_PROMPT)
        cache.prefill(a, b)
        shared = FORK // cache.page_size * cache.page_size
        self.assert_second_is_rebound(cache, a, b, shared)
        self.assert_all_returned_after(cache, a, b)

    @for_each_cache
    def test_matched_prefix_is_not_freed(self, cache):
        warm = cache.request("warm", PROMPT)
        cache.prefill(warm)
        cache.publish_prefill(warm)
        cache.finish(warm)
        a, b = cache.request("a", LONG_PROMPT), cache.request("b", LONG_PROMPT)
        cache.prefill(a, b)
        self.assertEqual(b.kv.cache_protected_len, TRACKED)
        self.assert_second_is_rebound(cache, a, b, shared=2 * TRACKED)
        self.assert_all_returned_after(cache, a, b)

    @for_each_cache
    def test_tracked_state_is_donated_once(self, cache):
        a, b = cache.request("a", PROMPT), cache.request("b", PROMPT)
        cache.prefill(a, b)
        available = cache.rows.mamba_allocator.available_size()
        tracked = int(a.kv.mamba_ping_pong_track_buffer[a.kv.mamba_last_track_idx])

        cache.publish_prefill(a)
        self.assertEqual(cache.tree.all_mamba_values_flatten().tolist(), [tracked])
        self.assertEqual(cache.rows.mamba_allocator.available_size(), available - 1)

        # The tree has this state already, so the slot of b comes back.
        cache.publish_prefill(b)
        self.assertEqual(cache.tree.all_mamba_values_flatten().tolist(), [tracked])
        self.assertEqual(cache.rows.mamba_allocator.available_size(), available - 1)
        self.assert_all_returned_after(cache, a, b)

    @for_each_cache
    def test_second_publication_is_empty(self, cache):
        a, b = cache.request("a", PROMPT), cache.request("b", PROMPT)
        cache.prefill(a, b)
        cache.publish_prefill(a)
        cache.publish_prefill(b)
        self.assert_publishes_nothing(cache, b)
        self.assert_all_returned_after(cache, a, b)

    @for_each_cache
    def test_barred_insertion(self, cache):
        a, b = cache.request("a", PROMPT), cache.request("b", PROMPT)
        cache.prefill(a, b)
        cache.publish_prefill(a)
        b.skip_radix_cache_insert = True
        self.assert_publishes_nothing(cache, b)
        self.assert_all_returned_after(cache, a, b)

    @for_each_cache
    def test_prompt_below_one_chunk(self, cache):
        a, b = cache.request("a", SHORT_PROMPT), cache.request("b", SHORT_PROMPT)
        cache.prefill(a, b)
        for req in (a, b):
            self.assertIsNone(req.kv.mamba_last_track_seqlen)
            self.assert_publishes_nothing(cache, req)
        self.assert_all_returned_after(cache, a, b)


class TestOverlapLoopPublication(PublicationTestCase):
    def run_loop(self, cache, *extends):
        """Prefill the batches, then decode all of their requests to the end."""
        reqs = [req for batch in extends for req in batch]
        script = [("extend", batch) for batch in extends]
        loop = OverlapLoop(cache, script + [("decode", reqs)] * DECODE_STEPS)
        loop.event_loop_overlap()
        return loop

    def assert_first_decode_row_is_final(self, loop):
        for rid, first in loop.captured[0].items():
            for later in loop.captured[1:]:
                self.assert_same_slots(
                    first,
                    later[rid][: len(first)],
                    f"stale row: the first decode of {rid} was built before its "
                    "prefill was published",
                )

    def assert_finished(self, loop, reqs):
        """Each result was processed once, one step behind, and nothing is lost."""
        self.assertEqual(loop.pending[1:], [1] * (DECODE_STEPS - 1))
        for req in reqs:
            self.assertTrue(req.finished())
            self.assertEqual(list(req.output_ids), loop.sampled[req.rid])
        self.assert_all_returned(loop.cache)

    def assert_shared(self, loop, length):
        last = loop.captured[-1]
        self.assert_same_slots(last["a"][:length], last["b"][:length], "not shared")

    @for_each_cache
    def test_same_prompt_in_one_batch(self, cache):
        reqs = [cache.request(rid, PROMPT) for rid in "ab"]
        loop = self.run_loop(cache, reqs)
        self.assert_shared(loop, TRACKED)
        self.assert_first_decode_row_is_final(loop)
        self.assert_finished(loop, reqs)

    @for_each_cache
    def test_same_prompt_in_consecutive_batches(self, cache):
        reqs = [cache.request(rid, PROMPT) for rid in "ab"]
        loop = self.run_loop(cache, reqs[:1], reqs[1:])
        self.assert_shared(loop, TRACKED)
        self.assert_first_decode_row_is_final(loop)
        self.assert_finished(loop, reqs)

    @for_each_cache
    def test_same_prompt_between_untracked_prompts(self, cache):
        prompts = {"x": SHORT_PROMPT, "a": PROMPT, "b": PROMPT, "y": SHORT_PROMPT}
        reqs = [cache.request(rid, prompt) for rid, prompt in prompts.items()]
        loop = self.run_loop(cache, reqs)
        self.assert_shared(loop, TRACKED)
        self.assert_first_decode_row_is_final(loop)
        self.assert_finished(loop, reqs)

    @for_each_cache
    def test_shared_prefix(self, cache):
        reqs = [cache.request("a", PROMPT), cache.request("b", FORKED_PROMPT)]
        loop = self.run_loop(cache, reqs)
        self.assert_shared(loop, FORK // cache.page_size * cache.page_size)
        self.assert_first_decode_row_is_final(loop)
        self.assert_finished(loop, reqs)

    @for_each_cache
    def test_prompt_past_a_matched_prefix(self, cache):
        warm = cache.request("warm", PROMPT)
        self.run_loop(cache, [warm])
        reqs = [cache.request(rid, LONG_PROMPT) for rid in "ab"]
        loop = self.run_loop(cache, reqs)
        self.assert_shared(loop, 2 * TRACKED)
        self.assert_first_decode_row_is_final(loop)
        self.assert_finished(loop, reqs)

    @for_each_cache
    def test_decode_in_flight_maps_no_free_slot(self, cache):
        reqs = [cache.request(rid, PROMPT) for rid in "ab"]
        loop = self.run_loop(cache, reqs)
        for rid, freed in loop.freed_in_flight.items():
            if freed:
                self.fail(
                    f"stale row: a decode of {rid} was in flight on {len(freed)} "
                    "slots that the publication of its prefill freed"
                )
        self.assert_finished(loop, reqs)

    @for_each_cache
    def test_untracked_prompt(self, cache):
        reqs = [cache.request(rid, SHORT_PROMPT) for rid in "ab"]
        loop = self.run_loop(cache, reqs)
        self.assert_first_decode_row_is_final(loop)
        self.assert_finished(loop, reqs)

    @for_each_cache
    def test_barred_insertion(self, cache):
        reqs = [cache.request(rid, PROMPT) for rid in "ab"]
        reqs[1].skip_radix_cache_insert = True
        loop = self.run_loop(cache, reqs)
        self.assert_first_decode_row_is_final(loop)
        self.assert_finished(loop, reqs)


if __name__ == "__main__":
    unittest.main()
