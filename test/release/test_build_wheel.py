"""What the wheel is tested in, and what becomes of one that fails; the trials themselves
are run by `make wheel`."""

import sys
from pathlib import Path

import build_wheel
import pytest
import yaml

ROOT = Path(__file__).parents[2]


def test_the_engine_is_borrowed_without_this_project(tmp_path):
    borrowed, target = tmp_path / "borrowed", tmp_path / "target"
    borrowed.mkdir()
    target.mkdir()
    ours = (
        "sglang_mamba_boundary",
        "sglang_mamba_boundary-0.1.0.dist-info",
        "sglang_cpu_testbed-0.1.0.dist-info",
        "__editable__.sglang_mamba_boundary-0.1.0.pth",
        "__editable___sglang_cpu_testbed_0_1_0_finder.py",
        "__pycache__",
    )
    for name in (*ours, "sglang", "torch"):
        (borrowed / name).mkdir()
    build_wheel.link_engine(borrowed, target)
    assert sorted(entry.name for entry in target.iterdir()) == ["sglang", "torch"]
    assert (target / "sglang").samefile(borrowed / "sglang")


def test_a_trial_sees_no_other_copy_of_this_project(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    environ = build_wheel.trial_environ()
    assert "PYTHONPATH" not in environ and environ["OMP_NUM_THREADS"] == "1"


def test_the_sources_are_what_git_tracks(tmp_path):
    copy = build_wheel.tracked_copy(tmp_path)
    assert (copy / "pyproject.toml").is_file() and (copy / "testbed").is_dir()
    assert not (copy / ".git").exists() and not (copy / "build").exists()


def test_a_step_that_fails_ends_it(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="failed; .* stays as it was"):
        build_wheel.run(sys.executable, "-c", "raise SystemExit(3)")


def test_a_tag_of_another_version_builds_nothing(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["build_wheel.py", "--tag", "v0"])
    monkeypatch.setattr(build_wheel, "run", lambda *_, **__: pytest.fail("it builds"))
    with pytest.raises(SystemExit, match="the tag: 0"):
        build_wheel.main()


def test_nothing_is_published_but_what_was_tested():
    flow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    build, publish = flow["jobs"]["build"], flow["jobs"]["publish"]
    commands = [step["run"] for step in build["steps"] if "run" in step]
    assert commands == [
        'python scripts/version.py --tag "$GITHUB_REF_NAME"',
        ".ci/run",
        'make wheel TAG="$GITHUB_REF_NAME"',
    ]
    assert publish["needs"] == "build" and publish["permissions"] == {
        "id-token": "write"
    }
    handed = [
        s["with"]["name"] for s in build["steps"] if "upload" in s.get("uses", "")
    ]
    taken = [s["with"]["name"] for s in publish["steps"] if "download" in s["uses"]]
    assert handed == taken
    (upload,) = [s for s in build["steps"] if "upload" in s.get("uses", "")]
    assert ROOT / upload["with"]["path"] == build_wheel.DIST
    assert "secrets" not in str(flow)
