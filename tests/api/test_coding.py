"""`encode` and `decode` from files and tensors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan

import tightfit
from tests.clips import photograph, smooth, write_clip, write_rgba
from tightfit import decode, encode
from tightfit.adapters import find_vae, load_vae
from tightfit.api import Watching
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import Cancelled, InputError, MemoryShortage, UsageError
from tightfit.media.latents import LatentFile
from tightfit.report.record import Report
from tightfit.run.vae import Vae
from tightfit.testing import faults, toy_vae

SHIFTS = [(dy, dx) for dy in range(-4, 5) for dx in range(-4, 5)]
FIELDS = {
    *("version", "command", "input", "model", "card", "budget_bytes", "estimate", "ledger"),
    *("attempts", "before_bytes", "baseline_bytes", "peak_bytes", "peak_reserved_bytes"),
    *("after_bytes", "exact", "error_bound", "adjusted", "warnings", "output", "seconds"),
}
MINI = "random:wan2.1-vae-mini"


@pytest.fixture(scope="module")
def mini() -> Vae:
    """Wan's VAE, narrow, loaded once."""
    return load_vae(find_vae(MINI))


def small_card(vae: Vae, source: torch.Tensor, share: float) -> str:
    """A card that holds this share of what the whole needs beyond weights and input."""
    report = encode(source, vae=vae, card="virtual:8GiB").report
    assert report.peak_bytes is not None
    assert report.baseline_bytes is not None
    beyond = report.peak_bytes - report.baseline_bytes
    return f"virtual:{report.baseline_bytes + int(share * beyond)}B"


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """How alike two pictures are, their edges apart: 1 is the same up to brightness."""
    flat = [(x[..., 8:-8, 8:-8] - x[..., 8:-8, 8:-8].mean()).flatten() for x in (one, other)]
    return torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0).item()


def test_a_clip_that_does_not_fit_falls_back_with_the_full_card(mini: Vae) -> None:
    """Step 1's bar: oom first, then ok from the baseline, within the budget, nothing left."""
    source = smooth(5, 3, 96, 128)
    card = open_card(small_card(mini, source, 0.7))
    for _ in range(3):  # 20 times from the command line, in tests/cli
        report = encode(source, vae=mini, card=card, estimate=False).report
        first, second = report.attempts
        assert first["outcome"] == "oom"
        assert second["outcome"] == "ok"
        assert second["held_before_bytes"] == second["baseline_bytes"] == report.baseline_bytes
        assert report.peak_reserved_bytes is not None
        assert report.peak_reserved_bytes <= report.budget_bytes
        assert report.after_bytes == report.before_bytes == 0


def test_after_is_what_was_there_before(mini: Vae) -> None:
    """Somebody else's tensors on the card stay, and are counted before and after."""
    card = open_card("virtual:1GiB")
    other = torch.zeros(1000, device=card.device)
    report = encode(smooth(1, 3, 64, 64), vae=mini, card=card).report
    assert report.before_bytes == report.after_bytes == 4096
    assert other.sum() == 0


def test_the_same_numbers_at_every_budget(mini: Vae) -> None:
    """Whole runs are equal bit for bit whatever the budget."""
    source = smooth(5, 3, 64, 64)
    one = encode(source, vae=mini, card="virtual:8GiB").value.latent
    other = encode(source, vae=mini, card="virtual:64MiB,allocator=native").value.latent
    assert torch.equal(one, other)


@pytest.mark.slow
def test_t01_a_picture_comes_back_in_its_own_size(tmp_path: Path) -> None:
    """513x771 RGBA, whole and tiled: same size, no shift, padding reported."""
    path = write_rgba(tmp_path / "a.png", 513, 771)
    vae = load_vae(find_vae("random:flux-vae-mini"))
    for tile in ("auto", "256"):
        done = encode(path, vae=vae, card="virtual:2GiB", tile=tile)
        assert done.value.latent.shape == (1, 16, 97, 65)
        assert any("513x771" in line for line in done.report.adjusted)
        back = decode(done.value, vae=vae, card="virtual:2GiB", tile=tile)
        assert back.value.pixels.shape == (1, 3, 771, 513)


