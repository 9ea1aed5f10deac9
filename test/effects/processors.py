"""A custom logit processor that depends on the outputs of its request. Separate
because it derives from a class of SGLang's."""

import torch

from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

# Per request, how many of its outputs each call saw.
VIEWS: dict[str, list[int]] = {}


class Discourage(CustomLogitProcessor):
    """Takes a half from a logit for every time that its token was output."""

    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            outputs = list(params["__req__"].output_ids)
            VIEWS.setdefault(params["__req__"].rid, []).append(len(outputs))
            row -= discouragement(outputs, len(row))
        return logits


def discouragement(outputs: list[int], vocab: int) -> torch.Tensor:
    counts = torch.bincount(torch.tensor(outputs, dtype=torch.int64), minlength=vocab)
    return 0.5 * counts
