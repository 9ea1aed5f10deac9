"""Small cases by Hypothesis: its rules write a history, the end of an example plays
it, and a failing one is cut down by Hypothesis."""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from sglang_cpu_testbed.simulation import history as h
from sglang_cpu_testbed.simulation.configurations import CONFIGURATIONS, GRID
from sglang_cpu_testbed.simulation.shrink import shrink
from sglang_cpu_testbed.simulation.verdict import STALE

SETTINGS = settings(
    max_examples=60,
    stateful_step_count=14,
    deadline=None,
    print_blob=True,
    # A found history is in the message; nothing is kept between runs.
    database=None,
    derandomize=bool(os.environ.get("CI")),
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
PROMPTS = st.builds(
    h.Prompt,
    family=st.integers(0, 1),
    length=st.sampled_from([1, GRID - 1, GRID, GRID + 1, 2 * GRID + 3, 3 * GRID]),
    branch=st.integers(0, 1),
    shared=st.sampled_from([GRID // 2, GRID]),
)


class Violates(AssertionError):
    def __init__(self, history, violations):
        self.history = history
        super().__init__("\n".join([*history.lines(), *map(str, violations)]))


class Machine(RuleBasedStateMachine):
    """One example is one history. ``player`` and ``name`` are set by the test."""

    player = None
    name = "page1"

    def __init__(self):
        super().__init__()
        self.turns = [[]]
        self.arrived = 0

    @rule(prompt=PROMPTS, new_tokens=st.integers(1, 5), twice=st.booleans())
    def arrive(self, prompt, new_tokens, twice):
        for _ in range(1 + twice):
            self.turns[-1].append(h.Arrive(f"r{self.arrived}", prompt, new_tokens))
            self.arrived += 1

    @rule(number=st.integers(0, 3))
    def abort(self, number):
        self.turns[-1].append(h.Abort(f"r{number}"))

    @rule(
        operation=st.sampled_from(
            [
                h.Complete(),
                h.Retract(),
                h.Flush(),
                h.Pause("in_place"),
                h.Pause("retract"),
                h.Continue(),
                h.Evict(GRID, 1),
            ]
        )
    )
    def other(self, operation):
        self.turns[-1].append(operation)

    @rule(count=st.integers(1, 3))
    def turn(self, count):
        self.turns += [[] for _ in range(count)]

    def teardown(self):
        history = h.History(self.name, tuple(map(tuple, self.turns)))
        violations = self.player.play(history).verdict.violations
        if violations:
            raise Violates(history, violations)


def run_machine(player, name, chosen=SETTINGS):
    machine = type("Playing", (Machine,), {"player": player, "name": name})
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.parametrize("name", ["page1", "lazy", "chunks-page16"])
def test_no_small_history_violates(campaign_of, name):
    with campaign_of("flush").player(CONFIGURATIONS[name]) as player:
        run_machine(player, name)


def test_an_abort_ends_all_requests_whose_id_begins_so(play):
    """The engine's own rule: what ends by it was aborted, and is no violation."""
    arrivals = [h.Arrive(f"r{n}", h.Prompt(0, 1), 3) for n in range(11)]
    history = h.History("page1", ((*arrivals, h.Abort("r1")),))
    played = play(history)
    assert played.verdict.violations == []
    assert played.verdict.reached["finished by abort"] == 2


def test_the_machine_finds_the_stock_fault(campaign_of):
    """Two requests with the same prompt in one turn are all it takes."""
    only_find = settings(SETTINGS, derandomize=True, phases=[Phase.generate])
    with campaign_of("off").player(CONFIGURATIONS["page1"]) as player:
        with pytest.raises(Violates, match="stale capture") as caught:
            run_machine(player, "page1", only_find)

        def stale(history):
            return STALE in player.play(history).verdict.kinds()

        # Quicker than Hypothesis, which knows nothing of turns and requests.
        shortest = shrink(caught.value.history, stale)
    (turn,) = filter(None, shortest.turns)
    first, second = turn
    assert first.prompt.tokens()[:GRID] == second.prompt.tokens()[:GRID]
    assert second.new_tokens == 2
