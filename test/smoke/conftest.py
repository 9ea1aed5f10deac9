"""Two servers for the whole suite: the one with overlap disabled answers everything
once and is killed, the woven one takes its port and stays for the tests."""

import urllib.error
from dataclasses import dataclass

import pytest
from bench import bench
from clients import ASKS, penalised, twice
from killing import kill

from sglang_cpu_testbed.scenarios import NO_OVERLAP, WOVEN
from sglang_cpu_testbed.smoke.asks import Answers, ask
from sglang_cpu_testbed.smoke.servers import launch
from sglang_cpu_testbed.smoke.traffic import references

LOAD_SEED = 7


@dataclass(frozen=True)
class Wanted:
    """Answers of the server with overlap disabled, and where it was."""

    url: str
    asks: dict[str, list[dict]]
    bench: dict
    penalised: dict
    load_seed: int
    load: list[list[int]]
    smoke: Answers


@pytest.fixture(scope="session")
def wanted(tmp_path_factory) -> Wanted:
    with launch(NO_OVERLAP) as server:
        answers = Wanted(
            url=server.url,
            asks={name: twice(server, name) for name in ASKS},
            bench=bench(server, "inf", tmp_path_factory.mktemp("bench")),
            penalised=penalised(server, "penalised"),
            load_seed=LOAD_SEED,
            load=references(server, LOAD_SEED),
            smoke=ask(server),
        )
        assert kill(server) == []
        return answers


@pytest.fixture(scope="session")
def woven(wanted):
    """Started again where the other was; never beside it: there are two cores. It is
    killed once all tests are done with it, and leaves nothing behind."""
    with launch(WOVEN, port=int(wanted.url.rsplit(":", 1)[1])) as server:
        yield server
        assert kill(server) == []
        with pytest.raises(urllib.error.URLError):
            server.get("/health")
