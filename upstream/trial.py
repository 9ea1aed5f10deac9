"""What becomes of the checkout with the patch: on a copy of its HEAD the registered
tests are run before and after `git am`, and the lint on the files that changed."""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sglang_mamba_boundary import engines, git
from sglang_mamba_boundary.export import REGISTERED, Exported
from upstream import ROOT, Stop

RED_GREEN = ROOT / "test" / "red_green.py"
LISTS = ROOT / "test" / "red_green.toml"
LINT = ROOT / ".pre-commit-config.yaml"
SOMEBODY = {
    f"GIT_COMMITTER_{field}": value
    for field, value in (("NAME", "somebody"), ("EMAIL", "somebody@example.invalid"))
}
LOCATE = """
from importlib.util import find_spec
print(find_spec("sglang.srt.managers.schedule_batch").origin)
"""


@dataclass(frozen=True)
class Tests:
    """Numbers of tests; ``not_run`` is the reason if there are none."""

    fail_before: int = 0
    pass_before: int = 0
    pass_after: int = 0
    not_run: str = ""


@dataclass(frozen=True)
class Trial:
    """``lint`` names the hooks that passed; ``lint_failed`` what they said otherwise."""

    title: str
    tests: Tests
    lint: tuple[str, ...]
    lint_failed: str = ""


def run(source: Path, exported: Exported, say: Callable[[str], None]) -> Trial:
    """Raises Stop where a test has another outcome than it must have."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "sglang")
        paths = str(source.resolve()), str(copy)
        git.read(source, "clone", "--quiet", "--shared", *paths)
        say("running the registered tests without the patch")
        before = _outcomes(copy)
        am = ("am", "--quiet", "--keep-non-patch")
        git.run(copy, *am, stdin=exported.patch, **SOMEBODY)
        say("running them with the patch")
        after = before if isinstance(before, str) else _outcomes(copy)
        tests = _judged(before, after, exported)
        say("running the lint on the changed files")
        title = git.read(copy, "log", "-1", "--format=%s").decode().strip()
        return Trial(title, tests, *_lint(copy, exported.files))


def _outcomes(copy: Path) -> dict[str, str] | str:
    """By test, on the engine of the copy; or why they cannot be run there."""
    package = str(copy / "python")
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    environ |= {"PYTHONPATH": package, "OMP_NUM_THREADS": "1"}
    python = [sys.executable, "-W", "ignore"]
    found = _captured([*python, "-c", LOCATE], environ)
    if not found.stdout.startswith(package):
        return "its package cannot be imported, or is not whole"
    report = copy.parent / "outcomes.json"
    report.unlink(missing_ok=True)
    command = [*python, str(RED_GREEN), "--run", "stock", "--report", str(report)]
    done = _captured(command, environ)
    if done.returncode or not report.exists():
        said = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return f"the tests cannot be imported here: {said[-1]}"
    return json.loads(report.read_text())


def _captured(command: list[str], environ: dict[str, str]):
    return subprocess.run(command, env=environ, capture_output=True, text=True)


def _judged(before, after, exported: Exported) -> Tests:
    """By the lists of the tests that must fail without the fix, and of all others."""
    for outcomes in (before, after):
        if isinstance(outcomes, str):
            return Tests(not_run=outcomes)
    files = {Path(file).stem for file in exported.files if file.startswith(REGISTERED)}
    lists = tomllib.loads(LISTS.read_text())
    red, green = (
        [test for test in lists[name] if test.partition(".")[0] in files]
        for name in ("must_fail_on_stock", "must_pass_on_both")
    )
    if not red:
        return Tests(not_run="none of them is in the patch")
    wrong = [f"{t} before: {before.get(t)}" for t in red if before.get(t) != "fail"]
    wrong += [f"{t} before: {before.get(t)}" for t in green if before.get(t) != "pass"]
    both = [*red, *green]
    wrong += [f"{t} after: {after.get(t)}" for t in both if after.get(t) != "pass"]
    if wrong:
        raise Stop(
            "the registered tests to be red without the patch and green with it",
            "; ".join(wrong[:3]),
            "look at these tests on that checkout before anything is sent",
        )
    return Tests(len(red), len(green), len(both))


def _settle(copy: Path) -> None:
    """The tools' settings of this project, where the checkout has none of its own:
    SGLang gives them to the hooks, which here are those of this project."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    settings = {
        "ruff.toml": f"lint.select = {json.dumps(tools['ruff']['lint']['select'])}\n",
        ".isort.cfg": f"[settings]\nprofile={tools['isort']['profile']}\n"
        f"known_first_party={engines.ENGINE}\n",
    }
    for name, text in settings.items():
        if not (copy / name).exists():
            (copy / name).write_text(text)


def _lint(copy: Path, files: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """The hooks that looked at these files and passed, or those that failed."""
    _settle(copy)
    command = [sys.executable, "-m", "pre_commit", "run", "--config", str(LINT)]
    done = subprocess.run(
        [*command, "--files", *files], cwd=copy, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    told = [line.rpartition("...") for line in lines if "..." in line]
    if done.returncode:
        failed = [name.rstrip(".") for name, _, end in told if end == "Failed"]
        return (), ", ".join(failed) or (done.stderr or done.stdout).strip()[-200:]
    return tuple(name.rstrip(".") for name, _, end in told if end == "Passed"), ""
