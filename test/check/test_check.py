"""`check` about the installed engine and about source trees."""

import importlib
import os
import shutil
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest

from sglang_mamba_boundary import check, engines
from sglang_mamba_boundary.check import check_installed, check_source
from sglang_mamba_boundary.fixed_text import fix_file
from sglang_mamba_boundary.settings import POLICY, REQUIRED
from sglang_mamba_boundary.targets import LOOP

PLAIN = {POLICY: None, REQUIRED: None, "SGLANG_PLUGINS": "mamba_boundary"}
LOOP_PATH = f"{engines.SCHEDULER_MODULE}.Scheduler.event_loop_overlap"


def replace_loop(replacement):
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(LOOP_PATH, replacement, HookType.REPLACE)


def nothing():
    """The engine as it is installed."""


def a_copy_of_the_stock_loop():
    scheduler = importlib.import_module(engines.SCHEDULER_MODULE).Scheduler
    own = scheduler.__dict__["event_loop_overlap"].__wrapped__
    copied = type(own)(own.__code__, own.__globals__)
    copied.__kwdefaults__ = own.__kwdefaults__
    replace_loop(lambda scheduler: copied(scheduler))


def a_loop_that_does_nothing():
    replace_loop(lambda scheduler: None)


def no_sglang():
    real = metadata.version

    def version(name):
        if name == engines.ENGINE:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    metadata.version = version


def an_engine_that_does_not_import():
    def broken():
        raise ImportError("libcuda.so.1")

    check._loaded_scheduler = broken


def no_source():
    real = Path.read_text

    def read_text(self, *args, **kwargs):
        if self.name == "scheduler.py":
            raise FileNotFoundError(self.name)
        return real(self, *args, **kwargs)

    Path.read_text = read_text


@dataclass
class Case:
    prepare: object
    exit_code: int
    environ: dict
    facts: dict
    evidence: str = ""


CASES = {
    "woven": Case(
        nothing,
        0,
        {},
        {
            "plugin would be loaded": "yes",
            "fix in place": "yes, woven into Scheduler.event_loop_overlap",
            "engine as released": "affected, a decode batch",
        },
    ),
    "woven inside the selection as well": Case(
        nothing,
        0,
        {POLICY: "late"},
        {"policy driven": "flush: the stand-ins of this check"},
    ),
    "switched off": Case(
        nothing,
        1,
        {POLICY: "off"},
        {
            "plugin would be loaded": f"yes, but {POLICY}=off weaves nothing",
            "fix in place": "no: ",
        },
    ),
    "audit": Case(
        nothing, 1, {POLICY: "audit"}, {"plugin would be loaded": "yes, but"}
    ),
    "excluded": Case(
        nothing,
        1,
        {"SGLANG_PLUGINS": "some, other"},
        {
            "plugin would be loaded": "no, SGLANG_PLUGINS='some, other' does not name",
            "fix in place": "no: ",
        },
    ),
    "replaced by a copy of the stock loop": Case(
        a_copy_of_the_stock_loop,
        1,
        {},
        {"plugin would be loaded": "yes", "fix in place": "no: "},
    ),
    "replaced by no loop at all": Case(
        a_loop_that_does_nothing, 2, {}, {"fix in place": "no: "}
    ),
    "wrong variable": Case(
        nothing,
        2,
        {POLICY: "on"},
        {
            "plugin would be loaded": "yes, and the launch would stop",
            "fix in place": "cannot tell, the scheduler does not load: SystemExit",
        },
    ),
    "no SGLang": Case(no_sglang, 2, {}, {}, "no such|none in this environment"),
    "engine that does not import": Case(
        an_engine_that_does_not_import,
        2,
        {},
        {
            "fix in place": "cannot tell",
            "engine as released": "affected, a decode batch",
        },
        "libcuda",
    ),
    "no source": Case(no_source, 0, {}, {"engine as released": "cannot tell"}),
}


@pytest.mark.parametrize("name", CASES)
def test_installed(in_child, name):
    case = CASES[name]

    def child():
        case.prepare()
        return check_installed(os.environ)

    report = in_child(child, env={**PLAIN, **case.environ})
    assert report.exit_code == case.exit_code, report
    for fact, words in case.facts.items():
        assert report.facts[fact].startswith(words), report.facts
    assert any(part in report.evidence[0] for part in case.evidence.split("|"))
    assert report.as_dict()["exit_code"] == case.exit_code


def test_no_entry_point():
    with patch.object(check.metadata, "entry_points", return_value=()):
        assert check.plugin_is_loaded({}).startswith("no, no entry point")


@pytest.mark.parametrize("allowed", ["", " ", "mamba_boundary", "a, mamba_boundary"])
def test_plugins_variable_that_lets_it_load(allowed):
    assert check.plugin_is_loaded({"SGLANG_PLUGINS": allowed}) == "yes"


@pytest.fixture
def source(tmp_path):
    """A folder like an unpacked wheel, with the scheduler's file only."""
    package = Path(find_spec(engines.ENGINE).submodule_search_locations[0])
    file = tmp_path / check.SCHEDULER
    file.parent.mkdir(parents=True)
    shutil.copy(package.parent / check.SCHEDULER, file)
    return file


def edited(file: Path, *edits: tuple[str, str]) -> Path:
    text = file.read_text()
    for before, after in edits:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    file.write_text(text)
    return file.parents[3]


def test_stock_source_is_affected(source):
    report = check_source(source.parents[3])
    assert report.exit_code == 1 and "private" in report.evidence[0]


def test_an_exported_and_applied_checkout_is_not_affected(source):
    # That `git am` of the export gives this very text is what test/export shows.
    source.write_text(fix_file(source.read_text(), LOOP, engines.NEWEST))
    report = check_source(source.parents[3])
    assert report.exit_code == 0
    assert "overlap lost" not in report.facts


def test_hand_made_fix_is_recognised_by_what_it_does(source):
    drain = "            while self.result_queue: pop_and_process()\n"
    text = source.read_text()
    start = text.index("def event_loop_overlap")
    at = text.index("            plan = self.get_next_batch_to_run(", start)
    text = text[:at] + drain + text[at:]
    for guard in ("if disable_overlap_for_batch:", "if not disable_overlap_for_batch:"):
        assert text.count(guard) == 1
        text = text.replace(guard, guard[:-1] + " and False:")
    source.write_text(text)
    report = check_source(source.parents[3])
    assert report.exit_code == 0
    assert "decode" in report.facts["overlap lost"]


def test_unknown_loop_is_left_open(source):
    folder = edited(
        source, ("def event_loop_overlap(self)", "def event_loop_new(self)")
    )
    assert check_source(folder).exit_code == 2


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_folder_without_a_readable_engine(tmp_path, content):
    if content:
        file = tmp_path / check.SCHEDULER
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
    report = check_source(tmp_path)
    assert report.exit_code == 2 and report.evidence[0]


def test_not_a_folder(tmp_path):
    report = check_source(tmp_path / "nowhere")
    assert report.exit_code == 2
    assert "no folder" in report.evidence[0]
