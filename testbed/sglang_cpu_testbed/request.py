"""A request and what an engine gave for it. Separate from the engine so that results
can be unpickled and compared where SGLang is not imported."""

import math
from array import array
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    """One request. ``sampling`` holds SGLang's SamplingParams fields, ``extra``
    fields of its TokenizedGenerateReqInput such as priority. SGLang builds no MIXED
    batch while a request wants ``logprobs``."""

    rid: str
    prompt: tuple[int, ...]
    max_new_tokens: int = 8
    logprobs: bool = True
    sampling: dict = field(default_factory=dict)
    extra: dict = field(default_factory=dict)


@dataclass
class Output:
    """What the engine streamed for one request; logprobs are the engine's own,
    in nats, one per token if asked for. ``finish`` is SGLang's finish reason, None
    while the request is open."""

    rid: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: dict | None = None
    cached_tokens: int = 0
    retractions: int = 0


def tokenized(request: Request, tokenizer=None):
    """The request as SGLang's front end would hand it to the scheduler."""
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    fields = {"temperature": 0.0, "max_new_tokens": request.max_new_tokens}
    params = SamplingParams(**fields | request.sampling)
    params.normalize(tokenizer)
    return TokenizedGenerateReqInput(
        **dict(
            rid=request.rid,
            input_text=None,
            input_ids=array("q", request.prompt),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=params,
            return_logprob=request.logprobs,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
        )
        | request.extra
    )


def same_bits(a: list[float], b: list[float]) -> bool:
    """Whether two logprob lists are equal bit for bit (NaN equals NaN)."""
    return len(a) == len(b) and all(
        x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True)
    )
