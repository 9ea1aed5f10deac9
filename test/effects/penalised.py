"""What greedy decoding gives under a penalty, as a plain function of the rule that
says which token a decode step counts."""

from collections.abc import Sequence

import torch


def penalised(
    oracle,
    prompt: Sequence[int],
    new_tokens: int,
    prefilled: Sequence[int],
    behind: int,
    sampling: dict[str, float],
) -> tuple[list[int], list[float], list[list[int]]]:
    """Tokens, their logprobs in nats, and the tokens counted since each prefill.

    A decode step counts the token ``behind`` positions before the newest, and the
    counts start anew with every prefill, as SGLang's do when it retracts;
    ``prefilled`` says how many outputs each prefill had.
    """
    tokens, logprobs, counted = list(prompt), [], []
    for position in range(new_tokens):
        if position in prefilled:
            counted.append([])
        else:
            counted[-1].append(tokens[-1 - behind])
        logits = penalise(oracle.logits(tokens), counted[-1], **sampling)
        token = int(logits.argmax())
        logprobs.append(float(logits.log_softmax(-1)[token]))
        tokens.append(token)
    return tokens[len(prompt) :], logprobs, counted


def penalise(
    logits: torch.Tensor,
    counted: list[int],
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
) -> torch.Tensor:
    counts = torch.bincount(
        torch.tensor(counted, dtype=torch.int64), minlength=len(logits)
    )
    logits = logits - frequency_penalty * counts - presence_penalty * (counts > 0)
    scale = torch.where(counts > 0, repetition_penalty, 1.0)
    return torch.where(logits < 0, logits * scale, logits / scale)
