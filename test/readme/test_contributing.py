"""Whatever CONTRIBUTING.md names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
# A path that has a folder, or stands at the root.
FILES = re.findall(r"`([\w./-]+\.(?:py|md|txt|toml|yml))`", TEXT)
NAMES = re.findall(r"`(\w+)` in `([\w./]+\.py)`", TEXT)
MODULES = re.findall(r"python -m ([\w.]+)", TEXT)
TARGETS = re.findall(r"`make ([\w-]+)", TEXT)


def test_there_is_something_to_look_for():
    assert len(FILES) > 20 and len(NAMES) > 10 and MODULES and TARGETS


@pytest.mark.parametrize("file", sorted(set(FILES)))
def test_files(file):
    places = (ROOT / file, ROOT / "python/sglang_mamba_boundary" / file)
    assert any(place.is_file() for place in places)


@pytest.mark.parametrize("name, file", sorted(set(NAMES)))
def test_names(name, file):
    defined = rf"^ *(?:def |class )?{name}(?:\(| *[:=])"
    assert re.search(defined, (ROOT / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("target", sorted(set(TARGETS)))
def test_targets(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("module", sorted(set(MODULES)))
def test_modules(module):
    name = module.replace(".", "/")
    ends = (f"{name}.py", f"{name}/__main__.py")
    found = [ROOT / place / end for place in ("", "testbed") for end in ends]
    assert module == "pytest" or any(file.is_file() for file in found)


def test_links():
    for file, anchor in re.findall(r"\]\(([\w./]+)(?:#([\w-]+))?\)", TEXT):
        text = (ROOT / file).read_text()
        slugs = [
            re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        ]
        assert not anchor or anchor in slugs
