"""The lagging device: what is known when, in which order, and what a launch captures."""

from staging import in_fork, stage

from sglang_cpu_testbed.simulation.device import UNKNOWN_TOKEN
from sglang_cpu_testbed.simulation.history import Arrive, History, Prompt

ONE = History("page1", ((Arrive("a", Prompt(0, 40), 6),), (), (), (), (), ()))


def play(at_turn, act, **arguments):
    """The verdict, and what ``act`` gave when it was called within a turn."""
    built, seen = stage(**arguments), []
    turn = built._turn

    def acting(operations):
        turn(operations)
        if built.engine.turn == at_turn:
            seen.append(act(built))

    built._turn = acting
    return built.play(ONE), seen[0]


def pending_result(built):
    """A launched decode: before and after it is executed."""
    device = built.device
    _, result = built.scheduler.result_queue[-1]
    before = device.pending, result.copy_done.query(), result.next_token_ids.tolist()
    device.complete()
    after = device.pending, result.copy_done.query(), result.next_token_ids.tolist()
    return before, after


def test_a_result_is_unknown_until_the_device_has_executed(warmed):
    verdict, (before, after) = in_fork(play, 4, pending_result)
    assert before == (1, False, [UNKNOWN_TOKEN])
    assert after[:2] == (0, True) and after[2][0] >= 0
    assert verdict.violations == []


def waiting(built):
    device, (_, result) = built.device, built.scheduler.result_queue[-1]
    waits = device.waits
    result.copy_done.synchronize()
    result.copy_done.synchronize()
    return device.waits - waits, device.completed == device.launched


def test_a_wait_executes_what_was_launched_and_counts_once(warmed):
    _, seen = in_fork(play, 4, waiting)
    assert seen == (1, True)


def row_of(built):
    (req,) = built.scheduler.running_batch.reqs
    return built.scheduler.req_to_token_pool.req_to_token[req.kv.req_pool_idx]


def late_row(built):
    """A row written behind the launch, and put back when it has run."""
    row = row_of(built)
    kept, row[3] = int(row[3]), row[4]
    built.device.complete()
    row[3] = kept


def test_a_launch_reads_the_rows_of_its_launch(warmed):
    verdict, _ = in_fork(play, 4, late_row)
    assert verdict.violations == []


def early_row(built):
    """The same row, written before the launch of the next decode."""
    row = row_of(built)
    built.device.complete()
    row[3] = row[4]


def test_a_row_written_before_a_launch_is_read_by_it(warmed):
    verdict, _ = in_fork(play, 4, early_row)
    assert "wrong output" in verdict.kinds()


def order(built):
    """Two launches at once: the older is executed first."""
    seen = []
    built.device.before_forward = seen.append
    built.scheduler.process_batch_result = _remembering(
        built.scheduler.process_batch_result, built.device, seen
    )


def _remembering(process, device, seen):
    def processing(*args, **kwargs):
        pending = device.pending
        process(*args, **kwargs)
        seen.append((pending, device.pending))

    processing.seen = seen
    return processing


def launch_order():
    built = stage()
    order(built)
    verdict = built.play(ONE)
    return verdict, built.scheduler.process_batch_result.seen


def test_the_device_executes_in_launch_order_and_only_when_waited_for(warmed):
    verdict, seen = in_fork(launch_order)
    launches = [entry for entry in seen if isinstance(entry, int)]
    processed = [entry for entry in seen if not isinstance(entry, int)]
    assert launches == list(range(1, verdict.launches + 1))
    # The prefill alone, then each decode with its successor launched, then the last.
    assert processed == [(1, 0)] + [(2, 1)] * (len(processed) - 2) + [(1, 0)]


def without_lag():
    built = stage("unified")
    return built.play(ONE), built.device.waits


def test_a_device_that_does_not_lag_is_never_waited_for(warmed):
    verdict, waits = in_fork(without_lag, name="unified")
    assert (verdict.violations, waits) == ([], 0)
    assert verdict.overlapped > 0
