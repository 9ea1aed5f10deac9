"""What people reported around this, replayed on the woven loop with the right value.
Named after the threads of sgl-project/sglang unless another project is named. Where
SGLang 0.5.23 misbehaves whatever the loop, the expected failure is strict."""

from dataclasses import dataclass, replace

import pytest
from staging import in_fork

from sglang_cpu_testbed.capture import stale_steps
from sglang_cpu_testbed.request import Request
from sglang_cpu_testbed.simulation.configurations import CONFIGURATIONS, GRID
from sglang_cpu_testbed.simulation.history import (
    Abort,
    Arrive,
    Evict,
    Flush,
    History,
    Prompt,
    Retract,
)
from sglang_cpu_testbed.simulation.verdict import STALE

IDLE = ((),) * 12


@dataclass(frozen=True)
class Said:
    """A prompt with what the model said to it: the next turn of a conversation."""

    prompt: Prompt
    answer: tuple[int, ...]

    def tokens(self):
        return self.prompt.tokens() + self.answer


def arrive(rid, prompt, new_tokens=4, **more):
    return Arrive(rid, prompt, new_tokens, **more)


def history(name, *turns):
    """Each argument is one turn, or the turns of IDLE."""
    flat = []
    for turn in turns:
        flat += turn if turn is IDLE else [turn]
    return History(name, tuple(flat))


@pytest.fixture
def sound(play):
    """Plays a history, demands that nothing is violated, and gives what came of it."""

    def run(*arguments, **more):
        played = play(*arguments, **more)
        assert played.verdict.violations == []
        return played

    return run


SAME = Prompt(0, 2 * GRID + 3)
TWINS = ((arrive("a", SAME), arrive("b", SAME)), *IDLE)


@pytest.mark.parametrize("name", ["page1", "page16", "lazy"])
def test_pr_39765_all_steps_after_a_tracked_prefill_read_one_mapping(sound, name):
    assert sound(history(name, *TWINS)).verdict.early == 1


def test_pr_39765_the_stock_loop_reads_two(play):
    assert STALE in play(history("page1", *TWINS), policy="off").verdict.kinds()


def test_pr_39765_overlap_stays_where_nothing_is_tracked(sound):
    short = arrive("a", Prompt(0, GRID - 1))
    assert sound(history("page1", (short,), IDLE)).verdict.early == 0


def test_pr_39765_a_mixed_batch_with_only_decode_rows_to_publish_overlaps(sound):
    """The decode row has a length of its own to publish, the short prefill none."""
    long = arrive("a", Prompt(0, GRID), 2 * GRID, logprobs=False)
    short = arrive("b", Prompt(1, 5), 2, logprobs=False)
    turns = [(long,), *[()] * (GRID + 1), (short,), *IDLE]
    verdict = sound(history("mixed", *turns)).verdict
    assert verdict.reached["MIXED"] > 0
    assert verdict.early == 1


def plain_radix_cache():
    """A model without linear layers, on a cache that holds the whole prompt."""
    from sglang.srt.configs import linear_attn_model_registry
    from sglang_cpu_testbed.capture import Recorder
    from sglang_cpu_testbed.config import ReferenceConfig
    from sglang_cpu_testbed.engine import Engine

    linear_attn_model_registry.register_linear_attn_model = lambda _: None
    ReferenceConfig.linear_layer_ids = property(lambda _: [])
    ReferenceConfig.full_attention_layer_ids = property(lambda _: [0, 1])
    engine = Engine(
        json_model_override_args='{"num_hidden_layers": 2}',
        mamba_radix_cache_strategy="auto",
        max_mamba_cache_size=None,
    )
    recorder = Recorder(engine.scheduler)
    prompt = SAME.tokens()
    engine.run([Request("a", prompt, 3)])
    outputs = engine.run([Request("b", prompt, 4)])
    return outputs["b"].cached_tokens, stale_steps(recorder.rows)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="38140: on a plain radix cache the recomputed last token of a cached prompt"
    " is read from two slots; nothing is tracked there, so it is not ours to publish",
)
def test_pr_38140_a_cached_prompt_is_read_from_one_mapping(warmed):
    cached, stale = in_fork(plain_radix_cache)
    if cached != len(SAME.tokens()) - 1:
        raise RuntimeError(f"the replay is wrong: {cached} tokens were cached")
    assert stale == []


