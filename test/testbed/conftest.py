"""One warm process for all engine tests: every case runs in a fork of it."""

import pytest

from sglang_cpu_testbed.fork import warm
from sglang_cpu_testbed.scenarios import CONFIGURATIONS, SCENARIOS, run


@pytest.fixture(scope="session")
def warmed():
    """Imports SGLang with the testbed selected, so run this folder on its own."""
    warm()


@pytest.fixture(scope="session")
def oracle(warmed):
    from sglang_cpu_testbed.oracle import Oracle

    return Oracle()


@pytest.fixture(scope="session")
def runs(warmed):
    """Per slots_matter, configuration and scenario: what it gave, run once."""
    return {
        slots_matter: {
            (configuration, scenario): run(scenario, configuration, slots_matter)
            for configuration in CONFIGURATIONS
            for scenario in SCENARIOS
        }
        for slots_matter in (False, True)
    }
