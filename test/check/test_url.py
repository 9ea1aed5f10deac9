"""`check_url` against servers that report this and that."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from sglang_mamba_boundary import Refused, Woven, server, status
from sglang_mamba_boundary.check import AFFECTED, CANNOT_TELL, NOT_AFFECTED

ACTS = {"policy": "flush", "status": "acts", "loop": "woven into it"}
ALONE = {"policy": "flush", "status": "left alone", "loop": "MLP sync"}
ABSENT = {"policy": "audit", "status": "absent", "loop": "a loop without it"}
SETTINGS = {
    "version": "0.5.23",
    "mamba_radix_cache_strategy": "extra_buffer",
    "disable_radix_cache": False,
    "disable_overlap_schedule": False,
}


def info(*reports, **settings):
    states = [{"mamba_boundary": r} if r else {"load": 0} for r in reports]
    return {**SETTINGS, "internal_states": states, **settings}


@contextmanager
def serving(answer, endpoint="/server_info"):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            known = self.path == endpoint
            self.send_response(200 if known else 404)
            self.end_headers()
            if known:
                self.wfile.write(answer)

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_port}/"
        finally:
            listener.shutdown()
            thread.join()


def checked(told, **kwargs):
    answer = told if isinstance(told, bytes) else json.dumps(told).encode()
    with serving(answer, **kwargs) as url:
        return server.check_url(url)


@pytest.mark.parametrize(
    "told, verdict, evidence",
    [
        (info(ACTS), NOT_AFFECTED, "woven into it"),
        (info(ACTS, ACTS), NOT_AFFECTED, "woven into it"),
        (info(None, disable_overlap_schedule=True), NOT_AFFECTED, "overlap"),
        (info(None, disable_radix_cache=True), NOT_AFFECTED, "radix cache"),
        (
            info(None, mamba_radix_cache_strategy="no_buffer"),
            NOT_AFFECTED,
            "no_buffer",
        ),
        (info(None), AFFECTED, "no scheduler reports the fix"),
        (info(None, version="0.5.11"), AFFECTED, "no scheduler reports the fix"),
        (info(ACTS, None), AFFECTED, "no scheduler reports the fix"),
        (info(ABSENT), AFFECTED, "a loop without it"),
        (info(ALONE), AFFECTED, "MLP sync"),
        (info(ACTS, ABSENT), AFFECTED, "a loop without it"),
        (
            info(None, mamba_radix_cache_strategy="extra_buffer_lazy"),
            AFFECTED,
            "no scheduler",
        ),
        (
            {
                "version": "0.5.12",
                "internal_states": [{"mamba_scheduler_strategy": "extra_buffer"}],
            },
            AFFECTED,
            "no scheduler",
        ),
        (info(), CANNOT_TELL, "the plugin's word"),
        (info(None, version="0.6.0"), CANNOT_TELL, "version: 0.6.0"),
        (info(None, version="main"), CANNOT_TELL, "version: main"),
        (info(None, mamba_radix_cache_strategy="auto"), CANNOT_TELL, "strategy: auto"),
        (info(None, mamba_radix_cache_strategy=None), CANNOT_TELL, "not reported"),
        ({}, CANNOT_TELL, "not reported"),
    ],
)
def test_verdict(told, verdict, evidence):
    report = checked(told)
    assert report.verdict == verdict
    assert evidence in report.evidence[0]


def test_older_servers_answer_elsewhere():
    assert checked(info(ACTS), endpoint="/get_server_info").exit_code == 0


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b"\xff"])
def test_an_answer_that_is_no_report(answer):
    report = checked(answer)
    assert report.exit_code == 2
    assert "/server_info or /get_server_info" in report.evidence[0]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "file:///"])
def test_no_server(url):
    report = server.check_url(url)
    assert report.exit_code == 2
    for part in ("looked for", "found", "nothing was checked", "http://host:port"):
        assert part in report.evidence[0]


@pytest.mark.parametrize(
    "outcome, mlp_sync, expected",
    [
        (Woven("0.5.23", "S.loop"), False, "acts"),
        (Woven("0.5.23", "S.loop"), True, "left alone"),
        (Refused(*"abc"), False, "absent"),
    ],
)
def test_status_of_a_scheduler(monkeypatch, outcome, mlp_sync, expected):
    monkeypatch.setattr(status, "in_place", lambda scheduler: outcome)
    told = status.status_of(SimpleNamespace(require_mlp_sync=mlp_sync), "flush")
    assert told["status"] == expected and told["policy"] == "flush" and told["loop"]


def test_status_names_the_policy_that_is_followed_instead(monkeypatch):
    monkeypatch.setattr(status, "in_place", lambda scheduler: Woven("0.5.23", "S.loop"))
    obstacles = dict(late_obstacle=lambda: None, rebind_obstacle=lambda: "lazy buffers")
    scheduler = SimpleNamespace(require_mlp_sync=False, **obstacles)
    told = status.status_of(scheduler, "rebind")["loop"]
    assert "as by the policy late, since rebind was refused: found lazy" in told
    scheduler.late_obstacle = lambda: "speculative decoding"
    told = status.status_of(scheduler, "rebind")["loop"]
    assert "as by the policy flush" in told and "lazy" not in told
    assert "refused" not in status.status_of(scheduler, "audit")["loop"]


def test_status_names_what_the_policy_publish_refuses(monkeypatch):
    monkeypatch.setattr(status, "in_place", lambda scheduler: Woven("0.5.23", "S.loop"))
    found = [None, "unified memory"]
    scheduler = SimpleNamespace(
        require_mlp_sync=False, publish_ahead_obstacle=lambda: found.pop(0)
    )
    assert "refused" not in status.status_of(scheduler, "publish")["loop"]
    told = status.status_of(scheduler, "publish")
    assert told["status"] == "acts"
    assert "publish was refused: found unified memory" in told["loop"]
