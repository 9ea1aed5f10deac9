"""What docs/operators.md promises, on a server as an operator runs it."""

import urllib.error

import pytest
from killing import kill

from sglang_cpu_testbed.scenarios import BOUNDARY_SWITCH
from sglang_cpu_testbed.server import ServerFailed, serve
from sglang_cpu_testbed.smoke.servers import REQUIRED
from sglang_mamba_boundary.server import check_url

ROGUE = """
def register():
    from sglang.srt.managers import scheduler
    scheduler.Scheduler.event_loop_overlap = register
"""


@pytest.fixture
def rogue(tmp_path) -> dict[str, str]:
    """The environment of a plugin that takes the loop away before ours looks."""
    (tmp_path / "rogue.py").write_text(ROGUE)
    dist = tmp_path / "rogue-1.0.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: rogue\nVersion: 1.0\n")
    (dist / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\na_rogue = rogue:register\n"
    )
    plugins = "a_rogue,mamba_boundary,cpu_testbed"
    return {"PYTHONPATH": str(tmp_path), "SGLANG_PLUGINS": plugins}


def test_started_again_after_a_kill_the_fix_is_in_place(wanted, woven):
    assert woven.url == wanted.url
    report = check_url(woven.url)
    assert report.exit_code == 0, report
    (line,) = [line for line in woven.log().split("\n") if "mamba-boundary" in line]
    assert "policy flush, woven into Scheduler.event_loop_overlap" in line


def test_a_killed_server_leaves_nothing_behind(woven):
    assert kill(woven) == []
    with pytest.raises(urllib.error.URLError):
        woven.get("/health")


def test_a_wrong_variable_stops_the_launch():
    with pytest.raises(ServerFailed, match="SGLANG_MAMBA_BOUNDARY='of' is not one of"):
        with serve(env={BOUNDARY_SWITCH: "of"}):
            pytest.fail("it serves")


def test_a_required_fix_that_is_refused_stops_the_launch(rogue):
    with pytest.raises(ServerFailed) as stopped:
        with serve(env={**rogue, REQUIRED: "1"}):
            pytest.fail("it serves")
    assert "the fix is required and not in place" in str(stopped.value)
