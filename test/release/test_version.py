"""One version in all places, or no release."""

import sys

import pytest
import version

CHANGES = "# Changelog\n\n## 1.2.3\n\n- New.\n\n## 1.2.2\n"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    return tmp_path


@pytest.mark.parametrize("tag", [None, "v1.2.3"])
def test_places_that_agree(root, tag):
    assert version.agreed(root, tag) == "1.2.3"


@pytest.mark.parametrize(
    "tag, changes, found",
    [
        ("v1.2.4", CHANGES, "the tag: 1.2.4"),
        ("1.2.3", CHANGES, "the tag: none"),
        ("v1.2.3", CHANGES.replace("## 1.2.3", "## 1.3"), "CHANGELOG.md: 1.3"),
        (None, CHANGES.replace("## ", "### "), "CHANGELOG.md: none"),
    ],
)
def test_places_that_differ(root, tag, changes, found):
    (root / "CHANGELOG.md").write_text(changes)
    with pytest.raises(ValueError, match=f"{found}.*nothing was built"):
        version.agreed(root, tag)


def test_a_changelog_without_the_version_is_older(root):
    (root / "pyproject.toml").write_text('[project]\nversion = "1.2.4"\n')
    with pytest.raises(ValueError, match=r"pyproject.toml: 1.2.4, CHANGELOG.md: 1.2.3"):
        version.agreed(root)


def test_this_repository_agrees(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["version.py", "--tag", ""])
    version.main()
    own = version.stated(version.ROOT)["pyproject.toml"]
    assert capsys.readouterr().out == f"{own}\n"


def test_the_command_ends_with_1(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["version.py", "--tag", "v0"])
    with pytest.raises(SystemExit, match="the tag: 0"):
        version.main()
