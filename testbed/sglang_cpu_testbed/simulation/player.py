"""Plays histories in a forked child that keeps its engine from one to the next, and
forks another where a history left the engine unusable. Separate from ``fork``, which
gives every case a process of its own: a build costs as much as twenty histories."""

import gc
import logging
import os
import sys
import tempfile
import traceback
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from sglang_cpu_testbed.fork import CaseFailed, end
from sglang_cpu_testbed.scenarios import BOUNDARY_SWITCH
from sglang_cpu_testbed.simulation import faults
from sglang_cpu_testbed.simulation.configurations import MODEL, Configuration
from sglang_cpu_testbed.simulation.history import History
from sglang_cpu_testbed.simulation.verdict import Verdict

# A history takes a tenth of a second, an engine a few.
HISTORY_TIMEOUT_S = 120.0
LOG_TAIL = 4000

# rid to tokens, logprobs and finish reason.
Outputs = dict[str, tuple[list, list, dict | None]]


@dataclass
class Played:
    verdict: Verdict
    outputs: Outputs
    # What the model answered that was not known before.
    learnt: dict


class Player:
    """One configuration under one policy: a value of SGLANG_MAMBA_BOUNDARY, or a
    planted fault. A context manager; call ``warm()`` first. ``answers`` is added to."""

    def __init__(self, configuration: Configuration, policy: str, answers: dict):
        self._configuration, self._policy = configuration, policy
        self._answers = answers
        self._child: tuple[int, Connection] | None = None
        self._log = tempfile.TemporaryFile()

    def __enter__(self) -> "Player":
        return self

    def __exit__(self, *_) -> None:
        self._end()
        self._log.close()

    def play(self, history: History) -> Played:
        """Raises CaseFailed where the child dies, hangs or cannot build an engine."""
        if self._child is None:
            self._child = self._start()
        pid, pipe = self._child
        try:
            pipe.send(history)
            if not pipe.poll(HISTORY_TIMEOUT_S):
                raise self._failure("hung", f"no verdict in {HISTORY_TIMEOUT_S:g} s")
            answer = pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise self._failure("died", repr(error)) from None
        if isinstance(answer, str):
            raise self._failure("raised", answer)
        self._answers.update(answer.learnt)
        if not answer.verdict.reusable:
            self._end()
        return answer

    def _start(self) -> tuple[int, Connection]:
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._serve(theirs)
        theirs.close()
        return pid, ours

    def _serve(self, pipe: Connection) -> None:
        """The child; never returns."""
        try:
            # A failing scheduler signals its process group.
            os.setsid()
            for number, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(self._log.fileno(), number)
                setattr(sys, name, open(number, "w", buffering=1, closefd=False))
            os.environ.update(self._configuration.variables)
            os.environ[BOUNDARY_SWITCH] = self._mode
            try:
                stage = self._stage()
                # SGLang collects garbage when it flushes: spare it the engine.
                gc.collect()
                gc.freeze()
                while True:
                    pipe.send(self._played(stage, pipe.recv()))
            except EOFError:
                pass
            except BaseException:
                pipe.send(traceback.format_exc())
        finally:
            os._exit(0)

    def _stage(self):
        from sglang_cpu_testbed.config import ReferenceConfig
        from sglang_cpu_testbed.simulation.expected import Expected
        from sglang_cpu_testbed.simulation.play import Stage
        from sglang_mamba_boundary import live
        from sglang_mamba_boundary.outcome import Refused
        from sglang_mamba_boundary.settings import WEAVING

        logging.disable(logging.ERROR)
        if self._policy in faults.FAULTS:
            faults.plant(self._policy)
        expected = Expected(ReferenceConfig(**MODEL), self._answers)
        stage = Stage(self._configuration, expected)
        # SGLang goes on without a plugin that fails to load.
        woven = live.in_place(type(stage.scheduler))
        if isinstance(woven, Refused) and self._mode in WEAVING:
            raise RuntimeError(f"the loop to be judged is not in place: {woven}")
        return stage

    @property
    def _mode(self) -> str:
        fault = faults.FAULTS.get(self._policy)
        return fault.policy if fault else self._policy

    def _played(self, stage, history: History) -> Played:
        known = dict(self._answers)
        verdict = stage.play(history)
        outputs = {
            output.rid: (output.tokens, output.logprobs, output.finish)
            for output in stage.engine.outputs.values()
        }
        # An answer that was extended counts as new.
        learnt = {
            prompt: answer
            for prompt, answer in self._answers.items()
            if known.get(prompt) is not answer
        }
        return Played(verdict, outputs, learnt)

    def _end(self) -> None:
        if self._child is None:
            return
        (pid, pipe), self._child = self._child, None
        pipe.close()
        # It may hang; it has nothing to save.
        end(pid, patience_s=0)

    def _failure(self, reason: str, detail: str) -> CaseFailed:
        self._end()
        self._log.seek(0)
        log = self._log.read().decode(errors="replace")[-LOG_TAIL:]
        return CaseFailed(reason, detail, log)
