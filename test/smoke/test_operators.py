"""What docs/operators.md promises, on a server as an operator runs it."""

import pytest

from sglang_cpu_testbed.scenarios import BOUNDARY_SWITCH
from sglang_cpu_testbed.server import ServerFailed, serve
from sglang_cpu_testbed.smoke.servers import REQUIRED
from sglang_mamba_boundary.server import check_url

ROGUE = """
def register():
    from sglang.srt.managers import scheduler
    scheduler.Scheduler.event_loop_overlap = register
"""


# The stock loop again, in a function that the weave does not know.
COPY = """
def register():
    import types, torch
    from sglang.srt.managers.scheduler import Scheduler
    own = Scheduler.__dict__["event_loop_overlap"].__wrapped__
    copied = types.FunctionType(own.__code__, own.__globals__)
    Scheduler.event_loop_overlap = torch.inference_mode()(lambda self: copied(self))
"""


@pytest.fixture
def rogue(rogue_plugin) -> dict[str, str]:
    """The environment of a plugin that takes the loop away before ours looks."""
    return rogue_plugin(ROGUE)


def test_started_again_after_a_kill_the_fix_is_in_place(wanted, woven):
    assert woven.url == wanted.url
    report = check_url(woven.url)
    assert report.exit_code == 0, report
    (line,) = [line for line in woven.log().split("\n") if "mamba-boundary" in line]
    assert "policy flush, woven into Scheduler.event_loop_overlap" in line


def test_a_wrong_variable_stops_the_launch():
    with pytest.raises(ServerFailed, match="SGLANG_MAMBA_BOUNDARY='of' is not one of"):
        with serve(env={BOUNDARY_SWITCH: "of"}):
            pytest.fail("it serves")


def test_a_required_fix_that_is_refused_stops_the_launch(rogue):
    with pytest.raises(ServerFailed) as stopped:
        with serve(env={**rogue, REQUIRED: "1"}):
            pytest.fail("it serves")
    assert "the fix is required and not in place" in str(stopped.value)


def test_a_refused_fix_that_is_not_required_serves_and_says_so(rogue_plugin):
    with serve(env=rogue_plugin(COPY)) as server:
        report = check_url(server.url)
        log = server.log()
    assert report.exit_code == 1 and "absent" in str(report), report
    # Once when the plugin loads, in each process, and once when the loop starts.
    lines = [line for line in log.split("\n") if "mamba-boundary: refused" in line]
    assert lines and all("this server runs WITHOUT the fix" in line for line in lines)
