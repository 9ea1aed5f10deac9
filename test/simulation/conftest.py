"""One warm process; every engine lives in a fork of it."""

import pytest

from sglang_cpu_testbed.fork import warm
from sglang_cpu_testbed.simulation.campaign import Campaign
from sglang_cpu_testbed.simulation.configurations import CONFIGURATIONS


@pytest.fixture(scope="session")
def warmed():
    warm()


@pytest.fixture(scope="session")
def campaign_of(warmed):
    """A campaign per policy; what the model answers is learnt once."""
    campaigns, answers = {}, {}

    def of(policy):
        if policy not in campaigns:
            campaigns[policy] = Campaign(policy, answers=answers)
        return campaigns[policy]

    return of


class OneEngine:
    """The player of the last test, kept for the next one if that wants the same."""

    def __init__(self):
        self.wanted, self.player = None, None

    def of(self, campaign, configuration):
        wanted = campaign, configuration
        if self.wanted != wanted:
            self.close()
            self.wanted, self.player = wanted, campaign.player(configuration)
        return self.player

    def close(self):
        if self.player is not None:
            self.player.__exit__()
        self.wanted = self.player = None


@pytest.fixture(scope="module")
def engine():
    kept = OneEngine()
    yield kept
    kept.close()


@pytest.fixture
def play(campaign_of, engine):
    """Plays one history: its verdict and outputs."""

    def run(history, policy="flush", configuration=None):
        chosen = configuration or CONFIGURATIONS[history.configuration]
        return engine.of(campaign_of(policy), chosen).play(history)

    return run
