"""Which releases the suite runs on: `--releases`, or the environment, or three."""

import os
import sys
from pathlib import Path

import pytest

# The texts are edited as the probe's own tests edit them.
sys.path.insert(0, str(Path(__file__).parent.parent / "probe"))

import wheels

VARIABLE = "MAMBA_BOUNDARY_RELEASES"
DEFAULT = "oldest,middle,newest"


def pytest_addoption(parser):
    parser.addoption(
        "--releases", help=f"all, or some of {DEFAULT} and versions (or ${VARIABLE})"
    )


def pytest_generate_tests(metafunc):
    if "version" in metafunc.fixturenames:
        releases = metafunc.config.getoption("--releases", None)
        releases = releases or os.environ.get(VARIABLE) or DEFAULT
        try:
            versions = wheels.select(releases)
        except ValueError as error:
            raise pytest.UsageError(f"--releases: {error}") from None
        metafunc.parametrize("version", versions, scope="session")


@pytest.fixture(scope="session")
def root(version):
    """The sources of the release under test."""
    return wheels.release_root(version)
