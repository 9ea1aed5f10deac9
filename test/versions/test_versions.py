"""Every released engine: its own loop is affected, and with the fix it is not."""

import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest
import table
import wheels
from release import TARGETS, Release

from sglang_mamba_boundary import (
    Refused,
    cases,
    edits,
    engines,
    live,
    targets,
)
from sglang_mamba_boundary.git import Stopped
from sglang_mamba_boundary.members import members
from sglang_mamba_boundary.probe import Stable, Stale
from sglang_mamba_boundary.rig import Run
from sglang_mamba_boundary.source_class import SourceClass
from sglang_mamba_boundary.unknown import Journal, Stop

FLUSHES = (0, 5, 15)
STASH_WAITS = (0, 5, 13)

each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.holder)


@pytest.fixture(scope="session")
def release(version, root):
    return Release(version, root)


# ---- behaviour


def test_its_own_loop_is_affected(release):
    verdict = release.stock_verdict
    assert isinstance(verdict, Stale)
    subjects = [c.subject for c in cases.CAPTURES if c.turns is not cases._finishing]
    stale = [e.rpartition(" captured private")[0] for e in verdict.evidence]
    # Without overlap of consecutive prefills the last one is still stale.
    assert stale == subjects


def test_with_the_fix_it_is_not(release):
    verdict = release.fixed_verdict
    assert isinstance(verdict, Stable), verdict
    assert len(verdict.evidence) == len(cases.CAPTURES)


def test_overlap_is_given_up_only_for_chunks_whose_stash_does_not_wait(release):
    lost = () if release.number >= STASH_WAITS else ("a middle chunk",)
    assert release.fixed_verdict.overlap_lost == lost


def drive(text, case):
    """The events of a case under the loop of `text`."""
    run = Run(Journal())
    case.script(run)
    scheduler = SourceClass(text).scheduler(run, case.without_consecutive_overlap)
    with pytest.raises(Stop):
        scheduler(run, **case.settings).event_loop_overlap()
    assert run.journal.cause is None and not run.journal.handed
    return run.events


def test_unified_memory_is_flushed_between_processing_and_the_next_launch(release):
    case = next(c for c in cases.CAPTURES if c.settings == {"unified": True})
    events = drive(release.fixed(targets.LOOP), case)
    wanted = ["process p", "flush", "select d1", "launch d1"]
    if release.number < FLUSHES:
        wanted.remove("flush")
    first = events.index("process p")
    assert events[first : first + len(wanted)] == wanted
    assert events.count("flush") == wanted.count("flush")


def test_consecutive_prefills_are_never_popped_twice(release):
    case = next(c for c in cases.CAPTURES if c.without_consecutive_overlap)
    events = drive(release.fixed(targets.LOOP), case)
    assert events[1:5] == ["launch p1", "sample p1", "process p1", "select p2"]


# ---- text


@each_target
def test_the_members_are_a_text_of_the_release(release, target):
    made = members(release.number, target.members)
    source = release.member_source(target)
    defined = [
        getattr(s, "name", None) or s.targets[0].id for s in ast.parse(source).body
    ]
    assert [*made] == defined and defined[-1] == target.members[-1]
    # The engine calls the last; every other one is there for one of them.
    assert all(source.count(name) > 1 for name in defined[:-1])


def code_named(code: CodeType, qualname: str) -> CodeType:
    """The code of a function below the code of a module or class."""
    todo = [code]
    for code in todo:
        if code.co_qualname == qualname:
            return code
        todo += [c for c in code.co_consts if isinstance(c, CodeType)]
    raise AssertionError(qualname)


def without_lines(code: CodeType):
    """All that a code does, and nothing of where its text stood."""
    constants = [
        without_lines(c) if isinstance(c, CodeType) else (type(c), c)
        for c in code.co_consts
    ]
    parts = (
        code.co_code,
        code.co_exceptiontable,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        code.co_argcount,
        code.co_qualname,
    )
    return (*parts, constants)


def method_code(file, text, target) -> CodeType:
    """The method's code as an import of the file would make it."""
    module = compile(text, str(file), "exec", dont_inherit=True)
    holder = next(s for s in ast.parse(text).body if _name(s) == target.holder)
    methods = [_name(s) for s in holder.body]
    name = next(name for name in target.methods if name in methods)
    return code_named(module, f"{target.holder}.{name}")


