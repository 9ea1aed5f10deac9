"""The fix as a patch that `git am` accepts on an SGLang checkout or unpacked wheel.

The texts come from `fixed_text.py`. A patch is handed out only after `git am` has
turned a scratch copy into exactly what was meant. The source tree is never
written to.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from . import engines, git, loop
from .checkout import BATCH, SCHEDULER, Checkout, find_release, open_checkout
from .fixed_text import fix_file, weave_file
from .git import Stopped
from .outcome import AlreadyFixed, Refused
from .targets import LOOP, PENALTY

AUTHOR = "sglang-mamba-boundary <sglang-mamba-boundary@example.invalid>"
DATE = "2026-12-01T00:00:00+00:00"
TITLE = "[Fix] Publish a tracked Mamba prefill before selecting the next batch"

# What the default message says of each target, and the title where it is the first.
_WORDS = {
    LOOP: (
        TITLE,
        """\
Two requests that are prefilled at the same time compute their shared
prompt in private KV slots. With the extra_buffer strategy, processing
the result of the second publishes it: its row of req_to_token is
pointed at the slots of the first, and its own slots are freed.

The overlap loop does this after it has selected and launched the next
batch. So the first decode step of the second request reads slots that
are free by then: its logprobs differ from those of a run alone, and the
slots may get another owner while they are read.

Process such a result before the selection, and skip both later pops in
that turn. Every other result is processed where it was.""",
    ),
    PENALTY: (
        "[Fix] Count each output token once in penalties under overlap",
        """\