def test_t01_a_round_trip_does_not_shift_the_picture() -> None:
    """The best match of the decoded picture with its source is at shift (0, 0)."""
    source = photograph()[None, :, 60:231, 100:233]
    vae = load_vae(find_vae("mini:wan2.1-vae"))
    for tile in ("auto", "64"):
        latent = encode(source, vae=vae, card="virtual:2GiB", tile=tile).value
        back = decode(latent, vae=vae, card="virtual:2GiB", tile=tile).value.pixels
        assert back.shape == source.shape
        fits = {shift: correlation(back.roll(shift, (-2, -1)), source) for shift in SHIFTS}
        assert max(SHIFTS, key=lambda shift: fits[shift]) == (0, 0)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 6, 14, 16, 17, 31])
def test_t11_a_clip_keeps_its_number_of_frames(count: int) -> None:
    """Padded by repeating the last frame, trimmed after decoding, and said."""
    vae = toy_vae("V3")
    done = encode(smooth(count, 3, 64, 64), vae=vae, card="virtual:1GiB")
    assert done.value.latent.shape[2] == 1 + -(-(count - 1) // 4)
    padded = [line for line in done.report.adjusted if line.startswith("padded")]
    assert bool(padded) == (count % 4 != 1)
    back = decode(done.value, vae=vae, card="virtual:1GiB")
    assert back.value.pixels.shape[0] == count


def test_t11_trim_says_how_many_frames_went() -> None:
    """14 frames become 13, and the report says that one was left out."""
    vae = toy_vae("V3")
    done = encode(smooth(14, 3, 64, 64), vae=vae, card="virtual:1GiB", pad="trim")
    assert "left out 1 frames at the end" in done.report.adjusted
    back = decode(done.value, vae=vae, card="virtual:1GiB")
    assert back.value.pixels.shape[0] == 13


def test_a_clip_file_keeps_its_rate(tmp_path: Path, mini: Vae) -> None:
    """Frames and rate of an MP4 are in the latent, and in what is decoded."""
    path = write_clip(tmp_path / "a.mp4", 5, 64, 64)
    done = encode(path, vae=mini, card="virtual:1GiB")
    assert done.value.fps == 24
    assert done.report.input["frames"] == 5
    back = decode(done.value, vae=mini, card="virtual:1GiB")
    assert back.value.fps == 24
    assert back.value.pixels.shape == (5, 3, 64, 64)


def test_a_picture_vae_takes_a_clip_frame_by_frame(tmp_path: Path) -> None:
    """Each frame is an item of the batch, whatever the batch in one call."""
    path = write_clip(tmp_path / "a.mp4", 6, 64, 64)
    vae = toy_vae("V2")
    done = encode(path, vae=vae, card="virtual:1GiB")
    assert done.value.latent.shape == (6, 4, 8, 8)
    assert decode(done.value, vae=vae, card="virtual:1GiB").value.pixels.shape == (6, 3, 64, 64)


def test_alpha_is_kept_beside_the_latent(tmp_path: Path) -> None:
    """With keep_alpha, the decoded picture has the source's alpha."""
    path = write_rgba(tmp_path / "a.png", 72, 64)
    vae = toy_vae("V2")
    done = encode(path, vae=vae, card="virtual:1GiB", keep_alpha=True)
    back = decode(done.value, vae=vae, card="virtual:1GiB").value.pixels
    assert back.shape == (1, 4, 64, 72)
    assert torch.equal(back[:, 3], torch.linspace(0, 255, 72).byte().div(255).expand(1, 64, 72))


@pytest.mark.parametrize("name", ["la.png", "grey.jpg", "bits.png"])
def test_m05_a_picture_with_other_channels_encodes(name: str, tmp_path: Path) -> None:
    """Grey with alpha, plain grey and 1-bit files reach the VAE as colour."""
    from PIL import Image

    mode = {"la.png": "LA", "grey.jpg": "L", "bits.png": "1"}[name]
    path = tmp_path / name
    Image.linear_gradient("L").resize((33, 17)).convert(mode).save(path)
    done = encode(path, vae=toy_vae("V2"), card="virtual:1GiB")
    assert done.value.latent.shape == (1, 4, 3, 5)


def test_a_sample_differs_from_the_mode_and_repeats(mini: Vae) -> None:
    """The same noise whatever the card, so tiles change it by their own error alone."""
    source = smooth(1, 3, 96, 96)
    common = {"vae": mini, "card": "virtual:1GiB"}
    mode = encode(source, **common).value.latent
    one = encode(source, **common, sample=1).value.latent
    assert not torch.equal(mode, one)
    assert torch.equal(one, encode(source, vae=mini, card="virtual:2GiB", sample=1).value.latent)
    tiled = encode(source, **common, sample=1, tile="64").value.latent
    tiled_mode = encode(source, **common, tile="64").value.latent
    assert (tiled - one).norm() < 1.5 * (tiled_mode - mode).norm()


def test_a_module_of_the_user_is_left_as_it_was() -> None:
    """Same parameters, same device, same mode; no attribute is added."""
    torch.manual_seed(0)
    module = AutoencoderKLWan(base_dim=4).eval()
    before = {name: id(value) for name, value in module.named_parameters()}
    attributes = set(vars(module))
    encode(smooth(1, 3, 64, 64), vae=module, card="virtual:1GiB")
    assert {name: id(value) for name, value in module.named_parameters()} == before
    assert all(value.requires_grad for value in module.parameters())
    assert set(vars(module)) - attributes <= {
        "_feat_map",
        "_enc_feat_map",
        "_conv_num",
        "_conv_idx",
        "_enc_conv_num",
        "_enc_conv_idx",
    }


def test_the_cpu_needs_no_card(mini: Vae) -> None:
    """On `cpu` nothing is counted, so unknown figures are None, and the numbers are right."""
    source = smooth(1, 3, 64, 64)
    done = encode(source, vae=mini, card="cpu")
    assert done.report.peak_bytes is None
    other = encode(source, vae=mini, card="virtual:1GiB")
    assert torch.allclose(done.value.latent, other.value.latent, atol=1e-5)


def test_the_host_does_what_the_card_cannot_only_when_allowed(mini: Vae) -> None:
    """`allow_cpu` is off by default; with it the last rung is the CPU."""
    source = smooth(1, 3, 64, 64)
    with pytest.raises(MemoryShortage):
        encode(source, vae=mini, card="virtual:5MiB", tile="64")
    for size in ("1MiB", "5MiB"):
        done = encode(source, vae=mini, card=f"virtual:{size}", allow_cpu=True, tile="64")
        assert done.report.attempts[-1]["rung"] == "cpu"
        assert done.report.after_bytes == 0


def test_a_job_that_cannot_fit_is_refused_before_the_weights_are_read() -> None:
    """The sentence has needs, room and advice; nothing was ever allocated."""
    card = open_card("virtual:3MiB")
    with pytest.raises(MemoryShortage, match="Not enough memory to encode") as caught:
        encode(smooth(5, 3, 96, 96), vae=MINI, card=card)
    assert "Needs" in str(caught.value)
    assert "can be used on virtual:3MiB" in str(caught.value)
    assert "Try:" in str(caught.value)
    assert card.read().peak_allocated == 0


def test_a_latent_of_another_vae_is_refused_by_name(mini: Vae) -> None:
    """Both classes are named; a tensor with other channels is refused by its channels."""
    latent = encode(smooth(1, 3, 64, 64), vae=toy_vae("V2"), card="virtual:1GiB").value
    with pytest.raises(InputError, match=r"V2.*AutoencoderKLWan"):
        decode(latent, vae=mini, card="virtual:1GiB")
    with pytest.raises(InputError, match="4 channels"):
        decode(torch.zeros(1, 4, 1, 8, 8), vae=mini, card="virtual:1GiB")


def test_a_latent_of_other_weights_is_decoded_with_a_warning(mini: Vae) -> None:
    """The class fits, so it runs; the report says that the weights differ."""
    latent = encode(smooth(1, 3, 64, 64), vae=mini, card="virtual:1GiB").value
    done = decode(latent, vae="mini:wan2.1-vae", card="virtual:1GiB")
    assert any("other weights" in line for line in done.report.warnings)


def test_l10_a_cancelled_job_leaves_nothing(mini: Vae) -> None:
    """The flag is obeyed before the next tile; the next job is right."""
    source = smooth(1, 3, 128, 128)
    card = open_card("virtual:1GiB")
    for _ in range(5):
        watching = Watching()
        seen: list[int] = []

        def progress(
            rung: str, done: int, total: int, seen: list[int] = seen, watching: Watching = watching
        ) -> None:
            seen.append(done)
            if done == 2:
                watching.cancel.set()

        watching.progress = progress
        with pytest.raises(Cancelled):
            encode(source, vae=mini, card=card, tile="64", watching=watching)
        assert seen == [1, 2]
        assert card.read().allocated == 0
    assert encode(source, vae=mini, card=card, tile="64").report.after_bytes == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": "32"}, "floor of 64"),
        ({"tile": "64", "overlap": "64"}, "use 0 to 63"),
        ({"tile": "64x"}, "FRAMESxHxW"),
        ({"vram": "6"}, "GiB"),
        ({"vram": "0GiB"}, "zero"),
        ({"vram": "80GiB"}, "above what"),
        ({"vram": "0"}, "GiB"),
        ({"reserve": "-1"}, "size"),
        ({"dtype": "float8"}, "float16"),
        ({"pad": "crop"}, "trim"),
        ({"background": "mauve-ish"}, "background"),
        ({"card": "tpu"}, "virtual:SIZE"),
        ({"card": "virtual:2x64MiB"}, "2 cards"),
        ({"mode": "none"}, "auto"),
        ({"allocator": "native"}, "virtual:1GiB,allocator=native"),
        ({"frames": "5:2"}, "frames"),
    ],
)
def test_bad_options_are_refused_before_any_work(options: dict[str, str], message: str) -> None:
    """One sentence with the legal forms."""
    with pytest.raises(UsageError, match=message):
        encode(smooth(1, 3, 64, 64), **{"vae": MINI, "card": "virtual:1GiB", **options})


