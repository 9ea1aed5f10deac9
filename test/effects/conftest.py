"""Every kind of server runs once in each configuration, when a test first asks."""

import functools
import json

import pytest
from observing import ObservingEngine, Seen
from traffic import EOS, SERVERS, own

from sglang_cpu_testbed.scenarios import BARRIER_SWITCH, BOUNDARY_SWITCH
from sglang_mamba_boundary.settings import REQUIRED, WEAVING

TIMEOUT_S = 300.0


@pytest.fixture(scope="session")
def oracle(in_child):
    from sglang_cpu_testbed.oracle import Oracle

    return Oracle()


@pytest.fixture(scope="session")
def free(oracle):
    """Greedy output without any feature, by the name of the prompt."""
    return functools.cache(lambda name: oracle.greedy(own(name), 10)[0])


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory) -> str:
    """The folder of a tokenizer with one token per id of the reference model."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # Printable ASCII, and for any other id a text that no other token holds.
    printable = {i: chr(i) for i in range(33, 127)}
    vocab = {printable.get(i, f"<{i}>"): i for i in range(512)}
    model = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    folder = str(tmp_path_factory.mktemp("tokenizer"))
    PreTrainedTokenizerFast(tokenizer_object=model).save_pretrained(folder)
    return folder


def run(server_args, features, free) -> tuple[dict[str, dict[str, Seen]], dict]:
    """Outputs by feature and request, and what logit processors saw by request."""
    from processors import VIEWS

    engine = ObservingEngine(**server_args)
    seen, earlier = {}, set()
    for feature in features:
        engine.run(feature(free, engine))
        new = engine.outputs.keys() - earlier
        seen[feature.__name__] = {
            rid: output for rid, output in engine.outputs.items() if rid in new
        }
        earlier |= new
    return seen, VIEWS


@pytest.fixture(scope="session")
def result(in_child, free, tokenizer):
    """What ``run`` gives for the server of a feature in a configuration."""

    @functools.cache
    def of_server(configuration, server):
        server_args, features = SERVERS[server]
        model = json.dumps({"eos_token_id": free(EOS)[2]})
        return in_child(
            run,
            server_args
            | configuration.server_args
            | dict(tokenizer_path=tokenizer, json_model_override_args=model),
            features,
            free,
            env={
                BOUNDARY_SWITCH: configuration.boundary,
                # A refused weave would compare the stock engine with itself.
                REQUIRED: "1" if configuration.boundary in WEAVING else None,
                BARRIER_SWITCH: "1",
            },
            timeout_s=TIMEOUT_S,
        )

    def result(configuration, feature):
        (server,) = (i for i, (_, run) in enumerate(SERVERS) if feature in run)
        return of_server(configuration, server)

    return result


@pytest.fixture(scope="session")
def seen(result):
    """``seen(configuration, feature)``: the outputs of a feature by request."""
    return lambda configuration, feature: result(configuration, feature)[0][
        feature.__name__
    ]


@pytest.fixture(scope="session")
def views(result):
    """How many outputs each call of a feature's logit processor saw, by request."""
    return lambda configuration, feature: result(configuration, feature)[1]
