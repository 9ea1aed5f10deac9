"""The arithmetic against loops that do one step at a time."""

import pytest
import torch

from sglang_cpu_testbed import exact

P = exact.P


def naive_scan(start, inputs, units):
    states, state = [], start
    for row in inputs:
        state = (units * state + row) % P
        states.append(state)
    return torch.stack(states)


@pytest.fixture
def recurrence():
    exponents = exact.table("exponents", 5, low=1, high=exact.ORDER)
    units = torch.tensor([pow(exact.GENERATOR, int(e), P) for e in exponents])
    return exact.powers_of(exponents), units


@pytest.mark.parametrize("length", [1, 2, 249, 250, 251, 700])
def test_scan_is_the_recurrence(recurrence, length):
    powers, units = recurrence
    start, inputs = exact.table("start", 5), exact.table("inputs", length, 5)
    expected = naive_scan(start, inputs, units)
    assert torch.equal(exact.scan(start, inputs, powers), expected)


@pytest.mark.parametrize("cut", [1, 63, 64, 299])
def test_scan_goes_on_where_it_stopped(recurrence, cut):
    powers, _ = recurrence
    start, inputs = exact.table("start", 5), exact.table("inputs", 300, 5)
    whole = exact.scan(start, inputs, powers)
    head = exact.scan(start, inputs[:cut], powers)
    tail = exact.scan(head[-1], inputs[cut:], powers)
    assert torch.equal(torch.cat([head, tail]), whole)


def test_the_generator_reaches_every_unit():
    assert len({pow(exact.GENERATOR, e, P) for e in range(exact.ORDER)}) == P - 1


def test_convolution_looks_back_over_its_taps():
    taps, window = exact.table("taps", 4, 3), exact.table("window", 10, 3)
    expected = [
        sum(window[t + j] * taps[j] for j in range(4)) % P for t in range(10 - 3)
    ]
    assert torch.equal(exact.convolve(window, taps), torch.stack(expected))


@pytest.fixture
def attention():
    q, k = exact.table("q", 3, 2, 8), exact.table("k", 40, 2, 8)
    return q, k, exact.table("v", 40, 2, 8), torch.tensor([38, 39, 40])


def naive_attend(q, k, v, seen, weights):
    out = torch.zeros_like(q)
    for t, h in torch.cartesian_prod(torch.arange(3), torch.arange(2)).tolist():
        for j in range(int(seen[t])):
            weight = weights[int((q[t, h] * k[j, h]).sum()) % P]
            out[t, h, :-1] += weight * v[j, h, :-1]
            out[t, h, -1] += v[j, h, -1]
        out[t, h, :-1] %= P
        out[t, h, -1] = out[t, h, -1] * exact.SLOT_UNIT // seen[t]
    return out


def test_attention_is_the_sum_over_positions(attention):
    weights = exact.attention_weights()
    assert torch.equal(
        exact.attend(*attention, weights), naive_attend(*attention, weights)
    )


def test_attention_does_not_depend_on_the_order_of_summation(attention):
    q, k, v, _ = attention
    seen, order = torch.tensor([40, 40, 40]), torch.arange(39, -1, -1)
    weights = exact.attention_weights()
    assert torch.equal(
        exact.attend(q, k, v, seen, weights),
        exact.attend(q, k[order], v[order], seen, weights),
    )


def test_bfloat16_holds_every_value():
    values = torch.arange(P)
    assert torch.equal(values.bfloat16().long(), values)


def test_slot_values_tell_slots_and_salts_apart():
    slots = torch.arange(1000)
    a, b = exact.slot_value(slots, 0), exact.slot_value(slots, 1)
    assert a.min() >= 0 and a.max() < P
    assert len(a.unique()) > 200
    assert (a == b).double().mean() < 0.05
