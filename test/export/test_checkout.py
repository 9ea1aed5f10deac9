"""Which release sources are of: what they show counts, what they state is checked."""

from pathlib import Path

import pytest
import scratch
from scratch import BATCH, SCHEDULER, git

from sglang_mamba_boundary import engines
from sglang_mamba_boundary.checkout import TRAITS, find_release, open_checkout
from sglang_mamba_boundary.git import Stopped

NEWEST_CHANGE = max(trait.since for trait in TRAITS)
BY_SOURCES = f"{engines.dotted(NEWEST_CHANGE)} or newer"


def find(tree: Path) -> tuple[engines.Release, str]:
    return find_release(open_checkout(tree))


def refused(tree: Path) -> str:
    with pytest.raises(Stopped) as stopped:
        find(tree)
    return str(stopped.value)


def make_older(tree: Path, *, until: engines.Release) -> Path:
    """Take out of the newest sources what shows them to be newer than `until`."""
    edits = {
        (0, 5, 13): (BATCH, "self.inflight_middle_chunks", "self.is_chunked"),
        (0, 5, 15): (SCHEDULER, ".flush_opportunistic(", ".flush("),
        (0, 5, 16): (
            SCHEDULER,
            "self.enable_unified",
            "self.server_args.enable_unified",
        ),
        (0, 5, 19): (BATCH, ".kv.mamba_last_track_seqlen", ".mamba_last_track_seqlen"),
    }
    for since, (file, new, old) in edits.items():
        if since > until:
            scratch.edit(tree / "python" / file, (new, old))
    if until < NEWEST_CHANGE:
        file = tree / "python" / BATCH
        file.write_text(file.read_text() + "\n# self.mamba_last_track_seqlen\n")
    return tree


def test_every_change_of_the_fix_shows_in_the_sources():
    changes = {e.until for e in engines.EDITS} | {e.since for e in engines.EDITS}
    assert {trait.since for trait in TRAITS} == changes - {engines.OLDEST}
    assert list(TRAITS) == sorted(TRAITS, key=lambda trait: trait.since)


@pytest.mark.parametrize("shown", [engines.OLDEST, *(t.since for t in TRAITS)])
def test_sources_alone(folder, shown):
    make_older(folder, until=shown)
    assert find(folder) == (shown, f"{engines.dotted(shown)} or newer")


VERSION_FILES = {
    "python/sglang/_version.py": "__version__ = version = '{}'\n",
    "python/sglang/version.py": '__version__ = "{}"\n',
    "PKG-INFO": "Metadata-Version: 2.4\nName: sglang\nVersion: {}\n",
    "sglang-1.dist-info/METADATA": "Metadata-Version: 2.4\nVersion: {}\n\nText\n",
}


def tell(tree: Path, version: str, file: str = "python/sglang/_version.py") -> Path:
    (tree / file).parent.mkdir(exist_ok=True)
    (tree / file).write_text(VERSION_FILES[file].format(version))
    return tree


@pytest.mark.parametrize("file", VERSION_FILES)
@pytest.mark.parametrize("version", ["0.5.23", "0.5.24.dev3+g0123abc", "0.5.22.post1"])
def test_told_version(folder, file, version):
    assert find(tell(folder, version, file)) == (NEWEST_CHANGE, version)


def test_tag_comes_before_a_version_file(checkout):
    git(checkout, "tag", "gateway-v1.2.3")
    assert find(checkout) == (NEWEST_CHANGE, BY_SOURCES)
    git(checkout, "tag", "v0.5.22")
    assert find(tell(checkout, "0.5.21")) == (NEWEST_CHANGE, "0.5.22")


@pytest.mark.parametrize("version", ["0.5.12", "0.4.1", "0.0.0.dev0", "unknown"])
def test_version_below_the_sources_is_a_leftover(folder, version):
    assert find(tell(folder, version)) == (NEWEST_CHANGE, BY_SOURCES)


def test_version_above_the_sources_is_refused(folder):
    tell(make_older(folder, until=(0, 5, 16)), "0.5.24")
    assert "sources that read like 0.5.16" in refused(folder)
    assert find(tell(folder, "0.5.18")) == ((0, 5, 16), "0.5.18")


def test_release_before_the_oldest_is_refused(folder):
    make_older(folder, until=engines.OLDEST)
    assert "found sglang 0.5.10" in refused(tell(folder, "0.5.10"))
    assert find(tell(folder, "0.5.12.post1")) == (engines.OLDEST, "0.5.12.post1")


@pytest.mark.parametrize(
    "file, new, sought",
    [
        # A later trait beside the lack of an earlier one.
        (SCHEDULER, ".flush_opportunistic(", "flush_opportunistic"),
        (SCHEDULER, "self.enable_unified_memory", "enable_unified_memory"),
        # Neither the new text nor the old one.
        (BATCH, ".kv.mamba_last_track_seqlen", "mamba_last_track_seqlen"),
        (BATCH, "self.inflight_middle_chunks", "inflight_middle_chunks"),
    ],
)
def test_sources_like_no_release_are_refused(folder, file, new, sought):
    scratch.edit(folder / "python" / file, (new, "self.renamed("))
    words = refused(folder)
    assert sought in words.split("; found")[0]
    assert "report these sources" in words
