"""What the simulation found wrong without the fix and without overlap, kept in sight."""

from dataclasses import replace

import pytest

from sglang_cpu_testbed.simulation.configurations import CONFIGURATIONS
from sglang_cpu_testbed.simulation.history import Arrive, History, Prompt

MIXED = CONFIGURATIONS["mixed"].without_overlap
PAGES = replace(MIXED, server_args=MIXED.server_args | {"page_size": 16})


def arrive(rid, prompt, new_tokens):
    return (Arrive(rid, prompt, new_tokens, logprobs=False),)


# A prompt whose chunks were mixed with decode rows, asked for again from the cache.
TURNS = (
    arrive("decoding", Prompt(1, 17), 3),
    arrive("cold", Prompt(0, 81), 1),
    *[()] * 20,
    arrive("warm", Prompt(0, 81), 3),
)


def test_chunks_in_mixed_batches_leave_the_right_state(play):
    assert play(History("mixed", TURNS), "off", MIXED).verdict.violations == []


@pytest.mark.xfail(
    strict=True,
    reason="mixed chunks with pages of 16: SGLang's tracking, or the testbed's reading of it",
)
def test_chunks_in_mixed_batches_of_larger_pages_leave_the_right_state(play):
    assert play(History("mixed", TURNS), "off", PAGES).verdict.violations == []