Penalties count the newest output token when a decode batch is built.
That is the same token twice in a row where the result of a prefill is
processed before the first decode is built and the next result after the
second. Count by position instead.""",
    ),
}
_TESTS = "Tests of the loop, CPU only:"

REGISTERED = "test/registered"


@dataclass(frozen=True)
class RegisteredTest:
    """A test below test/registered; it needs what `file` has from `since` on."""

    path: str
    tells: str
    since: engines.Release
    file: str
    needs: str


REGISTERED_TESTS = (
    RegisteredTest(
        "unit/managers/test_overlap_penalty_tokens.py",
        "penalties under overlap",
        (0, 5, 19),
        BATCH,
        "req.kv.kv_committed_len",
    ),
    RegisteredTest(
        "unit/managers/test_mamba_prefill_cache_boundary.py",
        "scripted scheduler",
        (0, 5, 20),
        SCHEDULER,
        "def ingest_requests",
    ),
    RegisteredTest(
        "unit/mem_cache/test_mamba_prefill_publication.py",
        "real pools and radix cache",
        (0, 5, 22),
        "sglang/srt/mem_cache/common.py",
        "def checkpoint_kv_cache",
    ),
)


@dataclass(frozen=True)
class Exported:
    """A verified patch of `files`, and per test that is not in it the reason.

    `git am --keep-non-patch` keeps the tag in the title, plain `git am` drops it.
    """

    patch: bytes
    engine: str
    files: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """One line per test that is not in the patch."""
        return tuple(f"without {test}: {why}" for test, why in self.left_out)

    def __str__(self) -> str:
        patch = f"a patch of sglang {self.engine}: {', '.join(self.files)}"
        return "; ".join([patch, *self.notes])


@dataclass(frozen=True)
class _Change:
    before: bytes | None
    after: bytes
    executable: bool


def export(
    source: Path,
    author: str = AUTHOR,
    date: str = DATE,
    message: str | None = None,
    tests: bool = True,
) -> Exported | AlreadyFixed | Refused:
    """The patch for the checkout (its HEAD) or unpacked wheel at `source`.

    `author` is "Name <address>" and `date` ISO 8601 with an offset. A wheel has
    no place for tests, so its patch is of the package alone.
    """
    try:
        identity = _identity(author, date)
        return _export(open_checkout(source), identity, message, tests)
    except Stopped as stopped:
        return stopped.refusal


def loop_diff(scheduler_py_text: str) -> str | Refused:
    """What the weave changes in `event_loop_overlap`, as a unified diff of the file."""
    try:
        woven = weave_file(scheduler_py_text, LOOP)
    except Stopped as stopped:
        return stopped.refusal
    # Unlike str.splitlines, these are the lines that git and ast see.
    before = StringIO(scheduler_py_text).readlines()
    after = StringIO(woven).readlines()
    path = f"python/{SCHEDULER}"
    return "".join(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}"))


def _export(checkout: Checkout, identity, message, tests) -> Exported | AlreadyFixed:
    texts = {t: _read(checkout, checkout.prefix + t.file) for t in (LOOP, PENALTY)}
    release, engine = find_release(checkout)
    fixed = {t: fix_file(text, t, release) for t, text in texts.items()}
    targets = [target for target, text in fixed.items() if text is not None]
    if not targets:
        return AlreadyFixed(engine, f"{engines.SCHEDULER_CLASS}.{loop.LOOP}")
    contents = {checkout.prefix + t.file: fixed[t].encode() for t in targets}
    left_out = []
    for test in REGISTERED_TESTS:
        why = _why_left_out(test, checkout, tests)
        if why:
            left_out.append((Path(test.path).name, why))
        else:
            contents[f"{REGISTERED}/{test.path}"] = _registered_test(test.path)

    for path in contents:
        checkout.require_unmodified(path)
    checkout.require_clean_index()
    changes = {
        path: _Change(before, after, checkout.is_executable(path))
        for path, after in contents.items()
        # A test that stands there already is not changed.
        if (before := checkout.committed(path)) != after
    }
    if message is None:
        message = _default_message(targets, changes)
    patch = _make_patch(changes, identity, message)
    return Exported(patch, engine, tuple(changes), tuple(left_out))


def _identity(author: str, date: str) -> dict[str, str]:
    named = re.fullmatch(r"([^<>\n]*[^<>\s]) <([^<>\s]+)>", author)
    if not named:
        raise Stopped(
            'an author as "Name <address>"', repr(author), "give one in this form"
        )
    try:
        when = datetime.fromisoformat(date)
    except ValueError:
        when = None
    if not when or when.tzinfo is None:
        # Without an offset, the bytes would depend on the machine's time zone.
        raise Stopped(
            f"a date in ISO 8601 with an offset, as {DATE}",
            repr(date),
            "give one in this form",
        )
    moment = f"@{int(when.timestamp())} {when:%z}"
    name, address = named.groups()
    return {
        f"GIT_{role}_{field}": value
        for role in ("AUTHOR", "COMMITTER")
        for field, value in (("NAME", name), ("EMAIL", address), ("DATE", moment))
    }


def _why_left_out(test: RegisteredTest, checkout: Checkout, tests: bool) -> str:
    if not tests:
        return "not asked for"
    if not checkout.has_tests:
        return "an unpacked wheel has no place for tests"
    if test.needs not in checkout.text(test.file):
        since = engines.dotted(test.since)
        return f"it is for {since} and newer, which have `{test.needs}` in {test.file}"
    return ""


def _registered_test(path: str) -> bytes:
    """From the built package, or from the repository of an editable install."""
    package = Path(__file__).parent
    places = [package / "registered", package.parents[1] / REGISTERED]
    for place in places:
        if (place / path).is_file():
            return (place / path).read_bytes()
    raise Stopped(
        f"the registered test {path}",
        f"it neither in {places[0]} nor in {places[1]}",
        "reinstall this package, or export without tests",
    )


def _default_message(targets, files) -> str:
    titles, bodies = zip(*(_WORDS[target] for target in targets))
    parts = [titles[0], *bodies]
    tests = [
        f"- {Path(test.path).name}: {test.tells}"
        for test in REGISTERED_TESTS
        if f"{REGISTERED}/{test.path}" in files
    ]
    if tests:
        parts.append("\n".join([_TESTS, *tests]))
    return "\n\n".join(parts) + "\n"


def _read(checkout: Checkout, path: str) -> str:
    data = checkout.committed(path)
    if data is None:
        place = f"HEAD of {checkout.root}" if checkout.tracked else str(checkout.root)
        raise Stopped(
            path,
            f"no such file in {place}",
            "complete the checkout, or unpack the whole wheel",
        )
    if b"\r" in data:
        raise Stopped(
            f"lines of {path} that end in \\n alone",
            "a carriage return",
            "convert the file to Unix line ends, as upstream has them",
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Stopped(f"{path} in UTF-8", str(error), "repair the file") from None


def _make_patch(changes: dict[str, _Change], identity, message: str) -> bytes:
    """The patch, after `git am` has made exactly the meant commit of it."""
    with TemporaryDirectory() as folder:
        tree = Path(folder)

        def git_(*arguments, stdin=b""):
            return git.run(tree, *arguments, stdin=stdin, **identity)

        git_("init", "--quiet")
        for path, change in changes.items():
            _write(tree / path, change.before, change.executable)
        git_("add", "--all")
        git_("commit", "--quiet", "--allow-empty", "--message=base")
        for path, change in changes.items():
            _write(tree / path, change.after, change.executable)
        git_("add", "--all")
        git_(
            "commit",
            "--quiet",
            "--file=-",
            stdin=message.encode(errors="surrogateescape"),
        )
        meant = git_("log", "-1", _COMMIT)
        # Full blob names are what a three-way `git am -3` looks for; a commit of
        # a scratch copy has no name worth telling.
        patch = git_(
            *("format-patch", "-1", "--stdout", "--no-signature"),
            *("--zero-commit", "--full-index", "--no-renames"),
        )
        git_("reset", "--quiet", "--hard", "HEAD~")
        git_("am", "--quiet", "--keep-non-patch", stdin=patch)
        made = git_("log", "-1", _COMMIT)
        changed = [p for p, c in changes.items() if (tree / p).read_bytes() != c.after]
    if changed or made != meant:
        raise Stopped(
            "`git am` to make the meant commit of the patch",
            f"{', '.join(changed) or 'its message or author'} to come out different",
            "give a message that a mail can carry: no `---` line, no diff, no tag PATCH",
        )
    return patch


# Author, date, message and tree: all that the mail has to carry.
_COMMIT = "--format=%an%n%ae%n%ad%n%T%n%B"


def _write(file: Path, content: bytes | None, executable: bool) -> None:
    if content is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(0o755 if executable else 0o644)
