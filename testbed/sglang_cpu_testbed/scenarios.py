"""The traffic in which the stock engine was seen to read stale slots, and the
three configurations it is compared in."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sglang_cpu_testbed import SLOT_SWITCH
from sglang_cpu_testbed.capture import Recorder, Row
from sglang_cpu_testbed.engine import Engine
from sglang_cpu_testbed.fork import fork
from sglang_cpu_testbed.request import Output, Request

PROMPT_LEN = 422
SHARED_LEN = 300
NEW_TOKENS = 4
BOUNDARY_SWITCH = "SGLANG_MAMBA_BOUNDARY"
# SGLang's fence between its streams: on CUDA it is on by itself, here it does nothing,
# but the policy publish asks for it.
BARRIER_SWITCH = "SGLANG_ENABLE_WAR_BARRIER"


@dataclass(frozen=True, eq=False)
class Configuration:
    """An engine to run: the plugin's mode and ServerArgs fields."""

    name: str
    boundary: str
    server_args: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """``script`` gives an engine what arrives turn by turn; ``watched`` are the
    requests it is about."""

    name: str
    script: Callable[[Engine], Iterator]
    watched: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """What one scenario gave in one configuration."""

    outputs: dict[str, Output]
    rows: list[Row]

    def rows_of(self, rid: str) -> list[Row]:
        return [row for row in self.rows if row.rid == rid]


STOCK = Configuration("stock engine", "off")
WOVEN = Configuration("woven engine", "flush")
PUBLISHED = Configuration("published ahead", "publish")
LATE = Configuration("woven, late", "late")
REBOUND = Configuration("woven, rebind", "rebind")
# Every policy that puts the fix into the loop.
FIXED = (WOVEN, PUBLISHED, LATE, REBOUND)
NO_OVERLAP = Configuration(
    "overlap disabled", "off", {"disable_overlap_schedule": True}
)
CONFIGURATIONS = (STOCK, WOVEN, NO_OVERLAP)


def prompt(name: str, length: int, vocab: int = 512) -> tuple[int, ...]:
    """Token ids fixed by ``name``; a longer prompt extends a shorter one."""
    source = random.Random(name)
    return tuple(source.randrange(vocab) for _ in range(length))


def _together(engine: Engine) -> Iterator:
    tokens = prompt("together", PROMPT_LEN)
    yield [Request(rid, tokens, NEW_TOKENS) for rid in ("first", "second")]


def _warm(engine: Engine) -> Iterator:
    earlier = prompt("earlier", PROMPT_LEN)
    yield Request("earlier", earlier, NEW_TOKENS)
    while engine.open_rids:
        yield None
    branch = prompt("branch", PROMPT_LEN - SHARED_LEN)
    yield Request("branch", earlier[:SHARED_LEN] + branch, NEW_TOKENS)


TOGETHER = Scenario("together", _together, ("first", "second"))
WARM = Scenario("warm", _warm, ("branch",))
SCENARIOS = (TOGETHER, WARM)


def run_here(scenario: Scenario, **server_args) -> Run:
    """Run a scenario in this process, which must not have had an engine."""
    engine = Engine(**server_args)
    recorder = Recorder(engine.scheduler)
    return Run(engine.run(scenario.script(engine)), recorder.rows)


def run(
    scenario: Scenario, configuration: Configuration, slots_matter: bool = False
) -> Run:
    """Run a scenario in a forked child; call ``warm()`` first."""
    return fork(
        run_here,
        scenario,
        env={
            BOUNDARY_SWITCH: configuration.boundary,
            BARRIER_SWITCH: "1",
            SLOT_SWITCH: "1" if slots_matter else "0",
        },
        **configuration.server_args,
    )
