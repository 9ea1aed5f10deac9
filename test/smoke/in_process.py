"""The smoke's questions to a scheduler in this process, which must not have had one:
what they do needs no HTTP, and a server for each row would take minutes."""

from sglang_cpu_testbed.engine import MODEL, Engine
from sglang_cpu_testbed.request import Request
from sglang_cpu_testbed.scenarios import Configuration
from sglang_cpu_testbed.smoke.asks import Answers, ask
from sglang_cpu_testbed.smoke.servers import TIGHT


class InProcess:
    """Answers ``ask`` as a server does."""

    def __init__(self, **server_args):
        from transformers import AutoTokenizer

        # The scheduler's own tokenizer knows where the model stops.
        self.engine = Engine(skip_tokenizer_init=False, **TIGHT, **server_args)
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self.asked = 0

    def get(self, path: str) -> None:
        assert path.startswith("/flush_cache"), path
        assert self.engine.scheduler.flush_cache(empty_cache=False)

    def post(self, path: str, **body) -> dict:
        return {"/tokenize": self._tokenize, "/generate": self._generate}[path](**body)

    def _tokenize(self, messages, add_generation_prompt) -> dict:
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return {"tokens": self.tokenizer.encode(text)}

    def _generate(self, input_ids, sampling_params, return_logprob) -> dict:
        self.asked += 1
        sampling = dict(sampling_params)
        new_tokens = sampling.pop("max_new_tokens")
        request = Request(
            str(self.asked), tuple(input_ids), new_tokens, return_logprob, sampling
        )
        output = self.engine.run([request])[request.rid]
        return {
            "output_ids": output.tokens,
            "meta_info": {
                "output_token_logprobs": [(value,) for value in output.logprobs],
                "cached_tokens": output.cached_tokens,
                "finish_reason": output.finish,
            },
        }


def ask_here(configuration: Configuration) -> Answers:
    """Set the environment of ``configuration`` first."""
    return ask(InProcess(**configuration.server_args))
