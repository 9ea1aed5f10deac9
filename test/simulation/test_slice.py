"""The slice of seeds that CI plays, the same seeds giving the same runs, and what the
command says and writes."""

import json
from pathlib import Path

import pytest

from sglang_cpu_testbed.simulation import __main__ as command
from sglang_cpu_testbed.simulation.campaign import history_of
from sglang_cpu_testbed.simulation.configurations import CONFIGURATIONS
from sglang_mamba_boundary.settings import WEAVING

SEEDS = 518
# Of each other policy.
SMALL = 140
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def written(warmed, tmp_path_factory):
    """What the command writes for the slice."""
    path = tmp_path_factory.mktemp("simulation") / "simulation.json"
    status = command.main(
        ["--seeds", str(SEEDS), "--reference-every", "10", "--output", str(path)]
    )
    return status, json.loads(path.read_text())


def test_the_woven_loop_has_no_violation(written):
    status, found = written
    assert (status, found["violations"], found["seeds"]) == (0, 0, SEEDS)
    assert found["policy"] == "flush"


@pytest.mark.parametrize("policy", [p for p in WEAVING if p != "flush"])
def test_another_policy_has_no_violation(warmed, tmp_path, policy):
    """A smaller slice; what the policy refuses there is handled as by flush."""
    path = tmp_path / f"{policy}.json"
    chosen = ["--policy", policy, "--seeds", str(SMALL), "--reference-every", "10"]
    assert command.main([*chosen, "--output", str(path)]) == 0
    found = json.loads(path.read_text())
    assert (found["policy"], found["violations"]) == (policy, 0)
    page1, unified = (found["configurations"][name] for name in ("page1", "unified"))
    # Where it acts nothing is consumed before the selection; where it is refused, all.
    assert page1["early"] == unified["within"] == 0 < unified["early"]
    assert (page1["within"] > 0) == (policy != "publish")
    assert_recorded(found)


def assert_recorded(found):
    key = f"{found['policy']} {found['seeds']}"
    record = json.loads((ROOT / "docs" / "simulation.json").read_text())[key]
    for name, row in record["configurations"].items():
        played = found["configurations"][name]
        assert row == {count: played[count] for count in row}
    assert record["turns"] == found["turns"]


def test_the_record_in_the_readme_is_of_these_runs(written):
    _, found = written
    assert_recorded(found)


def test_every_configuration_is_played(written):
    _, found = written
    assert list(found["configurations"]) == list(CONFIGURATIONS)
    for tally in found["configurations"].values():
        assert tally["seeds"] == SEEDS // len(CONFIGURATIONS)
        assert tally["early"] > 0 and tally["overlapped"] > tally["early"]


def test_the_slice_reaches_what_it_is_about(written):
    _, found = written
    reached = {}
    for tally in found["configurations"].values():
        for name, count in tally["reached"].items():
            reached[name] = reached.get(name, 0) + count
        reached["retraction"] = reached.get("retraction", 0) + tally["retractions"]
    for name in (
        "EXTEND",
        "DECODE",
        "MIXED",
        "chunk",
        "cache hit",
        "retraction",
        "finished by abort",
        "finished by stop",
        "flush done",
        "flush refused",
        "abort while waiting",
        "abort while its prefill is pending",
        "abort while decoding",
        "pause in_place",
        "pause retract",
        "retracted by the engine itself",
        "loaded from host",
        "compared with overlap disabled",
    ):
        assert reached.get(name, 0) > 0, name


@pytest.mark.parametrize("name", ["page1", "lazy-page16", "mixed"])
def test_a_seed_gives_the_same_run_alone_and_after_others(campaign_of, name):
    campaign = campaign_of("flush")
    with campaign.player(CONFIGURATIONS[name]) as player:
        after = [player.play(history_of(name, seed)).verdict for seed in range(8)]
    for seed in (3, 7):
        with campaign.player(CONFIGURATIONS[name]) as player:
            alone = player.play(history_of(name, seed)).verdict
        assert alone == after[seed]


def test_a_failing_seed_is_cut_down_and_can_be_replayed(warmed, tmp_path, capsys):
    chosen = ["--policy", "off", "--config", "page1", "--reference-every", "0"]
    path = tmp_path / "simulation.json"
    assert command.main([*chosen, "--seeds", "8", "--output", str(path)]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert any("stale capture in turn" in line for line in printed)
    replayed = printed[-1].split(" --policy off ")[1].split()
    assert command.main([*chosen, *replayed[2:]]) == 1
    assert "stale capture in turn" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert found["configurations"]["page1"]["failing_seeds"]


def test_replay_needs_to_know_the_configuration(capsys):
    assert command.main(["--replay", "3"]) == 2
    assert "--config" in capsys.readouterr().err


def test_a_process_that_cannot_play_says_so(warmed, capsys):
    assert command.main(["--policy", "nonsense", "--seeds", "1"]) == 1
    assert "nonsense" in capsys.readouterr().err


def test_a_broken_engine_is_replaced(campaign_of):
    """A history that leaves an engine unusable costs an engine, not the rest."""
    campaign = campaign_of("second-site-unguarded")
    with campaign.player(CONFIGURATIONS["page1"]) as player:
        played = [player.play(history_of("page1", seed)) for seed in range(3)]
    assert not all(p.verdict.reusable for p in played)
