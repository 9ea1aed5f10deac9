"""SGLANG_MAMBA_BOUNDARY_REQUIRED in a real launch: parent and scheduler process,
started by SGLang's own spawn. A rogue plugin takes the loop away in one of them."""

import os
import subprocess
import sys

import pytest

ROGUE = """
import multiprocessing, os

def register():
    from sglang.srt.managers import scheduler
    where = "scheduler" if multiprocessing.parent_process() else "parent"
    if os.environ["ROGUE"] == where:
        scheduler.Scheduler.event_loop_overlap = register
    if os.environ["ROGUE"] == "hook":
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
        target = "sglang.srt.managers.scheduler.Scheduler.event_loop_overlap"
        HookRegistry.register(target, lambda scheduler: None, HookType.REPLACE)
"""
LAUNCH = """
from sglang_cpu_testbed.engine import DEFAULTS, prepare_environment

if __name__ == "__main__":
    prepare_environment()
    from sglang import Engine

    print("engine: launching", flush=True)
    engine = Engine(**DEFAULTS | {"log_level": "info"})
    output = engine.generate(input_ids=[5, 6, 7], sampling_params={"max_new_tokens": 3})
    print("engine: answered", len(output["output_ids"]), flush=True)
    engine.shutdown()
"""
TIMEOUT_S = 240


@pytest.fixture
def launch(tmp_path, rogue_plugin):
    installed = rogue_plugin(ROGUE)
    (tmp_path / "launch.py").write_text(LAUNCH)

    def run(rogue, **environ):
        environ = {
            **os.environ,
            **installed,
            "ROGUE": rogue,
            **environ,
        }
        return subprocess.run(
            [sys.executable, tmp_path / "launch.py"],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            start_new_session=True,  # a failing scheduler signals its group
        )

    return run


def test_serves_with_the_fix_required_and_in_place(launch):
    done = launch("nowhere", SGLANG_MAMBA_BOUNDARY_REQUIRED="1")
    assert done.returncode == 0, done.stdout
    assert "engine: answered 3" in done.stdout
    assert "woven into Scheduler.event_loop_overlap of sglang 0.5.23" in done.stdout


@pytest.mark.parametrize("process", ["parent", "scheduler", "hook"])
def test_refusal_stops_the_launch(launch, process):
    done = launch(process, SGLANG_MAMBA_BOUNDARY_REQUIRED="1")
    assert "engine: launching" in done.stdout, done.stdout
    assert "the fix is required and not in place" in done.stdout, done.stdout
    assert "engine: answered" not in done.stdout
    assert done.returncode != 0


def test_wrong_value_stops_the_launch(launch):
    done = launch("nowhere", SGLANG_MAMBA_BOUNDARY="on")
    choices = "'flush', 'publish', 'late', 'rebind', 'audit', 'off'"
    assert f"SGLANG_MAMBA_BOUNDARY='on' is not one of {choices}" in done.stdout
    assert "engine: answered" not in done.stdout
    assert done.returncode != 0
