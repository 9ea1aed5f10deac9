"""The plugin through SGLang's own loader, each case in a process of its own."""

import importlib
import logging
from types import SimpleNamespace

import pytest

from sglang_mamba_boundary import Refused, Woven, in_place, plugin
from sglang_mamba_boundary.outcome import RequiredFixMissing
from sglang_mamba_boundary.settings import POLICY, REQUIRED

SCHEDULER = "sglang.srt.managers.scheduler"
UNSET = {POLICY: None, REQUIRED: None, "SGLANG_PLUGINS": "mamba_boundary"}


def scheduler_class():
    return importlib.import_module(SCHEDULER).Scheduler


class Log(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("sglang_mamba_boundary").addHandler(self)
        logging.getLogger("sglang_mamba_boundary").setLevel(logging.INFO)

    def emit(self, record):
        self.lines.append((record.levelname, record.getMessage()))

    def only(self, level):
        assert [line[0] for line in self.lines] == [level], self.lines
        return self.lines[0][1]


def load() -> Log:
    from sglang.srt.plugins import load_plugins

    log = Log()
    load_plugins()
    return log


def replace(path, replacement):
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{SCHEDULER}.{path}", replacement, HookType.REPLACE)


def start(log) -> Log:
    """Start the scheduler's loop, as its process does after it is built."""
    log.lines.clear()
    scheduler = scheduler_class().__new__(scheduler_class())
    scheduler.run_event_loop()
    return log


def case(function):
    """Runs the body in a child, with the named environment on top of none."""

    def test(in_child):
        in_child(function, env={**UNSET, **function.environ})

    test.__name__ = function.__name__
    return test


def environment(**environ):
    def decorate(function):
        function.environ = environ
        return case(function)

    return decorate


def run_event_loop_is_entered():
    """The engine's own start, cut short: what matters is whether it is reached."""
    entered = []
    scheduler_class().run_event_loop = lambda self: entered.append(True)
    return entered


@environment()
def test_weaves_by_default():
    entered = run_event_loop_is_entered()
    log = load()
    line = log.only("INFO")
    assert "policy flush" in line and "sglang 0.5.23" in line
    assert isinstance(in_place(scheduler_class()), Woven)
    assert "woven" in start(log).only("INFO")
    assert entered == [True]


@environment()
def test_the_server_is_told_of_the_fix_in_place():
    answer = SimpleNamespace(internal_state={"engine": "its own"})
    scheduler_class().get_internal_state = lambda self, request: answer
    load()
    scheduler = scheduler_class().__new__(scheduler_class())
    scheduler.require_mlp_sync = False
    told = scheduler.get_internal_state(None).internal_state
    assert told["engine"] == "its own"
    assert told["mamba_boundary"]["status"] == "acts"


@environment(**{POLICY: "flush", REQUIRED: "1"})
def test_weaves_when_required():
    entered = run_event_loop_is_entered()
    start(load())
    assert isinstance(in_place(scheduler_class()), Woven)
    assert entered == [True]


@environment(**{POLICY: "publish", REQUIRED: "1"})
def test_weaves_by_another_policy():
    entered = run_event_loop_is_entered()
    log = load()
    assert "policy publish" in log.only("INFO")
    assert "policy publish" in start(log).only("INFO")
    assert hasattr(scheduler_class(), "flush_pending_mamba_prefill")
    assert entered == [True]


@environment(**{POLICY: "off"})
def test_off_leaves_the_engine_alone():
    assert "without the fix" in load().only("INFO")
    assert isinstance(in_place(scheduler_class()), Refused)
    assert not hasattr(scheduler_class(), "publish_pending_mamba_prefill")


@environment(**{POLICY: "audit"})
def test_an_audit_says_at_the_start_that_it_changes_nothing():
    run_event_loop_is_entered()
    plugin._count = lambda scheduler, settings: None
    log = load()
    assert "=audit, runs without the fix" in log.only("INFO")
    assert "=audit, runs without the fix" in start(log).only("INFO")


@environment(SGLANG_PLUGINS="other")
def test_excluded_by_the_engine_leaves_the_engine_alone():
    assert load().lines == []
    assert isinstance(in_place(scheduler_class()), Refused)


@environment(**{POLICY: "flash"})
def test_wrong_policy_stops_the_launch():
    with pytest.raises(SystemExit) as caught:
        load()
    for part in (
        POLICY,
        "'flash'",
        "'flush', 'publish', 'late', 'rebind', 'audit', 'off'",
    ):
        assert part in str(caught.value)
    assert not hasattr(scheduler_class(), "publish_pending_mamba_prefill")


@environment(**{REQUIRED: "true"})
def test_wrong_required_stops_the_launch():
    with pytest.raises(SystemExit, match=REQUIRED):
        load()


@environment()
def test_refusal_is_one_error_line():
    scheduler_class().event_loop_overlap = print
    line = load().only("ERROR")
    assert "WITHOUT the fix" in line and "print" in line


@environment(**{REQUIRED: "1"})
def test_refusal_stops_the_launch_when_required():
    scheduler_class().event_loop_overlap = print
    with pytest.raises(SystemExit, match="required and not in place.*print"):
        load()


@environment()
def test_later_replacement_of_the_loop_is_an_error_at_the_start():
    entered = run_event_loop_is_entered()
    replace("Scheduler.event_loop_overlap", lambda scheduler: None)
    log = load()
    assert "woven" in log.only("INFO")
    assert "WITHOUT the fix" in start(log).only("ERROR")
    assert entered == [True]


@environment(**{REQUIRED: "1"})
def test_later_replacement_of_the_loop_ends_a_start_that_requires_the_fix():
    entered = run_event_loop_is_entered()
    replace("Scheduler.event_loop_overlap", lambda scheduler: None)
    log = load()
    with pytest.raises(RequiredFixMissing) as caught:
        start(log)
    assert isinstance(caught.value.refusal, Refused)
    assert "mamba-boundary: the fix is required" in log.only("ERROR")
    assert entered == []


@environment(**{POLICY: "late", REQUIRED: "1"})
def test_later_replacement_of_the_second_place_ends_it_too():
    run_event_loop_is_entered()
    replace("Scheduler._reqs_finishing_inflight", lambda scheduler, batch: [])
    log = load()
    with pytest.raises(RequiredFixMissing):
        start(log)


@environment(**{REQUIRED: "1"})
def test_later_replacement_of_the_class_ends_a_start_that_requires_the_fix():
    class Replacement(scheduler_class()):
        def event_loop_overlap(self):
            pass

    replace("Scheduler", Replacement)
    with pytest.raises(RequiredFixMissing, match="in its place"):
        start(load())


def test_the_entry_point_is_the_plugin():
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="sglang.srt.plugins", name="mamba_boundary")
    assert entry.load() is plugin.load
