"""Integer arithmetic modulo a prime, the whole numerics of the reference model.
Every value is an integer in [0, P), which bfloat16 and wider hold exactly, and
every sum stays below 2**53, so a result does not depend on the order in which it
was summed: not on batch mates, not on chunk limits, not on cached prefixes."""

import random

import torch

P = 251
# Powers of any unit repeat after P - 1 steps.
ORDER = P - 1
GENERATOR = 6
SLOT_UNIT = 64


def table(name: str, *shape: int, low: int = 0, high: int = P) -> torch.Tensor:
    """Integers in [low, high) of the given shape, fixed by ``name``; int64."""
    source = random.Random(name)
    size = torch.Size(shape).numel()
    return torch.tensor([source.randrange(low, high) for _ in range(size)]).view(shape)


def permutation(name: str) -> torch.Tensor:
    """A permutation of [0, P), the model's non-linearity; int64 [P]."""
    values = list(range(P))
    random.Random(name).shuffle(values)
    return torch.tensor(values)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` mod P for integers in [0, P); int64."""
    return (a.double() @ b.double()).long() % P


def convolve(window: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Causal convolution mod P: ``window`` [K-1+T, C], ``taps`` [K, C] to [T, C]."""
    return (window.unfold(0, taps.shape[0], 1) * taps.T).sum(-1) % P


def scan(
    start: torch.Tensor, inputs: torch.Tensor, powers: torch.Tensor
) -> torch.Tensor:
    """States of s[t] = a * s[t-1] + inputs[t] mod P.

    ``start`` [C], ``inputs`` [T, C], ``powers`` [ORDER, C] with powers[i] = a**i.
    Returns [T, C]. Dividing step t by a**t turns the recurrence into a plain sum.
    """
    steps = torch.arange(1, inputs.shape[0] + 1, device=inputs.device)
    scaled = inputs * powers[-steps % ORDER] % P
    return (start + scaled.cumsum(0)) * powers[steps % ORDER] % P


def powers_of(units: torch.Tensor) -> torch.Tensor:
    """``powers`` of ``scan`` for the units GENERATOR**units[c]; int64 [ORDER, C]."""
    one = [1]
    for _ in range(ORDER - 1):
        one.append(one[-1] * GENERATOR % P)
    exponents = torch.arange(ORDER).unsqueeze(1) * units
    return torch.tensor(one)[exponents % ORDER]


def attention_weights() -> torch.Tensor:
    """The weight of each score, never 0 so that no position is without effect."""
    return table("attention weights", P, low=1)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Weighted sum mod P over the positions each query sees.

    ``q`` [T, H, D], ``k`` and ``v`` [N, H, D] integers in [0, P); ``seen`` [T] is
    the number of leading positions query t reads; ``weights`` [P] maps a score
    to its weight. Returns [T, H, D]; the last channel of ``v`` is not weighted
    but averaged, in units of 1 / SLOT_UNIT.
    """
    visible = torch.arange(k.shape[0], device=k.device) < seen.unsqueeze(1)
    keys, values = k.transpose(0, 1), v.transpose(0, 1)
    scores = matmul(q.transpose(0, 1), keys.transpose(1, 2))
    out = matmul(weights[scores] * visible, values[..., :-1])
    total = (visible.double() @ values[..., -1].double().T).long()
    mean = total * SLOT_UNIT // seen.unsqueeze(1)
    return torch.cat([out.transpose(0, 1), mean.unsqueeze(-1)], dim=-1)


def slot_value(slots: torch.Tensor, salt: int) -> torch.Tensor:
    """A value in [0, P) that only the slot number decides; int64 [T]."""
    mixed = (slots.long() + 1 + salt * 7919) * 0x9E3779B1 & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 15) * 0x85EBCA6B & 0xFFFFFFFF
    return (mixed ^ mixed >> 13) % P
