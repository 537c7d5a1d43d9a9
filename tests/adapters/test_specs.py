"""From a SPEC to a VAE."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderKLWan
from safetensors.torch import save_file

from tests.adapters.original_vae import original_names
from tightfit.adapters import fetch_vae, find_vae, load_vae, outline_vae, stored_dtype
from tightfit.adapters.diffusers_vae import adapt, weights_hash
from tightfit.adapters.known.architectures import ARCHITECTURES, SOUND
from tightfit.card import open_card
from tightfit.errors import InputError, UsageError
from tightfit.weigh import weight_bytes

TRUE_PARAMETERS = {
    "wan2.1-vae": 126_892_531,
    "wan2.2-vae": 704_688_668,
    "flux-vae": 83_819_683,
    "flux.2-vae": 84_046_115,
    "sdxl-vae": 83_653_863,
    "qwen-image-vae": 126_892_531,
    "hunyuan-video-vae": 246_478_803,
    "ltx-video-vae": 419_193_649,
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small VAE that this test saves, as diffusers does."""
    folder = tmp_path / "vae"
    torch.manual_seed(3)
    AutoencoderKLWan(base_dim=8).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("name", "count"), TRUE_PARAMETERS.items())
def test_a_random_vae_has_its_true_size(name: str, count: int) -> None:
    """Parameter counts are those of the published models."""
    outline = outline_vae(find_vae(f"random:{name}"))
    assert outline is not None
    extra = 257 * 4 if name == "flux.2-vae" else 0  # batch norm statistics are buffers
    assert weight_bytes(outline.module) - extra == pytest.approx(count * 4, abs=2048)


@pytest.mark.parametrize("name", [*ARCHITECTURES, *SOUND])
def test_ratios_come_from_the_model(name: str) -> None:
    """A meta run of the real network gives latents of the size that the traits promise."""
    outline = outline_vae(find_vae(f"random:{name}"))
    assert outline is not None
    traits = outline.traits
    sizes = {1: (3,), 2: (3, 4), 3: (2, 3, 4)}[traits.axes]
    samples = tuple(axis.samples for axis in traits.latent_axes(sizes))
    latent = outline.encode(torch.empty(1, traits.channels, *samples, device="meta"))
    assert tuple(latent.shape) == (1, traits.latent_channels, *sizes)
    assert tuple(outline.decode(latent).shape) == (1, traits.channels, *samples)


def test_a_random_vae_is_seeded_and_says_so() -> None:
    """Two loads are the same weights, labelled random; the caller's random state stays."""
    state = torch.get_rng_state()
    one = load_vae(find_vae("random:wan2.1-vae-mini"))
    assert one.random
    assert one.identity == load_vae(find_vae("random:wan2.1-vae-mini")).identity
    assert torch.equal(state, torch.get_rng_state())


def test_a_folder_loads_through_diffusers(saved: Path) -> None:
    """Weights are those that were saved, and are not called random."""
    vae = load_vae(find_vae(str(saved)))
    again = AutoencoderKLWan.from_pretrained(saved)
    x = torch.rand(1, 3, 1, 64, 64)
    with torch.no_grad():
        assert torch.equal(vae.encode(x), again.encode(x).latent_dist.mode())
    assert not vae.random


def test_a_pipeline_folder_gives_its_vae(saved: Path) -> None:
    """The `vae` folder inside is found."""
    source = find_vae(str(saved.parent))
    assert source.class_name == "AutoencoderKLWan"
    assert source.path == saved


def test_a_file_loads_by_its_keys(saved: Path, tmp_path: Path) -> None:
    """A safetensors file on its own is recognised by names and shapes."""
    lone = tmp_path / "lone.safetensors"
    lone.write_bytes((saved / "diffusion_pytorch_model.safetensors").read_bytes())
    assert load_vae(find_vae(str(lone))).identity == load_vae(find_vae(str(saved))).identity


def test_an_original_checkpoint_is_converted_by_diffusers(tmp_path: Path) -> None:
    """A file in the original key names of a picture VAE loads through `from_single_file`."""
    arguments = ARCHITECTURES["flux-vae"].arguments
    with torch.device("meta"):
        target = AutoencoderKL(**arguments)
    keys = original_names(target)
    torch.manual_seed(0)
    tensors = {new: torch.randn(shape) * 0.01 for new, shape in keys.items()}
    path = tmp_path / "ae.safetensors"
    save_file(tensors, path)
    vae = load_vae(find_vae(str(path)))
    assert vae.traits.latent_channels == 16
    weight = vae.module.get_submodule("decoder.conv_in").weight
    assert torch.equal(weight, tensors["decoder.conv_in.weight"])


def test_half_precision_is_kept_as_stored(saved: Path, tmp_path: Path) -> None:
    """The header tells the dtype, and loading keeps it."""
    half = tmp_path / "half"
    AutoencoderKLWan.from_pretrained(saved, torch_dtype=torch.bfloat16).save_pretrained(half)
    source = find_vae(str(half))
    assert stored_dtype(source) is torch.bfloat16
    assert load_vae(source, dtype=stored_dtype(source)).dtype is torch.bfloat16


def test_the_shipped_vae_is_found() -> None:
    """`mini:wan2.1-vae` has weights that we trained, with their licence beside them."""
    source = find_vae("mini:wan2.1-vae")
    assert source.path is not None
    assert (source.path / "LICENSE.md").is_file()
    assert not load_vae(source).random


@pytest.mark.parametrize("spec", ["random:nope", "mini:nope", "random:", "mini:"])
def test_an_unknown_name_is_refused_with_the_list(spec: str) -> None:
    """The message lists what there is."""
    with pytest.raises(UsageError, match=r"wan2\.1-vae"):
        find_vae(spec)


