"""Whole pipelines from a SPEC: each is what it says, or is refused in one sentence beforehand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CLIPTokenizer

from tests.pipelines import tiny
from tightfit.adapters.known.pipelines import PIPELINES
from tightfit.adapters.loading.whole import PipelineSource, find_pipeline, load_pipeline
from tightfit.adapters.parts import outline_part
from tightfit.errors import InputError, TightfitError, UsageError

FLUX = "random:flux.1-dev-mini"
WEIGHTS = "diffusion_pytorch_model.safetensors"


def drawn(pipe: Any, source: PipelineSource, **how: Any) -> Any:
    """A picture or a clip in two steps."""
    pipe.set_progress_bar_config(disable=True)
    if source.size.frames > 1:
        how["num_frames"] = source.size.frames
    terms: dict[str, Any] = {
        "prompt": "a red fox",
        "width": source.size.width // 2,
        "height": source.size.height // 2,
        "num_inference_steps": 2,
        "generator": torch.Generator().manual_seed(0),
        "output_type": "np",
        **how,
    }
    done = pipe(**terms)
    return done.images if hasattr(done, "images") else done.frames


def alike(one: Any, other: Any) -> bool:
    """Two networks have the same weights, in the same dtypes."""
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[key], theirs[key]) and ours[key].dtype == theirs[key].dtype for key in ours
    )


@pytest.fixture(scope="module")
def made() -> Any:
    """A small FLUX."""
    return load_pipeline(find_pipeline(FLUX))


@pytest.fixture(scope="module")
def saved(made: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in a folder, as diffusers saves it."""
    folder = tmp_path_factory.mktemp("whole") / "flux"
    made.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "flux"))


@pytest.mark.parametrize("name", ["flux.1-dev-mini", "wan2.1-t2v-1.3b-mini", "qwen-image-mini"])
def test_a_mini_makes_a_finite_picture_that_follows_the_prompt(name: str) -> None:
    """Its true text encoders run, and what they say is heard."""
    source = find_pipeline(f"random:{name}")
    assert source.random
    assert source.class_name == PIPELINES[name].class_name
    pipe = load_pipeline(source)
    assert type(pipe).__name__ == source.class_name
    fox, dog = drawn(pipe, source), drawn(pipe, source, prompt="a blue dog")
    assert bool(np.isfinite(fox).all())
    assert fox.std() > 0.01
    assert not np.array_equal(fox, dog)