def test_shares_of_the_card_are_budgets(mini: Vae) -> None:
    """`50%` and `-1GiB` are of the card's total."""
    source = smooth(1, 3, 64, 64)
    half = encode(source, vae=mini, card="virtual:2GiB", vram="50%").report
    less = encode(source, vae=mini, card="virtual:2GiB", vram="-512MiB").report
    assert half.budget_bytes == 2**30
    assert less.budget_bytes == 3 * 2**29


def test_the_report_is_json_with_the_fields_of_the_contract(mini: Vae) -> None:
    """Every field of DESIGN §9 is there, and byte figures are integers or null."""
    report = json.loads(
        encode(smooth(1, 3, 64, 64), vae=mini, card="virtual:1GiB").report.to_json()
    )
    assert {each.name for each in dataclasses.fields(Report)} == set(report)
    assert set(report) >= FIELDS
    assert next(iter(report)) == "version"
    assert set(report["card"]) >= {"name", "kind", "allocator", "total_bytes"}
    assert set(report["estimate"]) == {"fixed_bytes", "slope", "peak_bytes", "source"}
    assert report["model"]["random"] is True
    for name, value in report.items():
        if name.endswith("_bytes"):
            assert value is None or isinstance(value, int)
    for line in report["ledger"].values():
        assert line["source"] in ("measured", "predicted", "table")
    for attempt in report["attempts"]:
        assert {"stage", "rung", "outcome", "reason", "tile", "peak_bytes"} <= set(attempt)


