"""The server smoke: ``python -m sglang_cpu_testbed.smoke``. A real HTTP server in
each configuration, one prompt cold and warm, and on request the load. Prints one
table and exits 0 only if every expectation holds."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from sglang_cpu_testbed import ENGINE_VERSION, SLOT_SWITCH
from sglang_cpu_testbed.demo import Expectation, missing
from sglang_cpu_testbed.scenarios import NO_OVERLAP, STOCK, WOVEN
from sglang_cpu_testbed.server import ServerFailed
from sglang_cpu_testbed.smoke.asks import ask
from sglang_cpu_testbed.smoke.judgement import Asked, exactly, of_each, table
from sglang_cpu_testbed.smoke.ledger import Load
from sglang_cpu_testbed.smoke.load import run_load
from sglang_cpu_testbed.smoke.servers import launch
from sglang_cpu_testbed.smoke.traffic import CLIENTS, references

EXPLANATION = """\
cold, warm 1, warm 2: tokens and digest of the answer to one prompt of 422 tokens, asked three times.
stop tokens: tokens until the model stops by itself, likewise cold and warm.
cold/warm: largest logprob difference between the cold and the warm runs.
shared: largest logprob difference to overlap disabled for a prompt that shares 300 tokens with an
earlier one."""

SENSITIVE = f"""\
with {SLOT_SWITCH}=1 contents depend a little on the slot's number, so that a stale slot
shows; so does, in every configuration, that a warm prompt ends in other slots than a cold one"""


def main() -> int:
    options = _options()
    lack = missing()
    if lack is not None:
        print(f"cannot run the smoke: {lack}", file=sys.stderr)
        return 1
    started_s = time.monotonic()
    try:
        asked = {False: {}} if options.model else {False: {}, True: {}}
        load = _run(options, asked[False], options.load)
        if True in asked:
            _run(options, asked[True], slots_matter=True)
    except ServerFailed as failure:
        print(f"cannot run the smoke: {failure}", file=sys.stderr)
        return 1
    return _report(options, asked, load, time.monotonic() - started_s)


def _run(
    options, asked: Asked, load_s: float = 0, slots_matter: bool = False
) -> Load | None:
    """The three servers in turn; the load on the woven one, with overlap disabled
    giving the answers it is held against."""
    load, wanted, exact = None, None, options.model is None
    for configuration in (NO_OVERLAP, STOCK, WOVEN):
        _progress(f"{configuration.name}{', slots matter' if slots_matter else ''}")
        with launch(configuration, options.model, slots_matter) as server:
            try:
                asked[configuration] = ask(server)
                if load_s and configuration is NO_OVERLAP:
                    wanted = references(server, options.seed)
                if load_s and configuration is WOVEN:
                    _progress(f"load, {load_s:g} s")
                    load = run_load(server, load_s, options.seed, wanted, exact)
            except OSError as error:
                raise ServerFailed(f"{error}\n{server.log()[-4000:]}") from error
    return load


def _report(options, asked: dict[bool, Asked], load: Load | None, took_s: float) -> int:
    """Print what was found and write it as JSON; the exit status."""
    print(_used(options.model))
    print(EXPLANATION)
    expected = []
    for slots_matter, of_kind in asked.items():
        print(f"\n{_heading(slots_matter, options.model)}")
        print(table(of_kind))
        expected += of_each(of_kind, ", slots matter" if slots_matter else "")
        if not options.model:
            expected += exactly(of_kind, slots_matter)
    if load is not None:
        print(f"the load: {load.summary()}", file=sys.stderr, flush=True)
        print(f"\n{load.title()}")
        expected += load.expectations()
    _write(options, asked, expected, load, took_s)
    return _verdict(expected)


def _options():
    parser = argparse.ArgumentParser(prog="smoke", description=__doc__)
    parser.add_argument("--model", help="path of a real hybrid model, for a GPU")
    parser.add_argument("--load", type=float, default=0, help="seconds of load")
    parser.add_argument("--seed", type=int, default=0, help="of the load")
    parser.add_argument("--json", type=Path, default=Path("build/smoke.json"))
    return parser.parse_args()


def _used(model: str | None) -> str:
    if model:
        import torch

        device = torch.cuda.get_device_name()
        return f"SGLang {ENGINE_VERSION} on {device}, HTTP server, {Path(model).name}."
    return f"SGLang {ENGINE_VERSION} on one CPU, HTTP server, exact reference model; no GPU was used."


def _heading(slots_matter: bool, model: str | None) -> str:
    if slots_matter:
        return SENSITIVE
    return (
        "the model as it is" if model else "the model as it is: exact, any slot will do"
    )


def _write(options, asked, expected: list[Expectation], load, took_s: float) -> None:
    path, model = options.json, options.model
    path.parent.mkdir(parents=True, exist_ok=True)
    servers = [
        {
            "configuration": configuration.name,
            "slots_matter": slots_matter,
            "cold_warm_difference": answers.cold_warm_difference(),
            **asdict(answers),
        }
        for slots_matter, of_kind in asked.items()
        for configuration, answers in of_kind.items()
    ]
    result = {
        "engine": ENGINE_VERSION,
        "model": Path(model).name if model else "reference",
        "seconds": round(took_s),
        "servers": servers,
        "load": load and {"clients": CLIENTS, "seconds": load.load_s, **load.summary()},
        "expectations": [{**asdict(one), "holds": one.holds} for one in expected],
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


def _verdict(expected: list[Expectation]) -> int:
    failed = [one for one in expected if not one.holds]
    print()
    for one in failed:
        print(f"FAILED: {one.subject}: expected {one.expected}, found {one.found}")
    print(f"{len(expected) - len(failed)} of {len(expected)} expectations hold")
    return 1 if failed else 0


def _progress(text: str) -> None:
    print(f"running {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
