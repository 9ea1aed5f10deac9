"""The virtual device: its clocks, its order of work, and what it makes of an engine."""

from types import SimpleNamespace

import pytest

from sglang_cpu_testbed.fork import fork
from sglang_cpu_testbed.request import Request
from sglang_cpu_testbed.scenarios import prompt
from sglang_cpu_testbed.virtual import timeline as t
from sglang_cpu_testbed.virtual.clock import VirtualClock, WallClock
from sglang_cpu_testbed.virtual.machine import H200

US = 1000


def test_the_virtual_clock_moves_by_charges_and_waits_only():
    clock = VirtualClock()
    with clock.left_out():
        clock.charge(5)
    clock.wait_until(7 * US)
    clock.wait_until(3 * US)
    assert clock.now() == 7 * US


def test_the_wall_clock_leaves_out_and_waits_without_waiting(monkeypatch):
    spent = iter(range(0, 1000, 10))
    source = SimpleNamespace(thread_time_ns=lambda: next(spent))
    monkeypatch.setattr("sglang_cpu_testbed.virtual.clock.time", source)
    clock = WallClock()  # reads 0
    assert clock.now() == 10
    with clock.left_out():  # 20 to 30
        clock.charge(1_000_000)
    assert clock.left_out_ns == 10
    assert clock.now() == 40 - 10
    clock.wait_until(10_000)  # now 40
    assert clock.now() == 10_000 + 10
    clock.wait_until(5)
    assert clock.now() == 10_000 + 30


def test_idle_share_is_between_the_first_launch_and_the_last_result():
    timeline = t.Timeline()
    assert timeline.idle_share() == 0.0
    timeline.add(t.DEVICE, t.PREFILL, 100, 200)
    timeline.add(t.HOST, t.PROCESS, 0, 900)
    timeline.add(t.DEVICE, t.DECODE, 250, 300)
    assert timeline.idle_share() == 0.25


def test_a_machine_prices_both_parts_of_a_mixed_forward():
    token, request = H200.prefill_token_us, H200.decode_request_us
    assert H200.forward_us(0, 2) == H200.decode_us + 2 * request
    assert H200.forward_us(10, 2) == H200.prefill_us + 10 * token + 2 * request
    assert "prefill_us" in H200.lines()[1] and "host_turn_us" in H200.lines()[2]


def _device(overlap=True):
    from sglang_cpu_testbed.virtual.device import VirtualDevice

    stream = SimpleNamespace(wait_stream=None)
    runner = SimpleNamespace(forward=None, sample=None)
    scheduler = SimpleNamespace(
        model_worker=SimpleNamespace(model_runner=runner),
        enable_overlap=overlap,
        schedule_stream=stream,
    )
    return VirtualDevice(scheduler, H200, VirtualClock())


def _batch(tokens):
    mode = SimpleNamespace(is_extend=lambda: tokens > 0)
    return SimpleNamespace(
        reqs=[None], decoding_reqs=None, forward_mode=mode, extend_num_tokens=tokens
    )


def _launch(device, tokens=0):
    result = SimpleNamespace(copy_done=None)
    return device.launch(_batch(tokens), lambda: result).copy_done


def test_forwards_run_one_after_the_other_and_results_wait_for_theirs(warmed):
    device = _device()
    first, second = _launch(device, 100), _launch(device)
    prefill, decode = device.timeline.on(t.DEVICE)
    assert prefill.start_ns == H200.launch_us(1) * US
    assert prefill.end_ns == prefill.start_ns + H200.forward_us(100, 0) * US
    assert decode.start_ns == prefill.end_ns == first.end_ns
    assert not second.query()
    second.synchronize()
    assert device.clock.now() == second.end_ns and first.query()
    (wait,) = [s for s in device.timeline.on(t.HOST) if s.kind == t.WAIT]
    assert wait.end_ns == second.end_ns
    first.synchronize()
    assert device.clock.now() == second.end_ns


@pytest.mark.parametrize("tokens, fenced", [(100, True), (0, False)])
def test_the_schedule_stream_runs_behind_an_extend_only(warmed, tokens, fenced):
    """So the copies of the next batch lie between the forwards, or under the first."""
    device = _device()
    _launch(device, tokens)
    device.scheduler._apply_war_barrier()
    _launch(device)
    before, after = device.timeline.on(t.DEVICE)
    gap = H200.schedule_stream_us * US if fenced else 0
    assert after.start_ns - before.end_ns == gap


def test_a_wait_of_the_schedule_stream_delays_what_it_enqueues_and_not_the_host(warmed):
    device = _device()
    decode = _launch(device)
    now = device.clock.now()
    device.scheduler.schedule_stream.wait_stream(None)
    device.schedule_work(10)
    assert device.clock.now() == now
    _launch(device)
    start = device.timeline.on(t.DEVICE)[1].start_ns
    assert start == decode.end_ns + (10 + H200.schedule_stream_us) * US


def _timed(overlap: bool):
    from sglang_cpu_testbed.engine import Engine
    from sglang_cpu_testbed.virtual.device import VirtualDevice
    from sglang_cpu_testbed.virtual.meter import Meter

    engine = Engine(disable_overlap_schedule=not overlap)
    device = VirtualDevice(engine.scheduler, H200, VirtualClock())
    meter = Meter(engine, device)
    tokens = prompt("virtual", 100)
    requests = [Request(rid, tokens, 3, logprobs=False) for rid in ("a", "b")]

    def script():
        yield lambda engine: meter.turn(requests)
        while engine.open_rids:
            yield lambda engine: meter.turn(())

    engine.run(script())
    moments = {rid: stream.token_ns for rid, stream in meter.streams.items()}
    return moments, device.timeline, meter.rows.changed, meter.early


def test_an_engine_on_the_device(warmed):
    env = {"SGLANG_MAMBA_BOUNDARY": "off"}
    moments, timeline, changed, early = fork(_timed, True, env=env)
    prefill, *decodes = timeline.on(t.DEVICE)
    assert prefill.label == "1: 2 requests, 200 tokens"
    assert {span.kind for span in decodes} == {t.DECODE}
    # A request that does not stream is answered at its end, behind its last forward.
    last = decodes[-1].end_ns
    assert all(len(times) == 3 and times[-1] > last for times in moments.values())
    assert changed == 1 and early == 0
    again = fork(_timed, True, env=env)
    assert again[0] == moments and again[1].spans == timeline.spans


def test_without_overlap_the_device_idles_in_each_turn(warmed):
    _, timeline, changed, _ = fork(_timed, False, env={"SGLANG_MAMBA_BOUNDARY": "off"})
    spans = timeline.on(t.DEVICE)
    pairs = zip(spans, spans[1:])
    assert all(after.start_ns > before.end_ns for before, after in pairs)
    assert changed == 0


def test_an_early_result_is_counted_by_the_meter(warmed):
    env = {"SGLANG_MAMBA_BOUNDARY": "flush"}
    _, _, changed, early = fork(_timed, True, env=env)
    assert (changed, early) == (0, 1)
