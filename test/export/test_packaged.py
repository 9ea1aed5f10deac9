"""The registered tests are in a built package, and an export from there has them."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from scratch import REPOSITORY

import sglang_mamba_boundary.export as export_module
from sglang_mamba_boundary import Refused
from sglang_mamba_boundary.export import REGISTERED, REGISTERED_TESTS, export

BUILT_FROM = ("setup.py", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """What a build reads, so that it leaves nothing behind in the repository."""
    project = tmp_path_factory.mktemp("project")
    for name in BUILT_FROM:
        shutil.copy(REPOSITORY / name, project)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("python", REGISTERED):
        shutil.copytree(REPOSITORY / folder, project / folder, ignore=ignored)
    return project


@pytest.fixture(scope="module")
def unpacked(project, tmp_path_factory):
    """The built wheel, unpacked."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--wheel-dir", "dist", "."],
        cwd=project,
        check=True,
    )
    (wheel,) = project.glob("dist/*.whl")
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_wheel_has_the_registered_tests(unpacked):
    inside = unpacked / "sglang_mamba_boundary/registered"
    files = {str(f.relative_to(inside)) for f in inside.rglob("*") if f.is_file()}
    assert files == {test.path for test in REGISTERED_TESTS}
    for path in files:
        own = REPOSITORY / REGISTERED / path
        assert (inside / path).read_bytes() == own.read_bytes()
    (record,) = unpacked.glob("*.dist-info/RECORD")
    listed = record.read_text()
    assert all(path in listed for path in files)


def test_source_distribution_can_build_the_same(project):
    build = "import setuptools.build_meta as b; b.build_sdist('dist')"
    subprocess.run(
        [sys.executable, "-c", build], cwd=project, check=True, capture_output=True
    )
    (sdist,) = project.glob("dist/*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"{REGISTERED}/{test.path}" for test in REGISTERED_TESTS} <= names
    assert "setup.py" in names


def test_export_from_the_built_package(unpacked, folder):
    script = (
        "import sys, pathlib, sglang_mamba_boundary.export as e;"
        f"assert e.__file__.startswith({str(unpacked)!r}), e.__file__;"
        "sys.stdout.buffer.write(e.export(pathlib.Path(sys.argv[1])).patch)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, folder],
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        check=True,
        capture_output=True,
    )
    assert done.stdout == export(folder).patch


def test_package_without_them_is_refused(folder, monkeypatch, tmp_path):
    file = tmp_path / "lib/site-packages/sglang_mamba_boundary/export.py"
    monkeypatch.setattr(export_module, "__file__", str(file))
    outcome = export(folder)
    assert isinstance(outcome, Refused)
    assert str(Path(file.parent, "registered")) in outcome.found
    assert "reinstall this package" in outcome.remedy
    assert export(folder, tests=False).files
