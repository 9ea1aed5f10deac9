"""The exported patch of each release: `git am` takes it and it is the woven text."""

import ast
import inspect
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "export"))

import scratch
from scratch import git

from sglang_mamba_boundary import AlreadyFixed, engines
from sglang_mamba_boundary.export import REGISTERED, REGISTERED_TESTS, Exported, export
from sglang_mamba_boundary.members import member_source
from sglang_mamba_boundary.targets import LOOP, PENALTY


@pytest.fixture
def checkout(root, tmp_path):
    scratch.copy_sources(root, tmp_path)
    return scratch.make_repository(tmp_path)


def body_of(text, holder):
    """Name and tree of each method and plain attribute of a class, in order."""
    module = ast.parse(text)
    if holder:
        module = next(s for s in module.body if getattr(s, "name", None) == holder)
    kinds = (ast.FunctionDef, ast.Assign)
    found = [s for s in module.body if isinstance(s, kinds)]
    return {getattr(s, "name", None) or s.targets[0].id: s for s in found}


def shape(member):
    """What runs, with its docstring as `inspect` shows it, whatever the indentation."""
    member = ast.parse(ast.unparse(member)).body[0]
    if isinstance(member, ast.FunctionDef) and ast.get_docstring(member):
        member.body[0].value.value = inspect.cleandoc(ast.get_docstring(member))
    return ast.dump(member)


def method_text(text, method):
    first = min(node.lineno for node in (method, *method.decorator_list))
    return "\n".join(text.split("\n")[first - 1 : method.end_lineno]) + "\n"


def test_git_am_makes_the_woven_text_of_it(version, checkout):
    targets = (LOOP, PENALTY)
    files = {target: checkout / "python" / target.file for target in targets}
    stock = {target: file.read_text() for target, file in files.items()}
    outcome = export(checkout)
    assert isinstance(outcome, Exported), outcome
    git(checkout, "am", stdin=outcome.patch)
    assert git(checkout, "diff", "--check", "HEAD~") == ""
    assert git(checkout, "status", "--porcelain") == ""

    for target, file in files.items():
        applied = file.read_text()
        before = body_of(stock[target], target.holder)
        after = body_of(applied, target.holder)
        name = next(name for name in target.methods if name in before)
        woven = target.weave_source(method_text(stock[target], before[name]))
        assert method_text(applied, after[name]) == woven.source
        members = body_of(
            member_source(engines.parse_release(version), target.members), None
        )
        assert members and set(after) - set(before) == set(members)
        assert [shape(after[m]) for m in members] == list(map(shape, members.values()))
    assert isinstance(export(checkout), AlreadyFixed)


def test_registered_tests_are_in_it_where_they_can_run(version, checkout):
    outcome = export(checkout)
    release = engines.parse_release(version)
    able = [test for test in REGISTERED_TESTS if test.since <= release]
    tests = [file for file in outcome.files if file.startswith(REGISTERED)]
    assert tests == [f"{REGISTERED}/{test.path}" for test in able]
    assert len(able) + len(outcome.left_out) == len(REGISTERED_TESTS)
    assert all("and newer" in why for _, why in outcome.left_out)


def test_unpacked_wheel(version, root):
    """The folder itself, which states its version; nothing is written to it."""
    outcome = export(root)
    assert isinstance(outcome, Exported), outcome
    assert outcome.engine == version
    assert outcome.files == (LOOP.file, PENALTY.file)
