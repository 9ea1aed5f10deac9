"""Each oracle can say no: one damage per class of violation, on the right loop."""

import pytest
from staging import in_fork, stage

from sglang_cpu_testbed.simulation.history import Arrive, Complete, History, Prompt
from sglang_cpu_testbed.simulation.verdict import (
    ENGINE,
    OUTPUT,
    OWNERSHIP,
    RESULTS,
    STALE,
    WAIT,
    Verdict,
    Violation,
)

LENGTH = 40
QUIET = History(
    "page1",
    (
        (Arrive("a", Prompt(0, LENGTH), 6),),
        (),
        (),
        (Complete(),),
        (),
    ),
)


def row_of(stage):
    (req,) = stage.scheduler.running_batch.reqs
    return stage.scheduler.req_to_token_pool.req_to_token[req.kv.req_pool_idx]


def nothing(stage):
    pass


def rewrite_a_row(stage):
    """To a slot with the same content, so that only the capture can tell."""
    row, allocator = row_of(stage), stage.scheduler.token_to_kv_pool_allocator
    spare, cache = allocator.free_pages[-1], allocator.get_kvcache()
    for buffer in (cache.get_key_buffer(1), cache.get_value_buffer(1)):
        buffer[spare] = buffer[row[3]]
    row[3] = spare


def lose_a_page(stage):
    stage.scheduler.token_to_kv_pool_allocator.alloc(1)


def give_a_page_twice(stage):
    allocator = stage.scheduler.token_to_kv_pool_allocator
    allocator.free_pages[0] = allocator.free_pages[1]


def lose_a_state(stage):
    stage.scheduler.req_to_token_pool.mamba_allocator.alloc(1)


def give_a_state_twice(stage):
    allocator = stage.scheduler.req_to_token_pool.mamba_allocator
    allocator.free_slots[0] = allocator.free_slots[1]


def lose_a_row(stage):
    stage.scheduler.req_to_token_pool.free_slots.pop()


def free_a_page_in_use(stage):
    stage.poison._overwrite(row_of(stage)[3:4])


def free_a_state_in_use(stage):
    (req,) = stage.scheduler.running_batch.reqs
    stage.poison._freed_states(req.kv.mamba_pool_idx.unsqueeze(0))


def wait_for_a_decode(stage):
    """As a drain at the boundary would, behind the turn's intake."""
    scheduler, select = stage.scheduler, stage.scheduler.get_next_batch_to_run

    def drained(*args, **kwargs):
        scheduler.get_next_batch_to_run = select
        scheduler.process_batch_result(*scheduler.result_queue[0])
        scheduler.result_queue.clear()
        scheduler.last_batch = None
        return select(running_batch=kwargs["running_batch"], last_batch=None)

    scheduler.get_next_batch_to_run = drained


def break_the_launch(stage):
    def raising(*_, **__):
        raise RuntimeError("the launch broke")

    stage.scheduler.run_batch = raising


def case(damage):
    built = stage()
    turn = built._turn

    def damaged(operations):
        turn(operations)
        if built.engine.turn == 4:
            damage(built)

    built._turn = damaged
    return built.play(QUIET)


@pytest.fixture
def kinds(warmed):
    return lambda damage: in_fork(case, damage).kinds()


def test_without_damage_there_is_no_violation(warmed):
    verdict = in_fork(case, nothing)
    assert verdict.violations == [] and verdict.reusable
    # Prefill, five decodes, one of them in flight when the last token comes.
    assert (verdict.requests, verdict.early) == (1, 1)
    assert verdict.launches == verdict.overlapped + verdict.early + verdict.alone


def test_a_row_that_changes_is_a_stale_capture(kinds):
    assert STALE in kinds(rewrite_a_row)


@pytest.mark.parametrize(
    "damage",
    [lose_a_page, give_a_page_twice, lose_a_state, give_a_state_twice, lose_a_row],
    ids=lambda damage: damage.__name__,
)
def test_a_slot_without_or_with_two_owners_is_found(kinds, damage):
    assert OWNERSHIP in kinds(damage)


@pytest.mark.parametrize(
    "damage", [free_a_page_in_use, free_a_state_in_use], ids=lambda d: d.__name__
)
def test_reading_a_freed_slot_is_a_wrong_output(kinds, damage):
    assert kinds(damage) == {OUTPUT}


def test_a_drained_decode_is_a_needless_wait(kinds):
    assert kinds(wait_for_a_decode) == {WAIT}


def test_an_exception_is_an_engine_failure(kinds):
    assert kinds(break_the_launch) == {ENGINE}


def between_prefills():
    """An engine told not to overlap prefills, judged as one that was not."""
    built = stage()
    short = [(Arrive(f"r{i}", Prompt(i, 5), 2),) for i in range(3)]
    return built.play(History("page1", tuple(short)))


def test_a_wait_between_selection_and_launch_is_needless(warmed):
    switch = {"SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP": "1"}
    verdict = in_fork(between_prefills, env=switch)
    assert verdict.kinds() == {WAIT}
    assert "between selection and launch" in verdict.violations[0].text
    assert in_fork(between_prefills).violations == []


def stalling():
    from sglang_cpu_testbed.simulation import play

    play.MAX_TURNS = 4
    return stage().play(QUIET)


def test_a_run_without_an_end_is_an_engine_failure(warmed):
    verdict = in_fork(stalling)
    assert verdict.kinds() == {ENGINE} and not verdict.reusable


def results_case(order):
    """The watch alone, with results handed to it in this order."""
    built = stage()
    watch, scheduler = built.watch, built.scheduler

    class Batch:
        reqs = []

        class forward_mode:
            name = "DECODE"
            is_decode = staticmethod(lambda: True)
            is_mixed = staticmethod(lambda: False)
            is_extend = staticmethod(lambda: False)

    watch._process = lambda *_: None
    watch.phase = 0
    results = [object() for _ in range(3)]
    watch._results = dict(enumerate(results, 1))
    watch._launched = len(results)
    for index in order:
        scheduler.process_batch_result(Batch, results[index])
    watch.end()
    return [violation.kind for violation in watch.violations]


@pytest.mark.parametrize(
    "order, found",
    [((0, 1, 2), 0), ((0, 0, 1, 2), 1), ((1, 0, 2), 3), ((0, 1), 1)],
    ids=["right", "twice", "swapped", "lost"],
)
def test_results_out_of_order_are_found(warmed, order, found):
    assert in_fork(results_case, order) == [RESULTS] * found


def test_other_bits_than_without_overlap_are_found():
    reference = {"a": ([1, 2], [0.1, 0.2], {"type": "length"})}
    for tokens, logprobs, finish, wrong in (
        ([1, 2], [0.1, 0.2], "length", False),
        ([1, 3], [0.1, 0.2], "length", True),
        ([1, 2], [0.1, 0.2 + 1e-16], "length", True),
        ([1], [0.1], "length", True),
        ([1], [0.1], "abort", False),
        ([2], [0.1], "abort", True),
    ):
        verdict = Verdict()
        verdict.compare({"a": (tokens, logprobs, {"type": finish})}, reference)
        assert verdict.kinds() == ({OUTPUT} if wrong else set())


def test_a_violation_reads_as_a_sentence():
    assert str(Violation(WAIT, 3, "why")) == "needless wait in turn 3: why"