BUILT = {known.class_name: name for name, known in PIPELINES.items() if not name.endswith("-mini")}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT.values())
def test_a_pipeline_of_every_class_we_know_can_be_put_together(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of true sizes too: here from shapes alone, whose class takes all its components."""
    monkeypatch.setattr(
        "tightfit.adapters.loading.whole.load_part",
        lambda part, *, dtype: outline_part(part, dtype=dtype),
    )
    source = find_pipeline(f"random:{name}")
    pipe = load_pipeline(source)
    for part in source.parts:
        assert type(getattr(pipe, part.name)).__name__ == part.class_name
    encoders = [key for key, each in pipe.components.items() if key.startswith("text_encoder")]
    for key in encoders:
        assert pipe.components[key.replace("text_encoder", "tokenizer")] is not None


def test_a_true_size_is_in_halves_but_for_the_vae_of_clips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As they are published; what the user says goes for all."""
    monkeypatch.setattr(
        "tightfit.adapters.loading.whole.load_part",
        lambda part, *, dtype: outline_part(part, dtype=dtype),
    )
    pipe = load_pipeline(find_pipeline("random:wan2.1-t2v-1.3b"))
    assert (pipe.text_encoder.dtype, pipe.vae.dtype) == (torch.bfloat16, torch.float32)
    assert pipe.transformer.patch_embedding.weight.dtype == torch.bfloat16
    pipe = load_pipeline(find_pipeline("random:wan2.1-t2v-1.3b"), dtype=torch.float16)
    assert pipe.vae.dtype == torch.float16


def test_a_folder_gives_what_was_saved(made: Any, saved: Path) -> None:
    """Bit for bit, in eval mode, without gradients, with the words of its tokenizers."""
    source = find_pipeline(str(saved))
    assert not source.random
    assert (source.class_name, len(source.parts)) == ("FluxPipeline", 4)
    pipe = load_pipeline(source)
    for part in source.parts:
        module = getattr(pipe, part.name)
        assert alike(module, getattr(made, part.name)), part.name
        assert not module.training
        assert not any(each.requires_grad for each in module.parameters())
    ours, theirs = dict(pipe.scheduler.config), dict(made.scheduler.config)
    assert ours == {key: theirs[key] for key in ours}
    small = find_pipeline(FLUX)
    assert np.allclose(drawn(pipe, small), drawn(made, small), atol=1e-4)


def test_a_folder_with_tokenizers_of_its_own_is_loaded_by_diffusers(tmp_path: Path) -> None:
    """As one from a hub is: words by their files, pictures as before, its usual size its own."""
    ends = ["<|startoftext|>", "<|endoftext|>"]
    letters = [chr(at) for at in range(ord("a"), ord("z") + 1)]
    known = [*letters, *(f"{letter}</w>" for letter in letters), "fo", "fox</w>", *ends]
    (tmp_path / "vocab.json").write_text(json.dumps({word: at for at, word in enumerate(known)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nf o\nfo x</w>\n")
    words = CLIPTokenizer(
        str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), model_max_length=16
    )
    pipe = tiny.sdxl()
    pipe.register_modules(tokenizer=words, tokenizer_2=words)
    pipe.save_pretrained(tmp_path / "sdxl")
    source = find_pipeline(str(tmp_path / "sdxl"))
    assert (source.size.width, source.size.height) == (64, 64)
    again = load_pipeline(source)
    assert type(again.tokenizer) is type(words)
    assert again.tokenizer("fox").input_ids == words("fox").input_ids
    for name in ("text_encoder", "text_encoder_2", "unet", "vae"):
        assert alike(getattr(pipe, name), getattr(again, name)), name
    by_part = find_pipeline(str(tmp_path / "sdxl"), parts={"transformer": tmp_path / "sdxl/unet"})
    assert [part.name for part in by_part.parts].count("unet") == 1


def test_networks_take_the_dtype_of_the_denoiser(folder: Path) -> None:
    """What encoders say is handed to it as it is; a VAE in float32 stays so."""
    file = folder / "transformer" / WEIGHTS
    save_file({key: value.bfloat16() for key, value in load_file(file).items()}, file)
    pipe = load_pipeline(find_pipeline(str(folder)))
    assert pipe.transformer.dtype == pipe.text_encoder.dtype == torch.bfloat16
    assert pipe.text_encoder_2.shared.weight.dtype == torch.bfloat16
    assert pipe.vae.dtype == torch.float32
    pipe = load_pipeline(find_pipeline(str(folder)), dtype=torch.float16)
    assert {pipe.transformer.dtype, pipe.vae.dtype} == {torch.float16}


def test_another_scheduler_takes_the_place(saved: Path) -> None:
    """By a short name; an unknown one is refused before any weight is read."""
    pipe = load_pipeline(find_pipeline(str(saved)), scheduler="unipc")
    assert type(pipe.scheduler).__name__ == "UniPCMultistepScheduler"
    with pytest.raises(UsageError, match="near it are"):
        load_pipeline(find_pipeline("random:flux.1-dev"), scheduler="eulr")


def test_eight_bits_are_made_of_blocks_alone_and_can_be_widened(tmp_path: Path) -> None:
    """`fp8` is for the layers that weigh; the same file in `bf16` has no scales any more."""
    pipe = load_pipeline(find_pipeline(FLUX), weights="fp8")
    stored = pipe.transformer.state_dict()
    small = {key for key, each in stored.items() if each.dtype == torch.float8_e4m3fn}
    assert len(small) > 50
    assert all("blocks." in key and f"{key}_scale" in stored for key in small)
    assert pipe.transformer.dtype == torch.float32
    assert pipe.text_encoder.dtype == torch.float32
    save_file(stored, tmp_path / "fp8.safetensors")
    others = {"transformer": tmp_path / "fp8.safetensors"}
    again = load_pipeline(find_pipeline(FLUX, parts=others))
    assert alike(again.transformer, pipe.transformer)
    wide = load_pipeline(find_pipeline(FLUX, parts=others), weights="bf16")
    assert {each.dtype for each in wide.transformer.state_dict().values()} == {torch.bfloat16}
    key = min(small)
    meant = stored[key].float() * stored[f"{key}_scale"]
    assert torch.equal(wide.transformer.state_dict()[key], meant.to(torch.bfloat16))
    assert wide.text_encoder.dtype == torch.bfloat16


def test_unknown_weights_are_refused() -> None:
    """Before anything is drawn."""
    with pytest.raises(UsageError, match="Weights `int4` are unknown: use bf16, fp8"):
        load_pipeline(find_pipeline("random:flux.2-dev"), weights="int4")


def rewritten(folder: Path, **entries: Any) -> None:
    """Change its index; None takes an entry out."""
    path = folder / "model_index.json"
    content = json.loads(path.read_text()) | entries
    path.write_text(json.dumps({key: each for key, each in content.items() if each is not None}))


def cut(path: Path) -> None:
    """Lose its end."""
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "model_index.json").unlink(), "it has no model_index.json"),
        (lambda f: (f / "model_index.json").write_text("{"), "model_index.json is not readable"),
        (lambda f: rewritten(f, _class_name="FluxPipelin"), "`FluxPipelin` is no class of the dif"),
        (lambda f: rewritten(f, _class_name="FluxTransformer2DModel"), "which is no pipeline"),
        (lambda f: rewritten(f, vae=["diffusers", "AutoencoderKLX"]), "`AutoencoderKLX` is no cl"),
        (lambda f: rewritten(f, vae=["elsewhere", "Vae"]), "a Vae of `elsewhere`"),
        (lambda f: rewritten(f, transformer=None), "needs a transformer"),
        (lambda f: rewritten(f, vae=[None, None]), "needs a vae"),
        (lambda f: shutil.rmtree(f / "vae"), r"its vae \(AutoencoderKL\) is missing"),
        (lambda f: shutil.rmtree(f / "scheduler"), "its scheduler .* is missing"),
        (lambda f: (f / "vae" / "config.json").unlink(), r"vae/config.json is missing"),
        (lambda f: (f / "vae" / WEIGHTS).unlink(), "it holds no .safetensors"),
        (lambda f: cut(f / "transformer" / WEIGHTS), "transformer.* it is cut off"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_before_it_is_loaded(
    damage: Any, said: str, folder: Path
) -> None:
    """By the name of what is missing, damaged or unknown."""
    damage(folder)
    with pytest.raises(InputError, match=said) as caught:
        find_pipeline(str(folder))
    assert "\n" not in str(caught.value)


def test_what_diffusers_has_beside_a_pipeline_is_known(folder: Path) -> None:
    """Safety checkers are of no library that a folder names, and no parts."""
    (folder / "safety_checker").mkdir()
    rewritten(folder, safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"])
    assert len(find_pipeline(str(folder)).parts) == 4
    rewritten(folder, safety_checker=["stable_diffusion", "Checker"])
    with pytest.raises(InputError, match="a Checker of `stable_diffusion`"):
        find_pipeline(str(folder))


def test_weights_that_are_not_there_are_refused(folder: Path) -> None:
    """The loaders would fill them with noise and warn."""
    file = folder / "transformer" / WEIGHTS
    stored = load_file(file)
    del stored["proj_out.weight"]
    save_file(stored, file)
    with pytest.raises(InputError, match=r"`proj_out\.weight`"):
        load_pipeline(find_pipeline(str(folder)))


@pytest.mark.parametrize(
    ("spec", "kind", "said"),
    [
        ("random:flux.1-def", UsageError, "near it are flux.1-dev"),
        ("random:flux-vae", UsageError, "is one network"),
        ("random:flux.1-dev/vae", UsageError, "is one network"),
        ("nowhere", InputError, "neither a folder, a file nor a hub id"),
    ],
)
def test_what_is_no_pipeline_is_refused(spec: str, kind: type[TightfitError], said: str) -> None:
    """A name that is unknown, one network, nothing at all."""
    with pytest.raises(kind, match=said):
        find_pipeline(spec)


def test_a_hub_that_is_not_reached_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network there is only what was fetched before."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="could not be fetched from the hub") as caught:
        find_pipeline("nobody/nothing-of-that-name")
    assert "\n" not in str(caught.value)


def test_what_a_hub_gave_is_loaded_without_parts_from_elsewhere(
    saved: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Configurations come first, weights when they are needed, and those of others never."""
    configurations = tmp_path / "configurations"
    shutil.copytree(saved, configurations, ignore=shutil.ignore_patterns("*.safetensors"))
    asked: list[tuple[str, tuple[str, ...]]] = []

    def fetched(spec: str, *, without: Any) -> Path:
        asked.append((spec, tuple(without)))
        return saved

    monkeypatch.setattr(
        "tightfit.adapters.loading.whole.fetch_configurations", lambda spec: configurations
    )
    monkeypatch.setattr("tightfit.adapters.loading.whole.fetch_pipeline", fetched)
    source = find_pipeline("maker/flux", parts={"vae": saved / "vae"})
    assert asked == []
    pipe = load_pipeline(source)
    assert asked == [("maker/flux", ("vae",))]
    assert isinstance(pipe.transformer, nn.Module)
