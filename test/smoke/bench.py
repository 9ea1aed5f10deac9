"""SGLang's own benchmark client against a running server."""

import json
import os
import subprocess
import sys
from pathlib import Path

from sglang_cpu_testbed.engine import MODEL
from sglang_cpu_testbed.server import Server

GROUPS, MEMBERS, ANSWER_LEN = 4, 6, 12
TIMEOUT_S = 180


def bench(server: Server, rate: str, folder: Path) -> dict:
    """Its report with details, for prompts that share 256 tokens in groups."""
    report = folder / "report.jsonl"
    options = {
        "backend": "sglang",
        "base-url": server.url,
        "tokenizer": MODEL,
        "dataset-name": "generated-shared-prefix",
        "gsp-num-groups": GROUPS,
        "gsp-prompts-per-group": MEMBERS,
        "gsp-system-prompt-len": 256,
        "gsp-question-len": 70,
        "gsp-output-len": ANSWER_LEN,
        "request-rate": rate,
        "seed": 5,
        "output-file": report,
    }
    command = [sys.executable, "-W", "ignore", "-m", "sglang.bench_serving"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(
        [*command, "--output-details", "--disable-tqdm"],
        # It keeps what it has generated under the home folder.
        env={**os.environ, "HOME": str(folder), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"bench_serving: {done.returncode}\n{done.stdout[-3000:]}")
    return json.loads(report.read_text())
