"""An engine that was shipped as byte code: no source, so no weave, and a clear word."""

import os
import py_compile
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

REPORT = """
from sglang_mamba_boundary import Refused, in_place, weave
from sglang.srt.managers import scheduler

assert scheduler.__file__.endswith(".pyc"), scheduler.__file__
outcome = weave()
assert isinstance(outcome, Refused), outcome
assert not hasattr(scheduler.Scheduler, "publish_pending_mamba_prefill")
assert isinstance(in_place(scheduler.Scheduler), Refused)
print(outcome)
"""


@pytest.fixture
def sourceless(tmp_path):
    """A folder with an `sglang` whose scheduler has byte code only; all else is linked."""
    here = Path(find_spec("sglang").submodule_search_locations[0])
    there = tmp_path / "sglang"
    for folder in ("srt", "managers", "scheduler.py"):
        there.mkdir()
        for entry in here.iterdir():
            if entry.name not in (folder, "__pycache__"):
                (there / entry.name).symlink_to(entry)
        here, there = here / folder, there / folder
    compiled = there.with_suffix(".pyc")
    py_compile.compile(str(here), str(compiled), dfile="scheduler.py", doraise=True)
    return tmp_path


def test_refused_without_source(sourceless):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REPORT],
        env={**os.environ, "PYTHONPATH": str(sourceless)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    for part in ("source of Scheduler.event_loop_overlap", "found none", "reinstall"):
        assert part in done.stdout
