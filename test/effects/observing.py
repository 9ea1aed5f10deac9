"""An engine that also notes what it streams in which message, how many outputs are
known when a prefill and a first decode are built, and which tokens the penalties
count: all of it read where SGLang hands it over."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sglang_cpu_testbed.engine import Engine
from sglang_cpu_testbed.request import Output, Request

# What a streamed message holds for one request besides tokens and finish reason.
LOGPROB_FIELDS = tuple(
    f"{side}_{kind}_logprobs_{part}"
    for side in ("input", "output")
    for kind in ("token", "top", "token_ids")
    for part in ("val", "idx")
)


@dataclass
class Message:
    """What was streamed at once; ``logprobs`` by SGLang's own field names."""

    tokens: list[int]
    finish: dict | None
    logprobs: dict[str, list]


@dataclass
class Seen(Output):
    """An Output and how it came about; a retracted request is prefilled again."""

    messages: list[Message] = field(default_factory=list)
    # Outputs prefilled with the prompt, per prefill.
    prefilled: list[int] = field(default_factory=list)
    # Outputs processed when the first decode after a prefill is built.
    known: list[int] = field(default_factory=list)
    # Tokens fed to the penalties, one per decode step, a list per prefill.
    counted: list[list[int]] = field(default_factory=list)
    # Whether it was ever decoded within a MIXED batch.
    mixed: bool = False

    @property
    def chunks(self) -> list[list[int]]:
        return [message.tokens for message in self.messages]


class ObservingEngine(Engine):
    """An Engine whose outputs are ``Seen``."""

    def __init__(self, **server_args):
        # The repetition penalty is compiled otherwise: no part of the question.
        import torch._dynamo

        torch._dynamo.config.disable = True
        super().__init__(**server_args)
        _observe(self.outputs)

    def submit(self, *requests: Request) -> None:
        super().submit(*requests)
        # Nothing is streamed within the turn of arrival.
        self.outputs.update({r.rid: Seen(r.rid) for r in requests})

    def _streamed(self, batch, *_) -> None:
        super()._streamed(batch)
        for i, rid in enumerate(batch.rids):
            values = {name: getattr(batch, name) for name in LOGPROB_FIELDS}
            logprobs = {name: list(v[i]) for name, v in values.items() if v and v[i]}
            message = Message(
                list(batch.output_ids[i]), batch.finished_reasons[i], logprobs
            )
            self.outputs[rid].messages.append(message)


def _observe(outputs: dict[str, Seen]) -> None:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.sampling.penaltylib.orchestrator import (
        BatchedPenalizerOrchestrator,
    )

    def prefill(batch):
        for req in batch.reqs:
            prefilled = outputs[req.rid].prefilled
            # The chunks of one prefill follow each other.
            if prefilled[-1:] != [len(req.output_ids)]:
                prefilled.append(len(req.output_ids))

    def decode(batch):
        for req in batch.reqs:
            if req.decode_batch_idx == 0:
                outputs[req.rid].known.append(len(req.output_ids))

    def mix(batch, running_batch):
        for req in running_batch.reqs:
            outputs[req.rid].mixed = True

    def count(orchestrator, output_ids):
        for req, token in zip(orchestrator.reqs(), output_ids.tolist(), strict=True):
            if req.decode_batch_idx == 0:
                outputs[req.rid].counted.append([])
            outputs[req.rid].counted[-1].append(token)

    _before(ScheduleBatch, "prepare_for_extend", prefill)
    _before(ScheduleBatch, "prepare_for_decode", decode)
    _before(ScheduleBatch, "mix_with_running", mix)
    _before(BatchedPenalizerOrchestrator, "cumulate_output_tokens", count)


def _before(owner: type, name: str, look: Callable) -> None:
    original = getattr(owner, name)

    def method(self, *args, **kwargs):
        look(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(owner, name, method)
