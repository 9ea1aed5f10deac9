"""The commands behind each figure of the description: for one who has the folder and a
checkout of SGLang, and for one who has this project as well."""

from sglang_mamba_boundary.export import REGISTERED
from upstream.evidence import Evidence

PATCH = "mamba-prefill-publication.patch"

WITH_THE_PROJECT = """\
## With this project

It sets up what it needs in `.venv` of its checkout: Python 3.11, no GPU.

| figure | command |
|---|---|
| the registered tests, without and with the change | `make red-green` |
| the server and its load | `make smoke` |
| the simulation | {simulate} |
| the table of speeds | `make bench` |
| `loop.png` | `make picture` |
| all of this folder | `make upstream SOURCE=DIR` |

`make smoke`, `make simulate` and `make picture` write the records that the description is made from; `make bench`
fails where the stored one is not what it computes, byte for byte. `record.json` holds them as they were used here."""


def reproduce(evidence: Evidence) -> str:
    simulate = ", ".join(
        f"`make simulate SEEDS={run['seeds']}`" for run in evidence.records.simulation
    )
    parts = [
        "# Reproduce",
        _provenance(evidence),
        _checkout_alone(evidence),
        WITH_THE_PROJECT.format(simulate=simulate),
    ]
    return "\n\n".join(parts) + "\n"


def _provenance(evidence: Evidence) -> str:
    return (
        f"Made by sglang-mamba-boundary {evidence.package} on Python {evidence.python}, for commit\n"
        f"`{evidence.commit}` with tree `{evidence.tree}`.\n"
        f"The sha256 of the patch is `{evidence.sha256}`."
    )


def _checkout_alone(evidence: Evidence) -> str:
    files = [file for file in evidence.exported.files if file.startswith(REGISTERED)]
    run = [f"PYTHONPATH=python python3 {file}" for file in files]
    sources = [file for file in evidence.exported.files if file not in files]
    lines = [
        "## With a checkout of SGLang alone",
        "",
        "In an environment that can import it, apply the patch and run its tests as SGLang's own runner does:",
        "",
        "```bash",
        "FOLDER=/path/to/this/folder",
        f'git am --keep-non-patch "$FOLDER/{PATCH}"',
        *[f"{command} -f" for command in run],
        "```",
    ]
    if run:
        lines += [
            "",
            "Each prints `OK`. The same tests on the sources without the change, where those that must fail do so with an "
            "AssertionError in their tracebacks:",
            "",
            "```bash",
            f"git checkout --quiet HEAD~ -- {' '.join(sources)}",
            *[f"{command} || true" for command in run],
            f"git checkout --quiet HEAD -- {' '.join(sources)}",
            "```",
            "",
            "In SGLang's suites: `python3 test/run_suite.py --hw cpu --suite base-a-test-cpu`.",
        ]
    return "\n".join(lines)
