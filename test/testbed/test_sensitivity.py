"""A wrong slot or a wrong state changes the output: without this the comparison
with the oracle would prove nothing."""

import pytest

from sglang_cpu_testbed import exact
from sglang_cpu_testbed.engine import Engine
from sglang_cpu_testbed.fork import fork
from sglang_cpu_testbed.request import Request
from sglang_cpu_testbed.scenarios import prompt

PROMPT = prompt("sensitive", 130)
TOKENS = 8


def running(engine):
    """The one running request's row of req_to_token, its Mamba slot, the pools."""
    scheduler = engine.scheduler
    (req,) = scheduler.running_batch.reqs
    pool = scheduler.req_to_token_pool
    row = pool.req_to_token[req.kv.req_pool_idx]
    cache = scheduler.token_to_kv_pool_allocator.get_kvcache()
    return row, int(req.kv.mamba_pool_idx), pool.mamba_pool.mamba_cache, cache


def bump(cell):
    """Another value the pool can hold."""
    cell.copy_((cell + 1) % exact.P)


def nothing(engine):
    pass


def one_value(engine):
    row, _, _, cache = running(engine)
    bump(cache.get_value_buffer(1)[row[17], 0, 0])


def one_key(engine):
    row, _, _, cache = running(engine)
    bump(cache.get_key_buffer(3)[row[17], 1, 7])


def one_slot_number(engine):
    row, *_ = running(engine)
    row[17] = row[18]


def one_state(engine):
    _, slot, states, _ = running(engine)
    bump(states.temporal[0, slot, 0, 0, 0])


def one_convolution_input(engine):
    _, slot, states, _ = running(engine)
    bump(states.conv[0][1, slot, 5, 0])


DAMAGE = [one_value, one_key, one_slot_number, one_state, one_convolution_input]


def case(damage):
    engine = Engine(disable_overlap_schedule=True)
    script = [Request("r", PROMPT, TOKENS), None, None, damage]
    return engine.run(script)["r"]


@pytest.fixture(scope="module")
def sound(warmed):
    return fork(case, nothing)


def test_without_damage_the_output_is_the_oracle_s(sound, oracle):
    assert (sound.tokens, sound.logprobs) == oracle.greedy(PROMPT, TOKENS)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_changes_the_output(warmed, sound, damage):
    damaged = fork(case, damage)
    # Three turns have passed before it: their tokens are out.
    assert damaged.tokens[:3] == sound.tokens[:3]
    assert damaged.logprobs[3:] != sound.logprobs[3:]
    assert damaged.tokens[3:] != sound.tokens[3:]