def test_the_three_liner_of_the_readme_works(tmp_path: Path) -> None:
    """As a user would type it."""
    path = write_clip(tmp_path / "clip.mp4", 5, 64, 64)
    latent = tightfit.encode(path, vae="mini:wan2.1-vae", card="virtual:6GiB")
    frames = tightfit.decode(latent.value, vae="mini:wan2.1-vae", card="virtual:6GiB")
    assert frames.value.pixels.shape == (5, 3, 64, 64)


@pytest.mark.parametrize(
    "changes",
    [{"width": 72}, {"frames": 6}, {"latent": torch.zeros(1, 16, 2, 3, 8)}]
    + [{"alpha": torch.ones(1, 1, 32, 64)}],
)
def test_a_latent_smaller_than_its_picture_is_refused(changes: dict[str, Any]) -> None:
    """One that was cut, or whose metadata were edited, never comes back in another size."""
    whole = LatentFile(
        latent=torch.zeros(1, 16, 2, 4, 8),
        vae="AutoencoderKLWan",
        ratio=(4, 8),
        dtype="float32",
        width=64,
        height=32,
        frames=5,
    )
    with pytest.raises(InputError, match=r"covers|alpha"):
        decode(dataclasses.replace(whole, **changes), vae=MINI, card="virtual:1GiB")


