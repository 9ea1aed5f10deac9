"""The blocks of README.md that commands write."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "readme.py"
TEXT = "above\n<!-- a:begin -->\nold\n<!-- a:end -->\nbelow\n"


@pytest.fixture
def readme(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("readme", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "readme", module)
    spec.loader.exec_module(module)
    module.README = tmp_path / "README.md"
    module.README.write_text(TEXT)
    module.BLOCKS = {"a": module.Block([sys.executable, "-c", "print('new')"])}
    return module


def run(readme, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["readme.py", *arguments])
    readme.main()
    return readme.README.read_text()


def test_a_block_is_written_and_then_found_right(readme, monkeypatch):
    with pytest.raises(SystemExit, match="make readme"):
        run(readme, monkeypatch, "--check")
    assert readme.README.read_text() == TEXT
    written = TEXT.replace("old\n", "```text\nnew\n```\n")
    assert run(readme, monkeypatch) == written
    assert run(readme, monkeypatch, "--check", "a") == written


def test_a_table_has_no_fence(readme, monkeypatch):
    command = readme.BLOCKS["a"].command
    readme.BLOCKS["a"] = readme.Block(command, fence=False)
    assert run(readme, monkeypatch, "a") == TEXT.replace("old", "new")


@pytest.mark.parametrize("marker", ["<!-- a:begin -->", "<!-- a:end -->"])
def test_a_readme_without_markers_is_left_alone(readme, monkeypatch, marker):
    readme.README.write_text(TEXT.replace(marker, ""))
    with pytest.raises(SystemExit, match="once each"):
        run(readme, monkeypatch)
    assert readme.README.read_text() == TEXT.replace(marker, "")


def test_a_command_that_fails_writes_nothing(readme, monkeypatch, capsys):
    code = "print('half'); raise SystemExit(3)"
    readme.BLOCKS["a"] = readme.Block([sys.executable, "-c", code])
    with pytest.raises(SystemExit, match="exit 3"):
        run(readme, monkeypatch)
    assert readme.README.read_text() == TEXT
    assert "half" in capsys.readouterr().out
