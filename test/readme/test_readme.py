"""The blocks of README.md and docs/ that commands write."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "readme.py"
TEXT = "above\n<!-- a:begin -->\nold\n<!-- a:end -->\nbelow\n"
OTHER = TEXT.replace("a:", "b:")
FILES = {"README.md": TEXT, "docs/other.md": OTHER}
MAX_LINES = 150


@pytest.fixture
def readme(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("readme", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "readme", module)
    spec.loader.exec_module(module)
    module.ROOT = tmp_path
    (tmp_path / "docs").mkdir()
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    print_new = [sys.executable, "-c", "print('new')"]
    module.BLOCKS = {
        "a": module.Block("README.md", print_new),
        "b": module.Block("docs/other.md", print_new, ""),
    }
    return module


def run(readme, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["readme.py", *arguments])
    readme.main()
    return texts(readme)


def texts(readme):
    return {file: (readme.ROOT / file).read_text() for file in FILES}


def test_blocks_are_written_and_then_found_right(readme, monkeypatch, capsys):
    with pytest.raises(SystemExit, match=r"README.md, docs/other.md: .* `make readme`"):
        run(readme, monkeypatch, "--check")
    assert texts(readme) == FILES
    written = run(readme, monkeypatch)
    assert written["README.md"] == TEXT.replace("old\n", "```text\nnew\n```\n")
    assert written["docs/other.md"] == OTHER.replace("old", "new")
    assert run(readme, monkeypatch, "--check") == written
    assert "2 blocks are what their commands print" in capsys.readouterr().out


def test_one_file_of_two_that_is_wrong_is_told(readme, monkeypatch, capsys):
    run(readme, monkeypatch)
    (readme.ROOT / "docs/other.md").write_text(OTHER)
    with pytest.raises(SystemExit, match=r"^docs/other.md: "):
        run(readme, monkeypatch, "--check")
    assert "-old\n+new\n" in capsys.readouterr().out


def test_one_block_alone(readme, monkeypatch):
    written = run(readme, monkeypatch, "b")
    assert written == FILES | {"docs/other.md": OTHER.replace("old", "new")}


def test_a_language_for_its_fence(readme, monkeypatch):
    command = readme.BLOCKS["a"].command
    readme.BLOCKS["a"] = readme.Block("README.md", command, "diff")
    written = run(readme, monkeypatch, "a")["README.md"]
    assert written == TEXT.replace("old\n", "```diff\nnew\n```\n")


@pytest.mark.parametrize("marker", ["<!-- b:begin -->", "<!-- b:end -->"])
def test_a_file_without_markers_stops_all(readme, monkeypatch, marker):
    (readme.ROOT / "docs/other.md").write_text(OTHER.replace(marker, ""))
    before = texts(readme)
    with pytest.raises(SystemExit, match="docs/other.md must hold .* once each"):
        run(readme, monkeypatch)
    assert texts(readme) == before


@pytest.mark.parametrize("name", ["c", "a"])
def test_a_block_that_no_command_writes_is_found(readme, monkeypatch, name):
    """Also one that is written in another file."""
    with (readme.ROOT / "docs/other.md").open("a") as file:
        file.write(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n")
    before = texts(readme)
    with pytest.raises(SystemExit, match=f"no command writes: docs/other.md: {name}$"):
        run(readme, monkeypatch, "--check")
    assert texts(readme) == before


def test_a_command_that_fails_writes_nothing(readme, monkeypatch, capsys):
    code = "print('half'); raise SystemExit(3)"
    readme.BLOCKS["b"] = readme.Block("docs/other.md", [sys.executable, "-c", code])
    with pytest.raises(SystemExit, match="exit 3"):
        run(readme, monkeypatch)
    assert texts(readme) == FILES
    assert "half" in capsys.readouterr().out


# The documents as they are


def test_the_readme_is_short_and_in_order():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= MAX_LINES
    assert [line[3:] for line in lines if line.startswith("## ")] == [
        "Symptom",
        "Cause",
        "Install and check",
        "The diff",
        "Versions",
        "Performance",
        "Send it upstream",
        "Limits",
        "Development",
    ]


def test_what_the_documents_link_to_is_there():
    for file in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", file.read_text()):
            assert (file.parent / link).exists(), f"{file.name}: {link}"
