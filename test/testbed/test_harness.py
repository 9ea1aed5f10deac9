"""The engine harness and the fork: scripts, control messages, children that fail."""

import os
import signal

import pytest

from sglang_cpu_testbed.capture import Recorder, stale_steps
from sglang_cpu_testbed.engine import Engine, Stalled
from sglang_cpu_testbed.fork import CaseFailed, fork
from sglang_cpu_testbed.request import Request
from sglang_cpu_testbed.scenarios import BOUNDARY_SWITCH, prompt

X, Y = prompt("x", 150), prompt("y", 150)


def scripted(script, **server_args):
    engine = Engine(**server_args)
    return engine.run(script)


def test_sampling_fields_reach_the_engine(warmed, oracle):
    free, _ = oracle.greedy(X, 8)
    stop = [free[3]]
    requests = [
        Request("stops", X, 8, sampling={"stop_token_ids": stop}),
        Request("penalised", X, 8, sampling={"frequency_penalty": 2.0}),
        Request("single", X, 1),
    ]
    outputs = fork(scripted, [requests])
    assert outputs["stops"].tokens == oracle.greedy(X, 8, stop)[0] == free[:4]
    assert outputs["stops"].finish == {"type": "stop", "matched": stop[0]}
    assert outputs["penalised"].finish == {"type": "length", "length": 8}
    assert outputs["single"].tokens == free[:1]


def aborting():
    engine = Engine()
    script = [
        [Request("kept", X, 8), Request("dropped", Y, 64)],
        None,
        lambda e: e.abort("dropped"),
    ]
    return engine.run(script)


def test_abort(warmed, oracle):
    outputs = fork(aborting)
    assert outputs["kept"].tokens == oracle.greedy(X, 8)[0]
    dropped = outputs["dropped"]
    assert dropped.finish["type"] == "abort"
    assert dropped.tokens == oracle.greedy(Y, 64)[0][: len(dropped.tokens)]
    assert len(dropped.tokens) < 8


def pausing(mode):
    from sglang.srt.managers.io_struct import (
        ContinueGenerationReqInput,
        PauseGenerationReqInput,
    )

    engine = Engine()
    frozen = []

    def pause(e):
        e.control(PauseGenerationReqInput(mode=mode))

    def look(e):
        (req,) = [r for r in e.scheduler.running_batch.reqs] or [None]
        frozen.append(None if req is None else len(req.output_ids))

    script = [Request("r", X, 8), None, None, pause, look, None, look]
    script.append(lambda e: e.control(ContinueGenerationReqInput()))
    return engine.run(script)["r"], frozen


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_script_can_pause_and_continue(warmed, oracle, mode):
    output, frozen = fork(pausing, mode)
    assert frozen[0] == frozen[1]
    assert output.retractions == (mode == "retract")
    assert (output.tokens, output.logprobs) == oracle.greedy(X, 8)


def retracting():
    import sglang.srt.managers.scheduler as module

    # Read at import, so the environment comes too late in a forked child.
    module.TEST_RETRACT = True
    module.TEST_RETRACT_INTERVAL = 5
    engine = Engine()
    recorder = Recorder(engine.scheduler)
    requests = [Request("first", X, 12), Request("second", X, 12)]
    return engine.run([requests]), recorder.rows


def test_a_retracted_request_begins_a_new_attempt(warmed, oracle):
    outputs, rows = fork(retracting, env={BOUNDARY_SWITCH: "off"})
    for output in outputs.values():
        assert (output.tokens, output.logprobs) == oracle.greedy(X, 12)
    assert sum(output.retractions for output in outputs.values()) > 0
    assert max(row.attempt for row in rows) > 1
    assert len({(row.rid, row.attempt, row.step) for row in rows}) == len(rows)


def test_rows_of_mixed_batches_are_recorded(warmed, oracle):
    def case():
        engine = Engine(chunked_prefill_size=512, enable_mixed_chunk=True)
        recorder = Recorder(engine.scheduler)
        twins = [Request(rid, X, 6, logprobs=False) for rid in ("first", "second")]
        late = Request("long", prompt("long", 900), 3, logprobs=False)
        return engine.run([twins, late]), recorder.rows

    outputs, rows = fork(case, env={BOUNDARY_SWITCH: "off"})
    assert outputs["second"].tokens == oracle.greedy(X, 6)[0]
    assert outputs["second"].logprobs == []
    assert {row.mode for row in rows} == {"MIXED", "DECODE"}
    assert all(len(row.slots) == row.prompt_len + row.step for row in rows)
    (stale,) = stale_steps(rows)
    assert (stale.row.rid, stale.row.step, stale.row.mode) == ("second", 1, "MIXED")
    assert (stale.differ, stale.first) == (128, 0)


def test_an_engine_can_run_a_second_script(warmed, oracle):
    def case():
        engine = Engine()
        engine.run([Request("one", X, 4)])
        return engine.run([Request("two", X, 4)])

    outputs = fork(case)
    assert outputs["one"].tokens == outputs["two"].tokens == oracle.greedy(X, 4)[0]
    assert outputs["two"].cached_tokens == 128


def test_the_slot_switch_is_also_a_model_override(warmed):
    override = '{"slot_dependence": true}'
    plain = fork(scripted, [Request("r", X, 4)])["r"]
    sensitive = fork(scripted, [Request("r", X, 4)], json_model_override_args=override)[
        "r"
    ]
    shifts = [
        abs(a - b) for a, b in zip(plain.logprobs, sensitive.logprobs, strict=True)
    ]
    assert max(shifts) > 1e-3


def test_a_script_that_does_not_end_is_reported(warmed):
    with pytest.raises(
        CaseFailed, match="Stalled: 30 loop turns, still open"
    ) as caught:
        fork(endless)
    assert caught.value.reason == "raised"


def endless():
    Engine().run([Request("r", X, 1000)], max_turns=30)


def test_stalled_names_the_open_requests():
    assert Stalled(3, ["a"]).open_rids == ["a"]


def raising():
    print("about to fail")
    raise ValueError("on purpose")


def test_a_child_that_raises(warmed):
    with pytest.raises(CaseFailed) as caught:
        fork(raising)
    assert caught.value.reason == "raised"
    assert "in raising" in caught.value.detail
    assert "ValueError: on purpose" in caught.value.detail
    assert caught.value.log == "about to fail\n"


def test_a_child_that_dies(warmed):
    with pytest.raises(CaseFailed, match="exit status -9") as caught:
        fork(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert caught.value.reason == "died"


def test_a_child_that_hangs_is_killed(warmed):
    with pytest.raises(CaseFailed, match="no result in 0.2 s") as caught:
        fork(signal.pause, timeout_s=0.2)
    assert caught.value.reason == "hung"


def test_a_result_that_cannot_be_pickled(warmed):
    with pytest.raises(CaseFailed) as caught:
        fork(lambda: lambda: None)
    assert caught.value.reason == "raised"


def test_a_child_has_its_own_session_and_environment(warmed):
    name = "SGLANG_TESTBED_TEST"
    seen = fork(
        lambda: (os.getsid(0) == os.getpid(), os.environ[name]), env={name: "x"}
    )
    assert seen == (True, "x")
    assert name not in os.environ
