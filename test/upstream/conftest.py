"""Two scratch checkouts of the installed engine: a whole one, on which its tests run, and
one of the few files that the export reads. Run from the root, as the command is."""

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "test" / "export")]

import scratch

# Neither is text that an import needs.
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so", "*.a")


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    tree = tmp_path_factory.mktemp("whole")
    package = scratch.installed() / "sglang"
    shutil.copytree(package, tree / "python" / "sglang", ignore=LEFT_OUT)
    (tree / ".gitignore").write_text("__pycache__/\n")
    return scratch.make_repository(tree)


def few_files(tree: Path) -> Path:
    scratch.copy_sources(scratch.installed(), tree)
    return scratch.make_repository(tree)


@pytest.fixture
def few(tmp_path):
    return few_files(tmp_path / "few")


@pytest.fixture(scope="session")
def evidence(tmp_path_factory):
    """Of the few files, on which no test can run."""
    from upstream.evidence import gather

    tree = few_files(tmp_path_factory.mktemp("evidence") / "few")
    return gather(tree, "A <a@example.invalid>", lambda text: None)


@pytest.fixture(scope="session")
def made(whole, tmp_path_factory):
    """The folder that the command makes for the whole checkout."""
    from upstream.__main__ import main

    out = tmp_path_factory.mktemp("made") / "folder"
    assert main([str(whole), str(out)]) == 0
    return out
