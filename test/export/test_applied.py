"""The registered tests on a patched and on an unpatched engine, without this package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import scratch
from scratch import READ, REPOSITORY, git

from sglang_mamba_boundary.export import REGISTERED, REGISTERED_TESTS, export

PATHS = [test.path for test in REGISTERED_TESTS]

# Runs in each interpreter before anything else of it.
SITE = """\
import atexit, json, os, sys

class Hidden:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("sglang_mamba_boundary", "sglang_cpu_testbed"):
            raise ModuleNotFoundError(f"{name} is hidden", name=name)

def report():
    engine = sys.modules.get("sglang.srt.managers.schedule_batch")
    with open(os.environ["EXPORT_TEST_REPORT"], "w") as file:
        json.dump([getattr(engine, "__file__", None), sorted(sys.modules)], file)

sys.meta_path.insert(0, Hidden)
atexit.register(report)
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    tree = scratch.link_package(scratch.installed(), tmp_path_factory.mktemp("engine"))
    git(tree, "init", "--quiet")
    scratch.commit(tree, *(f"python/{path}" for path in READ))
    return tree


def run_scripts(engine: Path, folder: Path, tmp_path: Path) -> list[tuple[int, str]]:
    """Exit status and output of each registered test, run as upstream's runner does."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SITE)
    python_path = f"{tmp_path / 'site'}{os.pathsep}{engine / 'python'}"
    runs = []
    for path in PATHS:
        report = tmp_path / f"{Path(path).stem}.json"
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")},
            "PYTHONPATH": python_path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "EXPORT_TEST_REPORT": str(report),
        }
        command = [sys.executable, "-W", "ignore", str(folder / path), "-f"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environ
        )
        runs.append((process, report))
    outcomes = []
    for process, report in runs:
        output, _ = process.communicate(timeout=300)
        imported, modules = json.loads(report.read_text())
        assert imported == str(engine / "python" / scratch.BATCH), output
        ours = [m for m in modules if m.startswith("sglang_mamba_boundary")]
        assert ours == []
        outcomes.append((process.returncode, output))
    return outcomes


def test_registered_tests_fail_before_and_pass_after(engine, tmp_path):
    unpatched, patched = tmp_path / "unpatched", tmp_path / "patched"
    for folder in (unpatched, patched):
        folder.mkdir()
    stock = shutil.copytree(REPOSITORY / REGISTERED, unpatched / "registered")
    for status, output in run_scripts(engine, stock, unpatched):
        assert status == 1, output
        # Upstream's test case retries, and so ends in an error whose cause is this.
        assert "AssertionError" in output and "ImportError" not in output
        assert output.rstrip().endswith("=1)"), output

    git(engine, "am", stdin=export(engine).patch)
    for status, output in run_scripts(engine, engine / REGISTERED, patched):
        assert status == 0, output
        assert output.rstrip().endswith("\nOK"), output  # and none skipped
