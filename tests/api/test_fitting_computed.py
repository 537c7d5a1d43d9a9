"""fit and modules that are asked to compute in another dtype than they are stored in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import transformers
from torch import nn

import tightfit
from tests.cases.common import assert_back, virtual
from tests.pipelines import tiny
from tests.place.converting.nets import meant, stored
from tests.streaming import Net
from tightfit.card import open_card
from tightfit.errors import MemoryShortage, UsageError
from tightfit.weigh import weight_bytes
from tightfit.weigh.conversions import computes_in

WORDS = 512
IDS = torch.arange(1, 25).reshape(2, 12)
SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": True,
}
T5_SHAPE = {
    "vocab_size": WORDS,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 3,
    "num_heads": 4,
    "feed_forward_proj": "gated-gelu",
}
ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**SHAPE)),
    "qwen": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE)),
    "t5": lambda: transformers.T5EncoderModel(transformers.T5Config(**T5_SHAPE)),
}


def encoder(kind: str) -> nn.Module:
    """In bfloat16, its words tied to what it says."""
    torch.manual_seed(3)
    return ENCODERS[kind]().eval().requires_grad_(False).to(torch.bfloat16)


def states(module: nn.Module) -> Iterator[torch.Tensor]:
    """All that the encoder says of its words, on the host."""
    with torch.no_grad():
        out = module(IDS.to(next(module.parameters()).device), output_hidden_states=True)
    for each in (out.get("logits"), *out.hidden_states):
        if each is not None:
            yield each.to("cpu", copy=True)


def widened(module: nn.Module) -> list[torch.Tensor]:
    """By a copy that was converted to float32 wholly, on a card that holds it."""
    card = virtual("1GiB")
    return list(states(copy.deepcopy(module).to(torch.float32).to(card.device)))


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_text_encoder_in_bfloat16_computes_in_float32_as_one_that_was_converted(
    kind: str,
) -> None:
    """On less than it would take in float32, whether it streams or not; and it is as before."""
    module = encoder(kind)
    before = {name: each.clone() for name, each in module.state_dict().items()}
    wanted, size = widened(module), weight_bytes(module)
    streamed = []
    for budget in (1.95, 1.5):
        card = virtual(int(budget * size))
        tightfit.fit(module, card=card, compute="float32")
        for _ in range(2):
            found = list(states(module))
            assert all(map(torch.equal, found, wanted))
            assert {each.dtype for each in found} == {torch.float32}
        fitted = tightfit.fitted(module)
        residency = fitted.plan.stages[0].residency
        streamed.append(len(residency.streamed))
        words = module.get_input_embeddings().weight
        assert fitted.session.scratch_bytes == residency.conversion >= 4 * words.numel()
        assert (card.read().peak_reserved or 0) <= int(budget * size) < 2 * size
        tightfit.unfit(module)
        assert_back(card)
    assert streamed[-1]
    after = module.state_dict()
    assert all(torch.equal(after[name], each) for name, each in before.items())
    assert {each.dtype for each in after.values()} == {torch.bfloat16}


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_whatever_a_module_is_made_of_is_widened(mode: str) -> None:
    """Tables, buffers, originals of a parametrization, and weights that others reach for."""
    torch.manual_seed(4)
    net, x = Net(64, (0, 1, 2, 3)).eval().to(torch.bfloat16), torch.randn(2, 64)
    card = virtual("1GiB")
    right = copy.deepcopy(net).to(torch.float32).to(card.device)
    with torch.no_grad():
        wanted = right(x.to(card.device)).cpu()
        tightfit.fit(net, card=virtual("1GiB"), mode=mode, compute="float32")
        assert torch.equal(net(x).cpu(), wanted)
    tightfit.unfit(net)
    with torch.no_grad():
        assert net(x.bfloat16()).dtype is torch.bfloat16


def test_what_is_stored_in_eight_bits_computes_as_asked_whatever_it_is_given() -> None:
    """A call that is given integers would else compute in what most other weights have."""
    module = encoder("qwen")
    stored(module.model.layers)
    wanted = widened(meant(module, torch.float32))
    card = virtual(2 * weight_bytes(module))
    tightfit.fit(module, card=card, compute="float32")
    assert all(map(torch.equal, states(module), wanted))
    tightfit.unfit(module)
    tightfit.fit(module, card=card)
    assert {each.dtype for each in states(module)} == {torch.bfloat16}
    tightfit.unfit(module)


def test_layers_in_float32_are_in_the_plan_of_a_call_that_has_no_room_for_them() -> None:
    """What is stored would fit; it is said before anything runs that the layers do not."""
    module = encoder("mistral")
    size = int(0.7 * weight_bytes(module))
    with pytest.raises(MemoryShortage):
        tightfit.fit(module, card=virtual(size), compute="float32", example=(IDS,))
    tightfit.fit(module, card=virtual(size), example=(IDS,))
    assert {each.dtype for each in states(module)} == {torch.bfloat16}
    tightfit.unfit(module)


def test_a_network_of_a_pipeline_computes_as_asked_and_the_others_as_ever() -> None:
    """Its words come in the dtype that the pipeline asks it for, rounded once."""
    pipe, right = tiny.flux(), tiny.flux()
    for each in (pipe, right):
        each.text_encoder_2.to(torch.bfloat16)
    right.text_encoder_2.to(torch.float32)
    words = {"prompt": "a cat", "device": "cpu", "max_sequence_length": 16}
    with torch.no_grad():
        wanted, _, _ = right.encode_prompt(**words)
        tightfit.fit(pipe, card="virtual:1GiB", compute={"text_encoder_2": "float32"})
        found, _, _ = pipe.encode_prompt(**{**words, "device": pipe._execution_device})
    assert torch.allclose(found.float().cpu(), wanted.float(), rtol=2**-7, atol=1e-6)
    networks = tightfit.fitted(pipe).networks
    asked = {name: computes_in(each.module) for name, each in networks.items()}
    assert asked == {"text_encoder": None, "text_encoder_2": torch.float32, "transformer": None}
    tightfit.unfit(pipe)
    assert computes_in(pipe.text_encoder_2) is None


def test_what_cannot_be_asked_for_is_refused_before_anything_moves() -> None:
    """A dtype that is none, a VAE, and one name for a whole pipeline or several for a module."""
    net = Net(16, (0,)).eval()
    with pytest.raises(UsageError, match="use auto, float16, bfloat16, float32"):
        tightfit.fit(net, card="virtual:1GiB", compute="int8")
    with pytest.raises(UsageError, match="one dtype"):
        tightfit.fit(net, card="virtual:1GiB", compute={"layer": "float32"})
    pipe = tiny.flux()
    with pytest.raises(UsageError, match="by network, such as"):
        tightfit.fit(pipe, card="virtual:1GiB", compute="float32")
    with pytest.raises(UsageError, match="not of `vae`"):
        tightfit.fit(pipe, card="virtual:1GiB", compute={"vae": "float32"})
    with pytest.raises(UsageError, match="compute `long`"):
        tightfit.fit(pipe, card="virtual:1GiB", compute={"transformer": "long"})


def test_a_module_that_two_share_computes_in_one_dtype() -> None:
    """The second is refused, rather than given other numbers than it asked for."""
    net = Net(16, (0,)).eval()
    with tightfit.Session(card=open_card("virtual:1GiB")) as session:
        session.fit(net, compute="float32")
        session.unfit(net)
        session.fit(net)
        one, two = tiny.flux(), tiny.flux()
        two.register_modules(transformer=one.transformer)
        session.fit(one, compute={"transformer": "float32"})
        with pytest.raises(UsageError, match="in another dtype"):
            session.fit(two)
