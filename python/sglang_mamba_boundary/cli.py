"""The command: `mamba-boundary check`, `show`, `export`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from . import engines
from .check import Report, check_installed, check_source
from .checkout import SCHEDULER
from .export import AUTHOR, DATE, export, loop_diff
from .outcome import AlreadyFixed, Refused
from .server import FLAGS, check_url

NOTHING_TO_DO, REFUSED = 1, 2
# Lines of evidence on the page for people.
SHOWN = 3


def main(arguments: list[str] | None = None) -> None:
    """Exits 0, 1 or 2; what each means stands in the help of the command."""
    options = _parser().parse_args(arguments)
    raise SystemExit(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mamba-boundary", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    check = commands.add_parser(
        "check",
        help="is an engine affected, and is the fix in place?",
        epilog="exit 0: not affected, fixed upstream, or fix in place; 1: affected; "
        "2: cannot tell, with the reason",
    )
    subject = check.add_mutually_exclusive_group()
    subject.add_argument(
        "--source",
        type=Path,
        metavar="DIR",
        help="an SGLang checkout or unpacked wheel, which is not imported",
    )
    subject.add_argument(
        "--url", help="a running server, such as http://127.0.0.1:30000"
    )
    check.add_argument("--json", action="store_true", help="for machines")
    check.set_defaults(run=_check)

    show = commands.add_parser("show", help="the woven loop as a diff")
    show.add_argument("--source", type=Path, metavar="DIR", help="instead of installed")
    show.set_defaults(run=_show)

    patch = commands.add_parser(
        "export",
        help="the fix as a patch that `git am` accepts on a checkout",
        epilog="exit 0: written; 1: the checkout carries the fix, nothing written; "
        "2: refused, nothing written",
    )
    patch.add_argument("--source", type=Path, metavar="DIR", required=True)
    patch.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="instead of standard output"
    )
    patch.add_argument("--author", default=AUTHOR, metavar="'NAME <EMAIL>'")
    patch.add_argument("--date", default=DATE, help="ISO 8601 with an offset")
    patch.add_argument("--message", help="instead of the default commit message")
    patch.set_defaults(run=_export)
    return parser


def _check(options: argparse.Namespace) -> int:
    if options.url:
        report = check_url(options.url)
    elif options.source:
        report = check_source(options.source)
    else:
        report = check_installed(os.environ)
    print(json.dumps(report.as_dict(), indent=2) if options.json else _page(report))
    return report.exit_code


def _page(report: Report) -> str:
    lines = [f"{report.subject}: {report.verdict}", ""]
    lines += [f"  evidence: {line}" for line in report.evidence[:SHOWN]]
    if len(report.evidence) > SHOWN:
        lines.append(f"  and {len(report.evidence) - SHOWN} more, see --json")
    lines += [f"  {name}: {value}" for name, value in report.facts.items()]
    lines += ["", "Does this touch my launch flags? The fault needs all of:"]
    lines += [f"  {flag.flag}: {flag.affected_when}" for flag in FLAGS]
    return "\n".join(lines)


def _show(options: argparse.Namespace) -> int:
    try:
        diff = loop_diff(_scheduler_file(options.source).read_bytes().decode())
    except (OSError, UnicodeDecodeError) as error:
        diff = Refused(
            f"the engine's {SCHEDULER}",
            f"{type(error).__name__}: {error}",
            "name the checkout or unpacked wheel with --source",
            state="nothing was shown",
        )
    if isinstance(diff, Refused):
        return _refuse(diff)
    print(diff, end="")
    return 0


def _scheduler_file(source: Path | None) -> Path:
    if source is None:
        spec = find_spec(engines.ENGINE)
        source = Path(spec.submodule_search_locations[0]).parent if spec else Path()
    in_checkout = source / "python" / SCHEDULER
    return in_checkout if in_checkout.exists() else source / SCHEDULER


def _export(options: argparse.Namespace) -> int:
    outcome = export(
        options.source,
        author=options.author,
        date=options.date,
        message=options.message,
    )
    if isinstance(outcome, Refused):
        return _refuse(outcome)
    if isinstance(outcome, AlreadyFixed):
        print(f"mamba-boundary: nothing to export: {outcome}", file=sys.stderr)
        return NOTHING_TO_DO
    if options.output is None:
        sys.stdout.buffer.write(outcome.patch)
        sys.stdout.buffer.flush()
    else:
        try:
            options.output.write_bytes(outcome.patch)
        except OSError as error:
            return _refuse(
                Refused(
                    f"a file {options.output} to write the patch to",
                    f"{type(error).__name__}: {error}",
                    "name a file in a folder that exists, with -o",
                    state="the source tree is unchanged and no patch was written",
                )
            )
    for note in outcome.notes:
        print(f"mamba-boundary: {note}", file=sys.stderr)
    return 0


def _refuse(refusal: Refused) -> int:
    print(f"mamba-boundary: {refusal}", file=sys.stderr)
    return REFUSED
