"""Whatever stops the command is said, and nothing is left behind."""

import json
import shutil

import pytest
import scratch
from scratch import REPOSITORY, git

import upstream.evidence
from sglang_mamba_boundary.export import REGISTERED, export
from upstream import Stop, folder, records, trial
from upstream.__main__ import main

FILES = (records.SIMULATION, records.SMOKE, records.BENCHMARK, records.PICTURE)


def refused(capsys, source, out) -> str:
    """What the command says when it refuses to write `out`."""
    before = sorted(out.parent.rglob("*")) if out.parent.exists() else None
    assert main([str(source), str(out)]) == 2
    after = sorted(out.parent.rglob("*")) if out.parent.exists() else None
    assert after == before
    return capsys.readouterr().err


def test_no_folder(capsys, tmp_path):
    said = refused(capsys, tmp_path / "none", tmp_path / "below" / "out")
    assert "no folder" in said and "nothing was written" in said


def test_no_engine(capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    said = refused(capsys, tmp_path / "empty", tmp_path / "out")
    assert "neither python/sglang nor sglang" in said


def test_no_name():
    with pytest.raises(SystemExit) as ended:
        main([""])
    assert ended.value.code == 2


def test_no_git(capsys, tmp_path):
    tree = scratch.copy_sources(scratch.installed(), tmp_path / "wheel", prefix="")
    said = refused(capsys, tree, tmp_path / "out")
    assert "no git repository at" in said


def test_fixed_already(capsys, few, tmp_path):
    git(few, "am", stdin=export(few).patch)
    assert "nothing to send" in refused(capsys, few, tmp_path / "out")


def test_changes_that_are_not_committed(capsys, few, tmp_path):
    scratch.edit(few / "python" / scratch.SCHEDULER, ("import ", "import  "))
    assert "uncommitted change" in refused(capsys, few, tmp_path / "out")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A copy of the records, which a test may damage."""
    root = tmp_path / "root"
    for file in FILES:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / file, root / file)
    read = records.read
    monkeypatch.setattr(upstream.evidence.records, "read", lambda: read(root))
    return root


@pytest.mark.parametrize("file", FILES)
def test_a_missing_record(capsys, few, tmp_path, root, file):
    (root / file).unlink()
    said = refused(capsys, few, tmp_path / "out")
    assert f"the record {file}" in said and records.WRITTEN_BY[file] in said


def test_a_record_that_is_no_json(capsys, few, tmp_path, root):
    (root / records.SMOKE).write_text("{")
    assert "JSON in the record" in refused(capsys, few, tmp_path / "out")


def test_a_record_with_a_violation(capsys, few, tmp_path, root):
    record = json.loads((root / records.SIMULATION).read_text())
    next(iter(record.values()))["violations"] = 1
    (root / records.SIMULATION).write_text(json.dumps(record))
    assert "find the cause" in refused(capsys, few, tmp_path / "out")


@pytest.mark.parametrize("kind", ["file", "folder", "json"])
def test_what_is_not_ours_stays(capsys, few, tmp_path, kind):
    out = tmp_path / "place" / "out"
    out.parent.mkdir()
    if kind == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        name = "record.json" if kind == "json" else "notes"
        (out / name).write_text('{"made_by": "me"}')
    assert "something else" in refused(capsys, few, out)


def test_a_place_that_cannot_be_written(evidence, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Stop, match="a place to write .* FileExistsError"):
        folder.write(tmp_path / "file" / "out", evidence)
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


def test_our_own_folder_and_an_empty_one_are_written_anew(evidence, tmp_path):
    out = tmp_path / "place" / "out"
    out.mkdir(parents=True)
    folder.write(out, evidence)
    first = {file.name: file.read_bytes() for file in out.iterdir()}
    (out / "DESCRIPTION.md").write_text("edited")
    (out / "more").write_text("")
    folder.write(out, evidence)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == first
    assert list(out.parent.iterdir()) == [out]


# The trial's judgement


@pytest.fixture
def exported(few):
    return export(few)


def outcomes(**changed) -> dict[str, str]:
    import tomllib

    lists = tomllib.loads(trial.LISTS.read_text())
    found = dict.fromkeys(lists["must_fail_on_stock"], "fail")
    return found | dict.fromkeys(lists["must_pass_on_both"], "pass") | changed


def test_red_and_green_as_they_must_be(exported):
    before = outcomes()
    told = trial._judged(before, dict.fromkeys(before, "pass"), exported)
    assert told.fail_before + told.pass_before == told.pass_after == len(before)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("outcome", ["fail", "pass", "error: x", None])
def test_a_test_that_ends_otherwise_stops_it(exported, moment, outcome):
    before = outcomes()
    after = dict.fromkeys(before, "pass")
    changed = before if moment == "before" else after
    # One that must fail before, one that must pass.
    for test in ([*before][0], [*before][-1]):
        right, changed[test] = changed[test], outcome
        if outcome == right:
            trial._judged(before, after, exported)
        else:
            with pytest.raises(Stop, match=f"{moment}: {outcome}"):
                trial._judged(before, after, exported)
        changed[test] = right


def test_tests_that_are_not_in_the_patch_are_not_told(few):
    left_out = export(few, tests=False)
    assert not any(file.startswith(REGISTERED) for file in left_out.files)
    before = outcomes()
    told = trial._judged(before, before, left_out)
    assert told.not_run == "none of them is in the patch"
