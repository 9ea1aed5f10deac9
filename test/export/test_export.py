"""The exported patch: `git am` takes it, it is the fix, and it depends on nothing else."""

import ast
import hashlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import scratch
from scratch import BATCH, REPOSITORY, SCHEDULER, git

import sglang_mamba_boundary.export as export_module
from sglang_mamba_boundary import AlreadyFixed, Refused, fix, loop, penalty
from sglang_mamba_boundary.export import (
    AUTHOR,
    DATE,
    REGISTERED,
    REGISTERED_TESTS,
    TITLE,
    Exported,
    export,
    loop_diff,
)

FILE = f"python/{SCHEDULER}"
FILES = (FILE, f"python/{BATCH}")
TESTS = tuple(f"{REGISTERED}/{test.path}" for test in REGISTERED_TESTS)
LINT = """\
[tool.isort]
profile = "black"
known_first_party = ["sglang"]
[tool.ruff.lint]
select = ["F401", "F821", "UP037"]
"""


def exported(source: Path, **options) -> Exported:
    outcome = export(source, **options)
    assert isinstance(outcome, Exported), outcome
    return outcome


def snapshot(tree: Path) -> dict:
    """Content and time of every file, git's index and HEAD among them."""
    return {
        str(file.relative_to(tree)): (
            hashlib.sha256(file.read_bytes()).hexdigest(),
            file.stat().st_mtime_ns,
        )
        for file in sorted(tree.rglob("*"))
        if file.is_file()
    }


def members_of(text: str, holder: str = "Scheduler") -> dict[str, ast.stmt]:
    body = ast.parse(text).body
    found = next(s for s in body if getattr(s, "name", None) == holder)
    return named(found.body)


