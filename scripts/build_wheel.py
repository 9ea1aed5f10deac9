"""Builds the source distribution, the wheel from it, and tests that wheel: in an
environment of its own with the engine of .venv and nothing else of this checkout but
the testbed, built likewise. Both files are left in build/dist if all of it passed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from version import ROOT, agreed

DIST = ROOT / "build" / "dist"
# What a .venv holds of this project; all else is the engine's, or a tool.
OURS = ("sglang_mamba_boundary", "sglang_cpu_testbed", "__editable__")
PACKAGE = "sglang_mamba_boundary"
# Run there one after the other; each must exit with 0.
TRIALS = (
    ("-m", PACKAGE, "check"),
    ("test/red_green.py",),
    ("-m", "sglang_cpu_testbed.demo"),
    ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    + ("test/check", "test/plugin", "test/export"),
)


def build(sources: Path, work: Path) -> tuple[Path, Path]:
    """The source distribution of `sources`, and the wheel that is built from it."""
    code = f"import setuptools.build_meta as b; b.build_sdist({str(work)!r})"
    run(sys.executable, "-c", code, cwd=sources)
    (sdist,) = work.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    pip = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index")
    run(
        *(sys.executable, *pip, "--no-build-isolation", "--wheel-dir", work, unpacked),
        cwd=work,
    )
    (wheel,) = work.glob("*.whl")
    return sdist, wheel


def tracked_copy(target: Path) -> Path:
    """What git tracks, so that neither leftovers get in nor a build leaves any."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    return target


def environment(folder: Path, *wheels: Path) -> Path:
    """The Python of a new environment with those wheels beside the engine."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    borrowed = Path(sys.prefix, "lib", version, "site-packages")
    link_engine(borrowed, folder / "lib" / version / "site-packages")
    python = folder / "bin" / "python"
    pip = ("-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    run(sys.executable, *pip, "--no-index", *wheels)
    return python


def link_engine(borrowed: Path, target: Path) -> None:
    """All installed packages but those of this project."""
    for entry in borrowed.iterdir():
        if not entry.name.startswith((*OURS, "__pycache__")):
            (target / entry.name).symlink_to(entry)


def run(*command, **options) -> None:
    """Exits where the command fails."""
    command = [str(part) for part in command]
    if subprocess.run(command, **options).returncode:
        raise SystemExit(f"{' '.join(command[1:])}: failed; {DIST} stays as it was")


def trial_environ() -> dict[str, str]:
    """Without what would bring other copies of this project in."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return {**environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="of the release, which must be the version's")
    try:
        version = agreed(ROOT, parser.parse_args().tag or None)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        copy = tracked_copy(work / "sources")
        for name in ("project", "testbed"):
            (work / name).mkdir()
        sdist, wheel = build(copy, work / "project")
        _, testbed = build(copy / "testbed", work / "testbed")
        python = environment(work / "environment", wheel, testbed)
        where = f"import {PACKAGE} as p; assert p.__file__.startswith({folder!r}), p"
        run(python, "-c", where, env=trial_environ())
        for trial in TRIALS:
            print(f"wheel: {' '.join(trial)}", file=sys.stderr, flush=True)
            run(python, "-W", "ignore", *trial, cwd=copy, env=trial_environ())
        DIST.mkdir(parents=True, exist_ok=True)
        for file in DIST.iterdir():
            file.unlink()
        for file in (sdist, wheel):
            shutil.copy(file, DIST)
    print(f"{version}: {sdist.name} and {wheel.name} in {DIST}")


if __name__ == "__main__":
    main()
