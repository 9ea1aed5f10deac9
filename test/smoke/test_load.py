"""The smoke's load, short: clients with shared prefixes that hang up now and then."""

from sglang_cpu_testbed.smoke.load import run_load

LOAD_S = 15


def test_a_loaded_server_answers_counts_and_keeps_its_slots(wanted, woven):
    load = run_load(woven, LOAD_S, wanted.load_seed, wanted.load)
    failed = [one for one in load.expectations() if not one.holds]
    assert failed == [], load.summary()
