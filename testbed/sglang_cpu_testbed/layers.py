"""The reference model's arithmetic, without pools and without SGLang: what a layer
feeds to its recurrence or its attention, and what it makes of the answer. The
engine's model and the oracle share it and differ in where they remember things."""

import torch
from torch import nn

from sglang_cpu_testbed import exact

# Logits are integers times this, exact in float32 and spread like a model's.
LOGIT_UNIT = 2.0**-17
TIE_BREAK = 512


class LinearLayer(nn.Module):
    """x += mix of the states of a recurrence over the convolved inputs.

    ``taps`` [K, C], ``powers`` [ORDER, S]; C channels, S states, K taps.
    """

    def __init__(self, config, layer_id: int):
        super().__init__()
        self.layer_id = layer_id
        width = config.hidden_size
        channels, remembered = config.mamba2_cache_params.shape.conv[0]
        size = torch.Size(config.mamba2_cache_params.shape.temporal).numel()
        name = f"linear {layer_id}"
        self.shuffle = exact.permutation(f"{name} in")
        self.bend = exact.permutation(f"{name} mix")
        self.inward = exact.table(f"{name} inward", width, channels)
        self.taps = exact.table(f"{name} taps", remembered + 1, channels, low=1)
        self.into_state = exact.table(f"{name} state", channels, size)
        decay = exact.table(f"{name} decay", size, low=1, high=exact.ORDER)
        self.powers = exact.powers_of(decay)
        self.outward = exact.table(f"{name} outward", size, width)

    def inputs(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs of the convolution [T, C] for hidden states [T, W]."""
        return exact.matmul(self.shuffle[x], self.inward)

    def states(self, window: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """States [T, S] after each of T tokens, from the inputs including the
        K - 1 before them [K-1+T, C] and the state before them [S]."""
        convolved = exact.convolve(window, self.taps)
        mixed = exact.matmul(self.bend[convolved], self.into_state)
        return exact.scan(start, mixed, self.powers)

    def outputs(self, x: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Hidden states [T, W] after this layer."""
        return (x + exact.matmul(self.bend[states], self.outward)) % exact.P


class FullLayer(nn.Module):
    """x += mix of exact attention over all positions so far.

    H heads of D channels; the last channel of a value belongs to the slot.
    """

    def __init__(self, config, layer_id: int):
        super().__init__()
        self.layer_id = layer_id
        self.heads, self.dim = config.num_attention_heads, config.head_dim
        width, flat = config.hidden_size, self.heads * self.dim
        name = f"full {layer_id}"
        self.shuffle = exact.permutation(f"{name} in")
        self.bend = exact.permutation(f"{name} out")
        self.project = [exact.table(f"{name} {part}", width, flat) for part in "qkv"]
        self.turn = exact.table(f"{name} turn", flat, low=1)
        self.outward = exact.table(f"{name} outward", flat - self.heads, width)

    def inputs(self, x: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
        """Query, key and value, each [T, H, D], at ``positions`` [T]."""
        h = self.shuffle[x]
        q, k, v = (
            exact.matmul(h, part).view(-1, self.heads, self.dim)
            for part in self.project
        )
        # Attention sums without order; the key is where the position enters.
        at = positions.unsqueeze(1)
        k = (k + (at * self.turn + at // exact.P).view_as(k)) % exact.P
        v[..., -1] = 0
        return [q, k, v]

    def outputs(
        self, x: torch.Tensor, attended: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [T, W] after this layer, and the slot means [T, H]."""
        attended = attended.view(-1, self.heads, self.dim)
        content = self.bend[attended[..., :-1].flatten(1)]
        x = (x + exact.matmul(content, self.outward)) % exact.P
        return x, attended[..., -1]


class Readout(nn.Module):
    """The weight [vocab, columns] that makes logits: one column per hidden
    channel, one per slot mean, one that breaks ties."""

    def __init__(self, config):
        super().__init__()
        vocab = config.vocab_size
        if vocab > TIE_BREAK:
            raise ValueError(f"vocab_size {vocab} is above {TIE_BREAK}")
        means = len(config.full_attention_layer_ids) * config.num_attention_heads
        columns = [
            exact.table("readout", vocab, config.hidden_size, low=-3, high=4)
            * TIE_BREAK,
            exact.table("slot readout", vocab, means, low=-3, high=4),
            torch.arange(vocab).unsqueeze(1),
        ]
        # Not a parameter: dummy loading overwrites those.
        self.weight = torch.cat(columns, dim=1).float() * LOGIT_UNIT


class Stack(nn.Module):
    """All of the model but its memory."""

    def __init__(self, config):
        super().__init__()
        self.embedding = exact.table("embedding", config.vocab_size, config.hidden_size)
        self.last = exact.permutation("last")
        self.layers = nn.ModuleList(
            (LinearLayer if i in config.linear_layer_ids else FullLayer)(config, i)
            for i in range(config.num_hidden_layers)
        )
        self.readout = Readout(config)

    def hidden(self, x: torch.Tensor, means: list[torch.Tensor]) -> torch.Tensor:
        """The columns ``readout`` weighs, float32, for the last layer's ``x``."""
        centred = self.last[x] - exact.P // 2
        return torch.cat([centred, *means, torch.ones_like(x[:, :1])], dim=1).float()
