"""The reference model as a plain function of its tokens: no scheduler, no pools,
no cache, no batch. Whatever an engine outputs for a prompt under greedy decoding
has to equal this, bit for bit."""

from collections.abc import Iterable, Sequence

import torch

from sglang_cpu_testbed import exact
from sglang_cpu_testbed.layers import FullLayer, LinearLayer, Stack


class Oracle:
    """Greedy output of the reference model; slot numbers do not matter here."""

    def __init__(self, config=None):
        from sglang_cpu_testbed.config import ReferenceConfig

        self.stack = Stack(config or ReferenceConfig())
        self.weights = exact.attention_weights()

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits of the token after ``tokens``, float32 [vocab]."""
        positions = torch.arange(len(tokens))
        x, means = self.stack.embedding[torch.tensor(tokens)], []
        for layer in self.stack.layers:
            if isinstance(layer, LinearLayer):
                x = layer.outputs(x, _recur(layer, x))
            else:
                x, mean = layer.outputs(x, self._attend(layer, x, positions))
                means.append(mean)
        hidden = self.stack.hidden(x, means)[-1:]
        return (hidden @ self.stack.readout.weight.T)[0]

    def greedy(
        self, prompt: Sequence[int], new_tokens: int, stop: Iterable[int] = ()
    ) -> tuple[list[int], list[float]]:
        """Up to ``new_tokens`` token ids and their logprobs in nats; ends behind
        the first token in ``stop``."""
        stop, tokens, logprobs = set(stop), list(prompt), []
        while len(logprobs) < new_tokens:
            logits = self.logits(tokens)
            token = int(logits.argmax())
            logprobs.append(float(logits.log_softmax(-1)[token]))
            tokens.append(token)
            if token in stop:
                break
        return tokens[len(prompt) :], logprobs

    def _attend(self, layer: FullLayer, x, positions):
        q, k, v = layer.inputs(x, positions)
        return exact.attend(q, k, v, positions + 1, self.weights)


def _recur(layer: LinearLayer, x):
    u = layer.inputs(x)
    before = u.new_zeros(layer.taps.shape[0] - 1, u.shape[1])
    start = u.new_zeros(layer.powers.shape[1])
    return layer.states(torch.cat([before, u]), start)