def test_a_folder_without_a_vae_is_refused(tmp_path: Path) -> None:
    """Also one whose configuration is no JSON or names another class."""
    with pytest.raises(InputError, match=r"config\.json"):
        find_vae(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="JSON"):
        find_vae(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "UNet2DModel"}))
    with pytest.raises(InputError, match="UNet2DModel"):
        find_vae(str(tmp_path))


def test_a_truncated_weight_file_is_refused(saved: Path) -> None:
    """One sentence names the SPEC."""
    path = saved / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(InputError, match="vae"):
        load_vae(find_vae(str(saved)))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A text file, and a safetensors file without a VAE."""
    text = tmp_path / "a.safetensors"
    text.write_text("not weights")
    with pytest.raises(InputError, match="readable"):
        find_vae(str(text))
    other = tmp_path / "b.safetensors"
    save_file({"x": torch.zeros(2)}, other)
    with pytest.raises(InputError, match="no keys"):
        find_vae(str(other))


def test_a_name_that_is_nothing_is_refused() -> None:
    """Neither a folder, nor a file, nor a hub id."""
    with pytest.raises(InputError, match="neither"):
        find_vae("no such thing")


def test_a_variant_beside_the_weights_is_not_what_they_are_stored_in(saved: Path) -> None:
    """A folder with float16 copies too, as hubs have: the loader takes the plain file."""
    AutoencoderKLWan.from_pretrained(saved).half().save_pretrained(saved, variant="fp16")
    assert len(list(saved.glob("*.safetensors"))) == 2
    source = find_vae(str(saved))
    assert stored_dtype(source) == load_vae(source).dtype == torch.float32


def test_the_hash_is_of_the_weights_wherever_they_lie() -> None:
    """The same on a card as on the host, another for other weights, none without any bytes."""
    module = AutoencoderKLWan(base_dim=4)
    other = AutoencoderKLWan(base_dim=4)
    on_the_host = weights_hash(module)
    assert on_the_host != weights_hash(other)
    card = open_card("virtual:64MiB")
    assert weights_hash(module.to(card.device)) == on_the_host
    assert weights_hash(module.to("meta")) is None


def test_random_weights_are_the_same_when_two_threads_load() -> None:
    """The generator they come from is the process's: one VAE is drawn at a time."""
    source = find_vae("random:wan2.1-vae-mini")
    with ThreadPoolExecutor(2) as pool:
        hashes = set(pool.map(lambda _: load_vae(source).identity, range(4)))
    assert len(hashes) == 1


@pytest.mark.parametrize("flaw", ["no weights", "cut off", "absurd configuration"])
def test_a_broken_folder_is_refused_without_what_the_loaders_log(
    flaw: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """One sentence that names the VAE, and nothing of diffusers' own advice."""
    folder = tmp_path / "vae"
    AutoencoderKL(norm_num_groups=8, block_out_channels=(8,)).save_pretrained(folder)
    weights = folder / "diffusion_pytorch_model.safetensors"
    if flaw == "no weights":
        weights.unlink()
    elif flaw == "cut off":
        weights.write_bytes(weights.read_bytes()[:-100])
    else:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "norm_num_groups": 3}))

    def outlined_and_loaded() -> None:
        source = find_vae(str(folder))
        outline_vae(source, dtype=stored_dtype(source))
        load_vae(source)

    with pytest.raises(InputError, match=r"cannot be loaded.*[^.]\.$"):
        outlined_and_loaded()
    assert (caplog.text, capfd.readouterr().err) == ("", "")


def test_a_hub_id_out_of_reach_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the hub's client logs and warns of on its retries is not for the user."""

    def unreachable(*_: object, **__: object) -> None:
        logging.getLogger("huggingface_hub.utils").warning("Retrying in 1s")
        warnings.warn("deprecated", stacklevel=1)
        raise OSError("no network")

    monkeypatch.setattr(AutoencoderKL, "load_config", unreachable)
    with pytest.raises(InputError, match="could be fetched"):
        find_vae("somebody/something")
    assert caplog.text == ""


@pytest.mark.parametrize("module", [torch.nn.Linear(2, 2), None])
def test_a_module_that_is_no_vae_is_refused_by_name(module: Any) -> None:
    """Whatever it is, the message says what is supported."""
    with pytest.raises(InputError, match=f"`{type(module).__name__}` is not supported"):
        adapt(module)


@pytest.mark.slow
def test_two_threads_may_be_the_first_to_ask() -> None:
    """The import of diffusers, which is put off until it is needed, is not torn between them."""
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from tightfit.adapters import find_vae\n"
        "with ThreadPoolExecutor(2) as pool:\n"
        "    print(*[each.class_name for each in pool.map(find_vae, ['random:flux-vae-mini'] * 2)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "AutoencoderKL AutoencoderKL\n"


def test_a_hub_id_is_fetched_and_keeps_its_dtype(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repository of a pipeline: only the VAE's files are asked for, and bfloat16 stays."""
    asked: list[str] = []

    def download(spec: str, *, allow_patterns: list[str]) -> str:
        asked.extend(allow_patterns)
        return str(saved.parent)

    AutoencoderKLWan.from_pretrained(saved, torch_dtype=torch.bfloat16).save_pretrained(saved)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    described = find_vae(str(saved))
    source = replace(described, spec="some/pipeline", path=None, subfolder="vae")
    fetched = fetch_vae(source)
    assert fetched.path == saved
    assert stored_dtype(fetched) is torch.bfloat16
    assert load_vae(source, dtype=stored_dtype(fetched)).dtype is torch.bfloat16
    assert set(asked) == {"vae/*.json", "vae/*.safetensors"}
