"""The folder for a pull request, and that a reviewer needs nothing else."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scratch import REPOSITORY, git

from sglang_mamba_boundary.export import REGISTERED_TESTS, TITLE
from upstream.reproduce import PATCH

NAMES = {PATCH, "DESCRIPTION.md", "REPRODUCE.md", "loop.png", "record.json"}
SECTIONS = [
    "Motivation",
    "Modifications",
    "Accuracy Tests",
    "Speed Tests and Profiling",
    "Checklist",
]
TIMEOUT_S = 600


def record(made) -> dict:
    return json.loads((made / "record.json").read_text())


def test_it_holds_what_its_texts_refer_to(made):
    assert {file.name for file in made.iterdir()} == NAMES
    for text in ("DESCRIPTION.md", "REPRODUCE.md"):
        for link in re.findall(r"\]\(([^)]+)\)", (made / text).read_text()):
            assert (made / link).is_file(), link
    picture = (REPOSITORY / "docs" / "loop.png").read_bytes()
    assert (made / "loop.png").read_bytes() == picture


def test_nothing_beside_it_is_left_and_the_checkout_is_as_it_was(made, whole):
    assert list(made.parent.iterdir()) == [made]
    assert git(whole, "status", "--porcelain") == ""
    assert git(whole, "rev-list", "--count", "HEAD") == "1"


def test_the_sections_are_in_the_order_of_the_template(made):
    text = (made / "DESCRIPTION.md").read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert text.startswith(f"# {TITLE}\n")


def test_it_says_what_it_was_made_for(made, whole):
    kept = record(made)
    assert kept["commit"] == git(whole, "rev-parse", "HEAD")
    assert kept["tree"] == git(whole, "rev-parse", "HEAD^{tree}")
    patch = (made / PATCH).read_bytes()
    assert kept["patch_sha256"] == hashlib.sha256(patch).hexdigest()
    for text in ("DESCRIPTION.md", "REPRODUCE.md"):
        for name in ("commit", "tree"):
            assert kept[name] in (made / text).read_text()
    assert kept["patch_sha256"] in (made / "REPRODUCE.md").read_text()


@pytest.fixture(scope="module")
def clone(whole, tmp_path_factory):
    clone = tmp_path_factory.mktemp("clone") / "sglang"
    git(whole, "clone", "--quiet", "--shared", str(whole), str(clone))
    return clone


PLACE = "/path/to/this/folder"


def follow(block: str, clone: Path, made: Path) -> str:
    """What the commands of REPRODUCE.md print, as they stand there."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    environ |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GIT_COMMITTER_NAME": "Reviewer",
        "GIT_COMMITTER_EMAIL": "reviewer@example.invalid",
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", block.replace(PLACE, str(made))],
        cwd=clone,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_reviewer_can_apply_and_test_by_the_folder_alone(made, clone):
    text = (made / "REPRODUCE.md").read_text()
    green, red = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    said = follow(green, clone, made)
    assert git(clone, "log", "-1", "--format=%s") == TITLE
    assert said.count("\nOK\n") == len(REGISTERED_TESTS)
    # One stands for the others, which the command itself has run without the patch.
    runs = [line for line in red.splitlines() if "python3" in line]
    assert len(runs) == len(REGISTERED_TESTS)
    said = follow(
        "\n".join(line for line in red.splitlines() if line not in runs[1:]),
        clone,
        made,
    )
    assert "AssertionError" in said and "ImportError" not in said
    assert said.count("\nFAILED (") == 1 and "\nOK\n" not in said
    assert git(clone, "status", "--porcelain") == ""