def named(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    return {
        getattr(s, "name", None) or ast.unparse(s.targets[0]): s
        for s in body
        if isinstance(s, (ast.FunctionDef, ast.Assign))
    }


def text_of(file_text: str, method: ast.FunctionDef) -> str:
    first = min(node.lineno for node in (method, *method.decorator_list))
    return "\n".join(file_text.split("\n")[first - 1 : method.end_lineno]) + "\n"


def tree_of(member: ast.stmt) -> str:
    """The member as it runs: its docstring as `inspect` shows it, no positions."""
    member = ast.parse(ast.unparse(member)).body[0]
    if isinstance(member, ast.FunctionDef) and ast.get_docstring(member):
        member.body[0].value.value = inspect.cleandoc(ast.get_docstring(member))
    return ast.dump(member)


# What git makes of it


def test_git_am_takes_it(checkout):
    outcome = exported(checkout)
    git(checkout, "am", stdin=outcome.patch)
    changed = git(checkout, "diff", "--name-only", "HEAD~").split("\n")
    assert changed == sorted(outcome.files) == sorted([*FILES, *TESTS])
    assert git(checkout, "diff", "--check", "HEAD~") == ""
    assert git(checkout, "status", "--porcelain") == ""
    assert not (checkout / ".git/rebase-apply").exists()
    assert outcome.left_out == ()
    for path in TESTS:
        assert (checkout / path).read_bytes() == (REPOSITORY / path).read_bytes()


def test_title_keeps_its_tag_where_asked(checkout):
    git(checkout, "am", "--keep-non-patch", stdin=exported(checkout).patch)
    assert git(checkout, "log", "-1", "--format=%s") == TITLE
    git(checkout, "reset", "--hard", "HEAD~")
    git(checkout, "am", stdin=exported(checkout).patch)
    assert git(checkout, "log", "-1", "--format=%s") == TITLE.removeprefix("[Fix] ")


def test_abort_leaves_what_was_there(checkout):
    patch = exported(checkout).patch
    scratch.edit(checkout / FILE, ("if disable_overlap_for_batch:", "if False:"))
    scratch.commit(checkout)
    before = git(checkout, "rev-parse", "HEAD")
    git(checkout, "am", stdin=patch, fails=True)
    git(checkout, "am", "--abort")
    assert git(checkout, "rev-parse", "HEAD") == before
    assert git(checkout, "status", "--porcelain") == ""


def test_upstream_lint_passes(checkout):
    (checkout / "pyproject.toml").write_text(LINT)
    scratch.commit(checkout)
    git(checkout, "am", stdin=exported(checkout).patch)
    hooks = [
        "-m",
        "pre_commit",
        "run",
        "--config",
        REPOSITORY / ".pre-commit-config.yaml",
    ]
    done = subprocess.run(
        [sys.executable, *hooks, "--files", *FILES, *TESTS],
        cwd=checkout,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for hook in ("ruff format", "ruff (", "isort", "codespell", "registered tests"):
        passed = [x for x in done.stdout.split("\n") if x.startswith(hook)]
        assert passed and passed[0].endswith("Passed"), done.stdout
    added = [
        x
        for x in exported(checkout_before(checkout)).patch.split(b"\n")
        if x[:1] == b"+"
    ]
    assert len(added) > 1000 and all(line.isascii() for line in added)


def checkout_before(checkout):
    git(checkout, "reset", "--quiet", "--hard", "HEAD~")
    return checkout


# What is in it


@pytest.mark.parametrize(
    "file, holder, weave, methods, members",
    [
        (FILES[0], "Scheduler", loop.weave_source, (loop.LOOP,), fix.MEMBERS),
        (
            FILES[1],
            "ScheduleBatch",
            penalty.weave_source,
            penalty.METHODS,
            fix.BATCH_MEMBERS,
        ),
    ],
)
def test_it_is_what_the_weave_makes(checkout, file, holder, weave, methods, members):
    stock = (checkout / file).read_text()
    git(checkout, "am", stdin=exported(checkout).patch)
    applied = (checkout / file).read_text()
    before, after = members_of(stock, holder), members_of(applied, holder)
    method = next(name for name in methods if name in before)
    woven = weave(text_of(stock, before[method]))
    assert text_of(applied, after[method]) == woven.source
    # The members stand in order directly below it; all else is as it was.
    names, at = list(before), list(before).index(method) + 1
    assert list(after) == [*names[:at], *members, *names[at:]]
    own = named(ast.parse(inspect.getsource(fix)).body)
    for name in members:
        assert tree_of(after[name]) == tree_of(own[name])
    kept = [name for name in before if name != method]
    assert all(ast.dump(before[n]) == ast.dump(after[n]) for n in kept)


def test_default_message(checkout):
    git(checkout, "am", "--keep-non-patch", stdin=exported(checkout).patch)
    title, empty, *body = git(checkout, "log", "-1", "--format=%B").split("\n")
    assert (title, empty) == (TITLE, "")
    assert all(len(line) <= 72 for line in (title, *body))
    assert sum(Path(path).name in "\n".join(body) for path in TESTS) == len(TESTS)


def test_author_date_and_message(checkout):
    message = "[Fix] Another title\n\nA body of our own, by \u00c4."
    options = dict(author="\u00c4 B <a@b.example>", date="2026-02-03T04:05:06+07:00")
    outcome = exported(checkout, message=message, **options)
    git(checkout, "am", "--keep-non-patch", stdin=outcome.patch)
    log = git(checkout, "log", "-1", "--format=%an <%ae>%n%aI%n%B").split("\n")
    assert log[:2] == list(options.values())
    assert "\n".join(log[2:]) == message


def test_without_tests(checkout):
    outcome = exported(checkout, tests=False)
    assert outcome.files == FILES
    assert [why for _, why in outcome.left_out] == ["not asked for"] * len(TESTS)
    assert b"Tests of the loop" not in outcome.patch
    assert "without test_mamba_prefill_publication.py: not asked for" in str(outcome)
    git(checkout, "am", stdin=outcome.patch)


def test_a_test_that_is_there_already_is_not_in_it(checkout):
    target = checkout / TESTS[0]
    target.parent.mkdir(parents=True)
    target.write_bytes((REPOSITORY / TESTS[0]).read_bytes())
    scratch.commit(checkout)
    outcome = exported(checkout)
    assert outcome.files == (*FILES, *TESTS[1:])
    git(checkout, "am", stdin=outcome.patch)


def test_wheel(wheel):
    outcome = exported(wheel)
    assert outcome.files == (SCHEDULER, BATCH)
    assert {why for _, why in outcome.left_out} == {
        "an unpacked wheel has no place for tests"
    }
    scratch.make_repository(wheel)
    assert exported(wheel) == outcome
    git(wheel, "am", stdin=outcome.patch)
    assert isinstance(export(wheel), AlreadyFixed)


def test_executable_bit_stays(checkout):
    (checkout / FILE).chmod(0o755)
    scratch.commit(checkout)
    git(checkout, "am", stdin=exported(checkout).patch)
    assert git(checkout, "ls-tree", "HEAD", FILE).startswith("100755")
    assert git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize("closing", ["\n", "\n            # closing words\n", ""])
def test_loop_that_ends_its_class_and_file(folder, closing):
    file = folder / FILE
    lines = file.read_text().split("\n")
    method = members_of("\n".join(lines))[loop.LOOP]
    head = lines[: method.end_lineno]
    file.write_text("\n".join(head) + closing)
    scratch.make_repository(folder)
    git(folder, "am", stdin=exported(folder).patch)
    applied = file.read_text()
    assert tuple(members_of(applied))[-3:] == fix.MEMBERS
    end = head[-1] + closing.rstrip("\n") + "\n\n    opportunistic_flush_failed = False"
    assert end in applied


# What it depends on


HOSTILE = """\
[core]
    autocrlf = true
    hooksPath = /nonexistent
    pager = false
[commit]
    gpgsign = true
[diff]
    noprefix = true
    context = 0
    external = false
    algorithm = patience
[format]
    signature = hostile
    subjectPrefix = hostile
    useAutoBase = true
[color]
    ui = always
[user]
    name = Hostile
[am]
    threeWay = true
    keepcr = true
[i18n]
    commitEncoding = latin1
"""


def test_same_input_same_bytes(checkout, tmp_path, monkeypatch):
    first = exported(checkout).patch
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(HOSTILE)
    environ = {
        "HOME": str(home),
        "GIT_DIFF_OPTS": "--unified=0",
        "GIT_EXTERNAL_DIFF": "false",
        "GIT_AUTHOR_DATE": "@1 +0000",
        "GIT_COMMITTER_EMAIL": "hostile@example.invalid",
        "GIT_DIR": "/nonexistent",
        "GIT_PAGER": "false",
        "COLUMNS": "20",
        "LANG": "de_DE.UTF-8",
        "LC_ALL": "de_DE.UTF-8",
        "TZ": "Asia/Tokyo",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home)
    assert exported(checkout).patch == first
    # Where it stands and whether git knows it makes no difference either.
    monkeypatch.chdir(checkout.parent)
    copy = scratch.copy_sources(checkout / "python", tmp_path / "elsewhere")
    assert exported(Path("elsewhere")).patch == first
    assert exported(copy, author=AUTHOR, date=DATE).patch == first


def test_the_source_tree_is_never_written_to(checkout, wheel):
    for tree in (checkout, wheel):
        for file in tree.rglob("*.py"):
            os.utime(file, (1, 1))  # so that a refresh of git's index would show
        before = snapshot(tree)
        exported(tree)
        assert isinstance(export(tree, message=""), Refused)
        assert snapshot(tree) == before


# What is refused


def edited(folder, *replacements):
    scratch.edit(folder / FILE, *replacements)


def remove_scheduler(folder):
    (folder / FILE).unlink()


def append(folder, data):
    (folder / FILE).write_bytes((folder / FILE).read_bytes() + data)


REFUSED_SOURCES = {
    "no scheduler": (remove_scheduler, "no such file in"),
    "no class": (lambda f: edited(f, ("class Scheduler(", "class Other(")), "0 such"),
    "two classes": (
        lambda f: append(f, b"\n\nclass Scheduler:\n    pass\n"),
        "2 such classes",
    ),
    "no loop": (
        lambda f: edited(f, ("def event_loop_overlap(", "def other_loop(")),
        "0 such methods",
    ),
    "unknown loop": (
        lambda f: edited(f, ("if not disable_overlap_for_batch:", "if True:")),
        "`disable_overlap_for_batch` and `True`",
    ),
    "members taken": (
        lambda f: edited(
            f,
            (
                "    def is_disable_overlap_for_batch(",
                "    has_pending_mamba_publication = None\n\n"
                "    def is_disable_overlap_for_batch(",
            ),
        ),
        "found has_pending_mamba_publication",
    ),
    "half applied": (
        lambda f: edited(
            f,
            (
                "            # Get the next batch to run\n            plan",
                "            self.publish_pending_mamba_prefill(pop_and_process)\n"
                "            plan",
            ),
        ),
        "the fix's own names",
    ),
    "no logger": (
        lambda f: edited(f, ("\nlogger = ", "\nother_logger = ")),
        "none at its top level",
    ),
    "no python": (lambda f: append(f, b"\n)\n"), "unmatched ')'"),
    "null byte": (lambda f: append(f, b"\0"), "null byte"),
    "carriage return": (lambda f: append(f, b"# x\r\n"), "a carriage return"),
    "no utf-8": (lambda f: append(f, b"# \xff\n"), "can't decode byte 0xff"),
}


@pytest.mark.parametrize("case", REFUSED_SOURCES)
@pytest.mark.parametrize("tracked", [False, True], ids=["folder", "checkout"])
def test_refused_sources(folder, case, tracked):
    change, found = REFUSED_SOURCES[case]
    change(folder)
    if tracked:
        scratch.make_repository(folder)
    before = snapshot(folder)
    outcome = export(folder)
    assert isinstance(outcome, Refused), outcome
    assert found in str(outcome)
    assert outcome.state == "the source tree is unchanged and no patch was made"
    assert snapshot(folder) == before


def test_refused_folders(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name, found in {
        "absent": "no folder",
        "file": "no folder",
        "empty": "neither python/sglang nor sglang",
    }.items():
        outcome = export(tmp_path / name)
        assert isinstance(outcome, Refused) and found in outcome.found, outcome


def change_tree(checkout):
    edited(checkout, ("Launch the current batch", "Launch it"))


def change_index(checkout):
    change_tree(checkout)
    git(checkout, "add", FILE)


def stage_another_file(checkout):
    (checkout / "other.py").write_text("x = 1\n")
    git(checkout, "add", "other.py")


def untracked_test(checkout):
    (checkout / TESTS[1]).parent.mkdir(parents=True)
    (checkout / TESTS[1]).write_text("another\n")


@pytest.mark.parametrize(
    "change, found",
    [
        (change_tree, "an uncommitted change"),
        (change_index, "an uncommitted change"),
        (stage_another_file, "staged changes of other.py"),
        (untracked_test, "an uncommitted change"),
    ],
)
def test_dirty_checkout_is_refused(checkout, change, found):
    patch = exported(checkout).patch
    change(checkout)
    outcome = export(checkout)
    assert isinstance(outcome, Refused) and found in outcome.found, outcome
    # For a reason: git does not take the patch either.
    git(checkout, "am", stdin=patch, fails=True)


def test_missing_file_is_refused(checkout):
    remove_scheduler(checkout)
    outcome = export(checkout)
    assert isinstance(outcome, Refused) and "uncommitted" in outcome.found, outcome


def test_what_head_says_counts(checkout):
    change_tree(checkout)
    scratch.commit(checkout)
    (checkout / "other.py").write_text("untracked = True\n")
    scratch.edit(checkout / f"python/{scratch.COMMON}", ("import ", "import  "))
    git(checkout, "am", stdin=exported(checkout).patch)


def test_already_fixed(checkout):
    git(checkout, "am", stdin=exported(checkout).patch)
    before = snapshot(checkout)
    outcome = export(checkout)
    assert isinstance(outcome, AlreadyFixed)
    assert outcome.loop == "Scheduler.event_loop_overlap"
    assert snapshot(checkout) == before


def test_no_commit_yet(folder):
    git(folder, "init", "--quiet")
    outcome = export(folder)
    assert isinstance(outcome, Refused)
    assert "Not a valid object name HEAD" in outcome.found


@pytest.mark.parametrize(
    "options, found",
    [
        ({"author": "nobody"}, "'nobody'"),
        ({"author": "<a@b.example>"}, "'<a@b.example>'"),
        ({"author": ". <a@b.example>"}, "name consists only of disallowed characters"),
        ({"date": "yesterday"}, "'yesterday'"),
        ({"date": "2026-12-01T00:00:00"}, "'2026-12-01T00:00:00'"),
        ({"date": "1960-01-01T00:00:00+00:00"}, "invalid date format"),
        ({"message": ""}, "empty commit message"),
        ({"message": "Title\n\nBody\n---\nlost\n"}, "its message or author"),
        ({"message": "[PATCH 1/2] Title\n"}, "its message or author"),
        ({"message": "Title\n\ndiff --git a/x b/x\n"}, "bad git-diff"),
    ],
)
def test_refused_options(folder, options, found):
    outcome = export(folder, **options)
    assert isinstance(outcome, Refused) and found in outcome.found, outcome


def test_without_git(folder, checkout, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = export(folder)
    assert isinstance(outcome, Refused)
    assert (outcome.sought, outcome.found) == ("the program git", "none on PATH")


def test_a_patch_that_does_not_come_out_as_meant_is_refused(folder, monkeypatch):
    """Whatever git is told, the bytes that `git am` leaves are compared."""
    write = export_module._write
    monkeypatch.setattr(
        export_module,
        "_write",
        lambda file, content, executable: write(
            file, content and content.replace(b"_failed = False", b""), executable
        ),
    )
    outcome = export(folder)
    assert isinstance(outcome, Refused) and FILE in outcome.found


# The loop alone


def test_loop_diff(checkout):
    text = (checkout / FILE).read_text()
    diff = loop_diff(text)
    assert diff.startswith(f"--- a/{FILE}\n+++ b/{FILE}\n@@ ")
    git(checkout, "apply", "--whitespace=error", "-", stdin=diff.encode())
    applied = (checkout / FILE).read_text()
    woven = loop.weave_source(text_of(text, members_of(text)[loop.LOOP]))
    assert text_of(applied, members_of(applied)[loop.LOOP]) == woven.source
    assert len(applied.split("\n")) == len(text.split("\n")) + 3


def test_loop_diff_of_odd_line_ends(checkout):
    """A form feed ends a line for Python's str, not for git."""
    edited(checkout, ("# Launch the current batch", "# Launch\fthe\u2028batch"))
    diff = loop_diff((checkout / FILE).read_text())
    git(checkout, "apply", "--check", "-", stdin=diff.encode())


@pytest.mark.parametrize("text", ["", "x = (", "class Scheduler:\n    pass\n"])
def test_loop_diff_is_refused(text):
    assert isinstance(loop_diff(text), Refused)


def test_loop_diff_of_a_woven_loop_is_refused(checkout):
    git(checkout, "am", stdin=exported(checkout).patch)
    outcome = loop_diff((checkout / FILE).read_text())
    assert isinstance(outcome, Refused)
    assert outcome.found == "the fix's own names"