@pytest.mark.parametrize("shape", [(1, 16, 0, 4, 8), (1, 16, 4, 8), (4,)])
def test_a_latent_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    """Empty ones too."""
    with pytest.raises(InputError, match=r"takes 16 on 3|holds nothing"):
        decode(torch.zeros(shape), vae=MINI, card="virtual:1GiB")


@pytest.mark.parametrize(
    "pixels", [torch.zeros(0, 3, 8, 8), torch.zeros(3, 0, 8), torch.zeros(3, 8, 8).int()]
)
def test_a_tensor_that_is_no_picture_is_refused(pixels: torch.Tensor) -> None:
    """Without pixels, or in integers of which nobody says how far they go."""
    with pytest.raises(UsageError, match="a tensor to encode"):
        encode(pixels, vae=MINI, card="virtual:1GiB")


@pytest.mark.parametrize("estimate", [True, False], ids=["refused", "tried"])
def test_the_report_of_a_failure_has_the_fields_of_any_other(mini: Vae, estimate: bool) -> None:
    """What was held before is held after, peaks are those of the tries, and unknown is null."""
    with pytest.raises(MemoryShortage) as caught:
        encode(smooth(5, 3, 96, 128), vae=mini, card="virtual:6MiB", estimate=estimate, tile="64")
    assert isinstance(caught.value.report, Report)
    report = caught.value.report.as_dict()
    assert set(report) >= FIELDS
    assert report["before_bytes"] == report["after_bytes"] == 0
    assert set(report["estimate"]) == {"fixed_bytes", "slope", "peak_bytes", "source"}
    coded = [each for each in report["attempts"] if each["stage"] == "encode"]
    assert report["baseline_bytes"] == coded[0]["baseline_bytes"]
    peaks = [each["peak_reserved_bytes"] for each in coded if each["outcome"] == "oom"]
    assert report["peak_reserved_bytes"] == max(peaks, default=None)


def test_what_happens_on_a_virtual_card_is_not_kept_for_real_ones(
    mini: Vae, tmp_path: Path
) -> None:
    """Not even for the next virtual one: each is a new card, maybe with faults of its own."""
    source = smooth(5, 3, 96, 128)
    card = open_card("virtual:8GiB")
    assert isinstance(card, VirtualCard)
    secret = {"workspace": lambda op, size: 8 * size if "convolution" in op else 0}
    with faults(card, **secret):
        encode(source, vae=mini, card=card)
    report = encode(source, vae=mini, card=card).report
    assert report.estimate["source"] == "dry run"
    kept = [file.name for file in tmp_path.rglob("*.json")]
    assert "calibrations.json" not in kept
    assert "lessons.json" not in kept
