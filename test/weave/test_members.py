"""The fix's members per release: `fix.py` as it is, or with stated edits."""

import ast
import linecache
import traceback
from types import SimpleNamespace

import pytest

from sglang_mamba_boundary import engines, fix
from sglang_mamba_boundary.engines import Edit
from sglang_mamba_boundary.members import _apply, member_source, members

NEWEST = engines.NEWEST
FUNCTIONS = ("has_pending_mamba_publication", "publish_pending_mamba_prefill")


def test_the_newest_release_takes_the_fix_as_it_stands():
    assert members(NEWEST) == {name: getattr(fix, name) for name in fix.MEMBERS}
    assert member_source(NEWEST) == member_source((9, 0, 0))


@pytest.mark.parametrize(
    "release, present, absent",
    [
        ((0, 5, 23), ["req.kv.mamba_last", "self.enable_unified_memory:"], []),
        ((0, 5, 19), ["req.kv.mamba_last", "self.enable_unified_memory:"], []),
        ((0, 5, 18), ["req.mamba_last", "self.enable_unified_memory:"], ["req.kv"]),
        ((0, 5, 16), ["req.mamba_last", "self.enable_unified_memory:"], ["req.kv"]),
        ((0, 5, 15), ["self.server_args.enable_unified_memory:"], ["req.kv"]),
        ((0, 5, 14), ["inflight_middle_chunks"], ["flush", "unified", "logger"]),
        ((0, 5, 13), ["inflight_middle_chunks"], ["flush", "unified", "logger"]),
        ((0, 5, 12), ["req.mamba_last"], ["chunk", "flush", "unified", "logger"]),
        ((0, 5, 11), ["req.mamba_last"], ["chunk", "flush", "unified", "logger"]),
    ],
)
def test_text_for_a_release(release, present, absent):
    source = member_source(release)
    for text in present:
        assert text in source
    for text in absent:
        assert text not in source
    names = [n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
    assert tuple(names) == FUNCTIONS
    assert list(members(release)) == [n for n in fix.MEMBERS if n in source]


def test_traceback_through_a_variant_shows_its_text():
    question = members((0, 5, 11))["has_pending_mamba_publication"]
    try:
        question(SimpleNamespace())
    except AttributeError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
    assert frame.line == "if not self.result_queue:"
    assert frame.filename in linecache.cache


@pytest.mark.parametrize(
    "start, end",
    [("no such text", "def has_pending"), ("batch", "def"), ("MEMBERS", "no such")],
)
def test_an_edit_that_does_not_match_once_is_refused(start, end):
    with pytest.raises(ValueError, match="exactly once"):
        _apply(Edit((0, 6, 0), start, end), member_source(NEWEST))


@pytest.mark.parametrize(
    "version, release",
    [
        ("0.5.12.post1", (0, 5, 12)),
        ("0.5.24.dev3+g0123", (0, 5, 24)),
        ("1.0", None),
        ("main", None),
    ],
)
def test_parse_release(version, release):
    assert engines.parse_release(version) == release