def test_mini_sglang_pr_142_duplicates_are_freed_once_and_not_read(sound):
    second = arrive("b", Prompt(0, 3 * GRID, branch=1, shared=2 * GRID), 8)
    sound(history("page16", (arrive("a", SAME),), (), (), (second,), IDLE))


def test_issue_39342_a_mixed_prefill_caches_no_wrong_state(sound):
    """The state that a prefill in a mixed batch leaves is read by a later hit."""
    running = arrive("a", Prompt(1, 5), 24, logprobs=False)
    crossing = arrive("b", Prompt(0, 4 * GRID + 3), 2, logprobs=False)
    again = arrive("c", Prompt(0, 5 * GRID), 6, logprobs=False)
    played = sound(
        history("mixed", (running,), (), (), (crossing,), *IDLE, *IDLE, (again,), *IDLE)
    )
    assert played.verdict.reached["MIXED"] > 0
    assert played.verdict.reached["cache hit"] > 0


@pytest.mark.parametrize("states", [4, 5, 6])
@pytest.mark.parametrize("length", [2 * GRID + GRID - 1, 3 * GRID])
def test_pr_37943_a_missing_checkpoint_slot_does_not_end_the_scheduler(
    sound, states, length
):
    tight = replace(
        CONFIGURATIONS["lazy"],
        server_args=CONFIGURATIONS["lazy"].server_args
        | dict(max_mamba_cache_size=states, max_running_requests=1),
    )
    first = arrive("a", Prompt(0, GRID), 2)
    hit = arrive("b", Prompt(0, length), GRID + 4)
    sound(history("lazy", (first,), IDLE, (hit,), IDLE), configuration=tight)


@pytest.mark.parametrize("lead", [0, 1])
def test_pr_29792_the_track_boundary_is_the_batch_s_own(sound, lead):
    """A decode crosses the boundary, with or without a prefill in between; what it
    leaves in the cache is read by the conversation's next turn."""
    prompt = Prompt(2, GRID + GRID - 3)
    turns = [(arrive("a", prompt, GRID + 6),), (), ()]
    if lead == 0:
        turns += [(arrive("b", Prompt(3, 5), 2),)]
    talk = history("page1", *turns, *IDLE, *IDLE)
    answer = tuple(sound(talk).outputs["a"][0])
    following = arrive("c", Said(prompt, answer), 4)
    played = sound(history("page1", *talk.turns, *IDLE, (following,), *IDLE))
    assert played.verdict.reached["cache hit"] > 0


def test_pr_37505_a_prefill_amid_a_decode_costs_no_position(sound):
    long = arrive("a", Prompt(0, GRID + 1), 10)
    turns = [(long,), (), (), (arrive("b", Prompt(1, GRID), 2),), (), ()]
    turns += [(arrive("c", Prompt(2, 7), 2),), *IDLE]
    sound(history("page1", *turns))


def test_pr_25361_the_queue_drains_when_overlap_is_off_for_a_batch(sound):
    turns = [(arrive(f"r{i}", Prompt(i, GRID + i), 3),) for i in range(5)]
    verdict = sound(history("no-prefill-overlap", *turns, *IDLE)).verdict
    assert verdict.launches == verdict.early + verdict.overlapped + verdict.alone


LAST_CHUNK = arrive("a", Prompt(0, 3 * GRID + 5), 6)


