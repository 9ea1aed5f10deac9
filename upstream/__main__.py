"""`python -m upstream SOURCE OUT`: writes the folder OUT for a pull request to the SGLang
checkout SOURCE, of whose HEAD a copy is patched and tested; SOURCE stays as it is."""

import argparse
import sys
from pathlib import Path

from upstream import ROOT, Stop, folder
from upstream.evidence import gather


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        folder.require_free(options.out)
        evidence = gather(options.source, options.author, _say)
        folder.write(options.out, evidence)
    except Stop as stop:
        print(f"upstream: {stop}", file=sys.stderr)
        return 2
    for note in evidence.notes:
        _say(note)
    print(f"{options.out}: {', '.join(folder.names(evidence))}")
    return 0


def _options(arguments) -> argparse.Namespace:
    from sglang_mamba_boundary.export import AUTHOR

    parser = argparse.ArgumentParser(
        prog="python -m upstream",
        description=__doc__,
        epilog="exit 0: written; 2: refused, nothing written",
    )
    parser.add_argument("source", type=_named, metavar="SOURCE")
    parser.add_argument(
        "out", type=Path, metavar="OUT", nargs="?", default=ROOT / "build" / "upstream"
    )
    parser.add_argument("--author", default=AUTHOR, metavar="'NAME <EMAIL>'")
    return parser.parse_args(arguments)


def _named(source: str) -> Path:
    if not source:
        raise argparse.ArgumentTypeError("name an SGLang checkout, such as SOURCE=DIR")
    return Path(source)


def _say(text: str) -> None:
    print(f"upstream: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
