"""The command's words, streams and exit codes."""

import json
import runpy
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sglang_mamba_boundary import AlreadyFixed, Refused, cli, engines
from sglang_mamba_boundary.check import AFFECTED, Report
from sglang_mamba_boundary.checkout import BATCH, SCHEDULER


@pytest.fixture
def wheel(tmp_path):
    """A folder like an unpacked wheel, with the two files that the fix is in."""
    package = Path(find_spec(engines.ENGINE).submodule_search_locations[0]).parent
    for name in (SCHEDULER, BATCH):
        file = tmp_path / "wheel" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / name, file)
    return tmp_path / "wheel"


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


def test_check_source(capsys, wheel):
    code, out, _ = run(capsys, "check", "--source", wheel)
    assert code == 1
    assert out.startswith(f"{wheel}: affected\n")
    for words in ("evidence: ", "--disable-overlap-schedule", "extra_buffer_lazy"):
        assert words in out


def test_check_for_machines(capsys, wheel):
    code, out, _ = run(capsys, "check", "--json", "--source", wheel)
    told = json.loads(out)
    assert code == told["exit_code"] == 1
    assert told["verdict"] == "affected" and told["evidence"]


def test_check_url(capsys):
    code, out, _ = run(capsys, "check", "--url", "http://127.0.0.1:1")
    assert code == 2 and "cannot tell" in out


def test_check_installed(capsys, monkeypatch):
    report = Report("sglang 1", AFFECTED, ("seen",), {"fix in place": "no"})
    monkeypatch.setattr(cli, "check_installed", lambda environ: report)
    code, out, _ = run(capsys, "check")
    assert code == 1 and "fix in place: no" in out


def test_one_subject_at_a_time(capsys):
    code, _, err = run(capsys, "check", "--source", ".", "--url", "http://x")
    assert code == 2 and "not allowed with" in err


def test_a_command_is_needed(capsys):
    code, _, err = run(capsys)
    assert code == 2 and "COMMAND" in err


@pytest.mark.parametrize("layout", ["", "python"])
def test_show_source(capsys, wheel, layout):
    shown = wheel
    if layout:
        shown = wheel.parent / "checkout"
        shutil.copytree(wheel, shown / layout)
    code, out, _ = run(capsys, "show", "--source", shown)
    added = [line for line in out.split("\n") if line.startswith("+")]
    assert code == 0
    assert any("published_early = self.publish_pending" in line for line in added)


def test_show_installed(capsys):
    code, out, _ = run(capsys, "show")
    assert code == 0 and out.startswith("--- a/python/sglang/srt/managers/scheduler.py")


def test_show_without_an_engine(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "show")
    assert code == 2 and not out
    for words in ("looked for", "FileNotFoundError", "nothing was shown", "--source"):
        assert words in err


def test_show_of_an_unknown_loop(capsys, wheel):
    file = wheel / SCHEDULER
    file.write_text(file.read_text().replace("_engine_paused", "_engine_asleep"))
    code, out, err = run(capsys, "show", "--source", wheel)
    assert code == 2 and not out and "paused-engine" in err


def test_export_to_standard_output_and_to_a_file(capfdbinary, wheel, tmp_path):
    with pytest.raises(SystemExit) as ended:
        cli.main(["export", "--source", str(wheel)])
    printed = capfdbinary.readouterr()
    assert ended.value.code == 0 and printed.out.startswith(b"From ")
    assert b"without test_mamba_prefill_cache_boundary.py: " in printed.err
    file = tmp_path / "fix.patch"
    with pytest.raises(SystemExit) as ended:
        cli.main(["export", "--source", str(wheel), "-o", str(file)])
    assert ended.value.code == 0 and file.read_bytes() == printed.out


def test_export_takes_author_date_and_message(capsys, wheel, tmp_path):
    file = tmp_path / "fix.patch"
    options = ["--author", "A B <a@b.c>", "--date", "2026-01-02T03:04:05+00:00"]
    options += ["--message", "Title of it"]
    assert run(capsys, "export", "--source", wheel, "-o", file, *options)[0] == 0
    head = file.read_text().split("---")[0]
    for words in ("From: A B <a@b.c>", "Date: Fri, 2 Jan 2026", "Title of it"):
        assert words in head


def test_export_refused(capsys, tmp_path):
    code, out, err = run(capsys, "export", "--source", tmp_path)
    assert code == 2 and not out and "looked for" in err


def test_export_where_nothing_can_be_written(capsys, wheel, tmp_path):
    file = tmp_path / "nowhere" / "fix.patch"
    code, out, err = run(capsys, "export", "--source", wheel, "-o", file)
    assert code == 2 and not out
    assert "FileNotFoundError" in err and "no patch was written" in err


def test_export_of_a_fixed_checkout(capsys, monkeypatch, tmp_path):
    fixed = AlreadyFixed("0.5.23", "Scheduler.event_loop_overlap")
    monkeypatch.setattr(cli, "export", lambda *args, **kwargs: fixed)
    code, out, err = run(capsys, "export", "--source", tmp_path)
    assert code == 1 and not out and "nothing to export" in err


def test_as_a_module(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mamba-boundary", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("sglang_mamba_boundary", run_name="__main__")
    assert ended.value.code == 0
    assert runpy.run_module("sglang_mamba_boundary.__main__")["main"]


def test_a_refusal_is_told_whole(capsys, monkeypatch, tmp_path):
    refused = Refused("A", "B", "do D", state="C holds")
    monkeypatch.setattr(cli, "export", lambda *args, **kwargs: refused)
    _, _, err = run(capsys, "export", "--source", tmp_path)
    assert err == "mamba-boundary: looked for A; found B; C holds; do D\n"