@pytest.mark.parametrize("name", ["chunks", "chunks-page16"])
def test_issue_34149_an_abort_behind_the_last_chunk_leaks_nothing(sound, name):
    aborted = history(name, (LAST_CHUNK,), (), (Abort("a"),), IDLE)
    tokens, _, finish = sound(aborted).outputs["a"]
    assert finish["type"] == "abort"


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="34149: a request aborted while its last chunk is in flight gives a token",
)
@pytest.mark.parametrize("policy", ["off", "flush"])
def test_issue_34149_an_abort_behind_the_last_chunk_gives_no_token(play, policy):
    aborted = history("chunks", (LAST_CHUNK,), (), (Abort("a"),), IDLE)
    assert play(aborted, policy=policy).outputs["a"][0] == []


@pytest.mark.parametrize("turn", range(1, 6))
def test_pr_36926_an_abort_at_any_chunk_loses_no_page_and_no_state(sound, turn):
    long = arrive("a", Prompt(0, 5 * GRID + 1), 6)
    turns = [(long,)] + [()] * 6
    turns[turn] = (Abort("a"),)
    again = arrive("b", Prompt(0, 5 * GRID + 1), 4)
    sound(history("chunks", *turns, (again,), IDLE))


def test_issue_38319_a_hit_on_what_a_retracted_request_left_is_right(sound):
    long = arrive("a", Prompt(0, 3 * GRID), 8)
    again = arrive("b", Prompt(0, 3 * GRID), 8)
    other = arrive("o", Prompt(1, 2 * GRID), 8)
    turns = [(long, other), (), (), (Retract(),), (), (Abort("a"),), (again,)]
    played = sound(history("chunks", *turns, *IDLE))
    assert played.verdict.retractions > 0


def test_pr_18803_a_row_is_reused_while_its_last_reader_is_in_flight(sound):
    """One row for two requests: the first ends while its next decode is launched."""
    narrow = replace(CONFIGURATIONS["page1"], server_args=dict(max_running_requests=1))
    first = arrive("a", Prompt(0, 2 * GRID), 5, stop_at=2)
    second = arrive("b", Prompt(1, 2 * GRID), 4)
    sound(history("page1", (first, second), IDLE), configuration=narrow)


@pytest.mark.parametrize("name", ["page1", "lazy"])
@pytest.mark.parametrize("turn", range(1, 6))
def test_pr_26941_an_abort_in_the_queue_frees_each_state_once(sound, name, turn):
    """Requests that wait again after a retraction, aborted there."""
    turns = [
        (arrive("a", SAME, 8), arrive("b", SAME, 8), arrive("c", Prompt(1, 20), 8))
    ]
    turns += [()] * 7
    turns[turn] = (Retract(),)
    turns[turn + 1] = (Abort("b"), Abort("c"))
    sound(history(name, *turns, *IDLE))


def test_pr_39982_unified_memory_flushes_between_results_only(sound):
    turns = [(arrive(f"r{i}", Prompt(i % 2, GRID * (1 + i % 3)), 6),) for i in range(6)]
    turns[3] += (Evict(GRID, 1), Flush())
    verdict = sound(history("unified", *turns, *IDLE)).verdict
    assert verdict.early > 0


def test_issue_39830_a_host_hit_is_right_and_so_is_the_hit_after_it(sound):
    prompt = Prompt(0, 3 * GRID)
    churn = [(arrive(f"x{i}", Prompt(i, 5 * GRID, 1, 1), 2),) for i in range(1, 4)]
    turns = [(arrive("cold", prompt),), *IDLE, (arrive("hit", prompt),), *IDLE]
    for turn in churn:
        turns += [turn, *IDLE]
    turns += [(Evict(1000, 40),), (arrive("host", prompt),), *IDLE]
    turns += [(arrive("again", prompt),), *IDLE]
    played = sound(history("hierarchical", *turns))
    assert played.verdict.reached["loaded from host"] > 0
    outputs = {rid: played.outputs[rid][:2] for rid in ("cold", "hit", "host", "again")}
    assert all(output == outputs["cold"] for output in outputs.values())
