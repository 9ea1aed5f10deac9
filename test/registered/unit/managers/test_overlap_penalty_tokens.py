"""Which output token each decode step's penalties count under overlap.

Each token is to be counted once, at its own step, whether the newest result is
one step behind, as usual, or was processed already: after a prefill that was
published early, or behind a prefill that ran between two decodes.
"""

import unittest
from types import SimpleNamespace

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase, maybe_stub_sgl_kernel

maybe_stub_sgl_kernel()

from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

PROMPT = [7, 8, 9]
OUTPUTS = [20, 21, 22, 23]


def _counted(known, enable_overlap=True):
    """Tokens counted by decode steps 1, 2 .. that were built with `known[0]`,
    `known[1]` .. outputs processed."""
    counted = []
    batch = ScheduleBatch.__new__(ScheduleBatch)
    batch.device = "cpu"
    batch.enable_overlap = enable_overlap
    batch.spec_algorithm = SpeculativeAlgorithm.NONE
    batch.sampling_info = SimpleNamespace(
        penalizer_orchestrator=SimpleNamespace(
            cumulate_output_tokens=lambda ids: counted.extend(ids.tolist())
        )
    )
    for step, processed in enumerate(known):
        req = SimpleNamespace(
            origin_input_ids=PROMPT,
            output_ids=OUTPUTS[:processed],
            decode_batch_idx=step,
            kv=SimpleNamespace(kv_committed_len=len(PROMPT) + step),
        )
        batch.reqs = [req]
        batch.cumulate_penalty_output_tokens()
    return counted


class TestOverlapPenaltyTokens(CustomTestCase):
    def test_one_step_behind(self):
        self.assertEqual(_counted([0, 1, 2, 3]), [9, 20, 21, 22])

    def test_prefill_result_processed_early(self):
        self.assertEqual(_counted([1, 1, 2, 3]), [9, 20, 21, 22])

    def test_prefill_between_two_decodes(self):
        self.assertEqual(_counted([0, 1, 3, 3]), [9, 20, 21, 22])

    def test_without_overlap(self):
        newest = _counted([1, 2, 3, 4], enable_overlap=False)
        self.assertEqual(newest, [20, 21, 22, 23])


if __name__ == "__main__":
    unittest.main()