def as_if_imported(file, code: CodeType, monkeypatch) -> FunctionType:
    """A function of that code, of a module that has the file and was never run."""
    module = ModuleType(f"unrun {file}")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return FunctionType(code, vars(module))


def _name(statement):
    return getattr(statement, "name", None)


@each_target
def test_the_live_weave_compiles_what_the_text_says(release, target, monkeypatch):
    file = release.root / target.file
    stock_code = method_code(file, release.stock(target), target)
    stock = as_if_imported(file, stock_code, monkeypatch)
    # What runs there is found again in the file, as the live weave demands.
    source = live._find_source(stock)
    assert not isinstance(source, Refused), source
    woven = target.weave_source(source)
    assert isinstance(woven, edits.WovenText), woven
    compiled = live._compile(woven.source, woven.original_line, stock)
    written = method_code(file, release.fixed(target), target)
    assert without_lines(compiled) == without_lines(written)
    assert without_lines(compiled) != without_lines(stock_code)
    first, last = _range(stock_code)
    assert first == _range(compiled)[0] and _range(compiled)[1] <= last


def _range(code: CodeType) -> tuple[int, int]:
    lines = [line for *_, line in code.co_lines() if line is not None]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            lines += _range(constant)
    return min(lines), max(lines)


# ---- what the members read is there to be read


def attributes(file, *holders):
    """What the classes of these names in a file define, assign on self, or annotate."""
    found = set()
    for holder in ast.parse(file.read_text()).body:
        if isinstance(holder, ast.ClassDef) and (not holders or holder.name in holders):
            for node in ast.walk(holder):
                if isinstance(node, ast.FunctionDef):
                    found.add(node.name)
                elif isinstance(node, ast.Attribute) and isinstance(
                    node.ctx, ast.Store
                ):
                    if ast.unparse(node.value) == "self":
                        found.add(node.attr)
                elif isinstance(node, ast.AnnAssign) and isinstance(
                    node.target, ast.Name
                ):
                    found.add(node.target.id)
    assert found, (file, holders)
    return found


def chains(source):
    """Each attribute read in the source, as what it is read from and its name."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute)]
    return {(ast.unparse(node.value), node.attr) for node in nodes}


def _read_from(release, holder):
    srt = release.root / "sglang/srt"
    batch, pool = srt / "managers/schedule_batch.py", srt / "mem_cache/memory_pool.py"
    tree, mode = srt / "mem_cache/base_prefix_cache.py", srt / "model_executor"
    allocators = [
        f
        for f in (srt / "mem_cache").rglob("*.py")
        if "def flush_opportunistic(" in f.read_text()
    ]
    scheduler = {
        name
        for file in [srt / "managers/scheduler.py", *srt.glob("managers/*mixin.py")]
        for name in attributes(file)
    }
    flushing = {"flush_opportunistic"} if allocators else set()
    return {
        "self": scheduler if holder == "Scheduler" else attributes(batch, holder),
        "self.tree_cache": attributes(tree) | {"disable"},
        "self.req_to_token_pool": attributes(pool),
        "self.token_to_kv_pool_allocator": flushing,
        "self.server_args": attributes(srt / "server_args.py", "ServerArgs"),
        "self.result_queue": {"popleft"},
        "self.spec_algorithm": attributes(srt / "speculative/spec_info.py"),
        "batch": attributes(batch, "ScheduleBatch"),
        "batch.forward_mode": attributes(mode / "forward_batch_info.py", "ForwardMode"),
        "req": attributes(batch, "Req"),
        "req.kv": attributes(batch, "ReqKvInfo")
        if release.number >= (0, 5, 18)
        else (),
        "logger": {"warning"},
    }


@each_target
def test_what_the_members_read_is_there_in_the_release(release, target):
    there = _read_from(release, target.holder)
    own = {("self", member) for member in target.members}
    missing = [
        f"{base}.{name}"
        for base, name in chains(release.member_source(target)) - own
        if name not in there[base]
    ]
    assert not missing


@pytest.mark.parametrize("edit", engines.EDITS, ids=lambda edit: edit.start.strip())
def test_every_edit_of_the_members_is_for_a_release(edit):
    numbers = [engines.parse_release(version) for version in wheels.VERSIONS]
    assert any(edit.since <= number < edit.until for number in numbers)


# ---- selection and cache


def test_releases_are_selected_by_age_version_or_all():
    assert wheels.select("oldest,newest") == ("0.5.11", "0.5.23")
    assert wheels.select("0.5.12.post1") == ("0.5.12.post1",)
    assert wheels.select("all") == wheels.VERSIONS
    with pytest.raises(ValueError, match="'0.5.10' is none of the releases all, old"):
        wheels.select("middle,0.5.10")


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return wheels.cache()


def registry(monkeypatch, wheel: bytes | None):
    """A package registry that serves these bytes, or has none; counts the fetches."""
    fetches = []

    def run(command, **options):
        fetches.append(command[-1])
        if wheel is None:
            return subprocess.CompletedProcess(
                command, 1, "", "1\nERROR: no such version"
            )
        folder = Path(command[command.index("--dest") + 1])
        (folder / "sglang.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(wheels.subprocess, "run", run)
    return fetches


def a_wheel() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("sglang/srt/a.py", "A = 1\n" * 99)
        archive.writestr("sglang/srt/a.so", "binary")
        archive.writestr("sglang-1.dist-info/a.py", "")
    return held.getvalue()


def files(folder):
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


def test_a_wheel_is_fetched_once_and_its_sources_are_kept(empty_cache, monkeypatch):
    fetches = registry(monkeypatch, a_wheel())
    root = wheels.release_root("0.5.11")
    assert wheels.release_root("0.5.11") == root == empty_cache / "0.5.11"
    assert fetches == ["sglang==0.5.11"]
    assert files(empty_cache) == ["0.5.11/sglang/srt/a.py", "sglang-0.5.11.whl"]


@pytest.mark.parametrize(
    "damage", [lambda w: w[:99], lambda w: w.replace(b"A = 1", b"A = 2")]
)
def test_a_broken_download_does_not_stay(empty_cache, monkeypatch, damage):
    registry(monkeypatch, damage(a_wheel()))
    with pytest.raises(wheels.NoWheel, match="a broken one"):
        wheels.release_root("0.5.11")
    assert files(empty_cache) == []
    registry(monkeypatch, a_wheel())
    assert files(wheels.release_root("0.5.11")) == ["sglang/srt/a.py"]


def test_a_release_that_cannot_be_had_is_named(empty_cache, monkeypatch):
    registry(monkeypatch, None)
    with pytest.raises(wheels.NoWheel) as error:
        wheels.release_root("0.5.11")
    assert "a wheel of sglang 0.5.11; found ERROR: no such version" in str(error.value)
    assert str(empty_cache) in str(error.value)


def test_another_process_that_is_first_is_not_disturbed(empty_cache, monkeypatch):
    fetches = registry(monkeypatch, a_wheel())
    fetch = wheels._fetch

    def fetched_meanwhile(version, folder):
        monkeypatch.setattr(wheels, "_fetch", fetch)
        wheels.release_root(version)
        return fetch(version, folder)

    monkeypatch.setattr(wheels, "_fetch", fetched_meanwhile)
    assert files(wheels.release_root("0.5.11")) == ["sglang/srt/a.py"]
    assert len(fetches) == 2
    assert files(empty_cache) == ["0.5.11/sglang/srt/a.py", "sglang-0.5.11.whl"]


# ---- the README's table


def test_the_table_alone(capsys, release):
    table.main(["--releases", release.version])
    *header, row = capsys.readouterr().out.splitlines()
    assert tuple(header) == table.HEADER
    assert row.startswith(f"| {release.version} (1) | affected | not affected |")


def test_releases_that_do_not_differ_share_a_row(capsys):
    table.main(["--releases", "0.5.17,0.5.23"])
    assert len(capsys.readouterr().out.splitlines()) == len(table.HEADER) + 2


def test_an_unknown_release_has_no_table():
    with pytest.raises(SystemExit, match="none of the releases"):
        table.main(["--releases", "0.4"])


def test_the_table_tells_a_loop_that_the_weave_refuses(release):
    class Other(Release):
        def fixed(self, target):
            raise Stopped("a loop", "another", "report it")

    assert "affected | refused |" in table.row(Other(release.version, release.root))
