"""`make_plan`: what a job will need, before anything is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tightfit
from tests.api.model_files import SHAPES, broken_files, gguf_file, model_file, sharded, under
from tests.weigh import original_names as original
from tests.weigh.header_makers import write_safetensors
from tightfit.api.planning import planning
from tightfit.api.planning.planning import ask
from tightfit.api.planning.question import Question
from tightfit.card.host_memory import HostMemory
from tightfit.errors import InputError, UsageError
from tightfit.plan.plan import Plan
from tightfit.plan.size import Size
from tightfit.plan.streaming.residency import MODES
from tightfit.units import GIB, MIB
from tightfit.weigh.workspace import LIBRARIES

HOST = HostMemory(64 * GIB, 48 * GIB, None, None)


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same host everywhere."""
    monkeypatch.setattr(planning, "read_host_memory", lambda: HOST)


def lines(plan: Plan, stage: str = "denoise") -> dict[str, int | None]:
    """Bytes by the name of a line."""
    return {name: figure.bytes for name, figure in plan.stage(stage).ledger.lines.items()}


def test_a_plan_from_a_header_imports_no_torch(tmp_path: Path) -> None:
    """Neither does importing the package, nor a search for the smallest card."""
    path = model_file(tmp_path, "flux")
    code = (
        "import sys, tightfit\n"
        "assert 'torch' not in sys.modules, 'import'\n"
        f"assert isinstance(tightfit.make_plan({str(path)!r}, vram='6GiB'), tightfit.Plan)\n"
        "from tightfit.api.planning.planning import ask\n"
        "from tightfit.api.planning.solving import answer\n"
        f"answer(ask({str(path)!r}, vram='6GiB'), 'vram')\n"
        "sys.exit('torch' in sys.modules or 'diffusers' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_plan_is_a_value_that_explains_itself(tmp_path: Path) -> None:
    """The public names; paths as paths or text, sizes as numbers or text."""
    path = model_file(tmp_path, "flux")
    plan = tightfit.make_plan(path, vram=6 * GIB)
    assert plan == tightfit.make_plan(str(path), vram="6GiB", card="virtual:6GiB")
    assert plan.fits
    plan.check()
    assert "weights, resident" in plan.explain()


def test_flux_2_in_fp8_keeps_room_for_its_largest_converted_matrix(tmp_path: Path) -> None:
    """648 MiB that seed 2 left out: the same at small pictures, where its margin was too small."""
    path = model_file(tmp_path, "flux2", "F8_E4M3")
    for side in (256, 1024, 2048):
        question = ask(path, width=side, height=side, card="virtual:rtx-3060")
        plan = question.plan()
        assert plan.fits
        assert lines(plan)["conversion"] == 648 * MIB
        assert plan.stage("denoise").ledger.ours <= plan.supply.room
    assert "flux.2-dev/transformer is stored as F8_E4M3 and computes in bfloat16" in question.notes
    assert lines(tightfit.make_plan(model_file(tmp_path, "flux2"), vram="6GiB"))["conversion"] == 0


@pytest.mark.parametrize("allocator", ["native", "async", "expandable"])
def test_an_allocator_is_in_the_plan_by_its_slack_and_scratch(
    tmp_path: Path, allocator: str
) -> None:
    """A bare card of a size has neither until one is asked for."""
    path = model_file(tmp_path, "flux-vae")
    bare = tightfit.make_plan(path, vram="8GiB")
    asked = tightfit.make_plan(path, vram="8GiB", allocator=allocator)
    assert (bare.supply.allocator, asked.supply.allocator) == ("exact", allocator)
    assert (lines(bare, "decode")["slack"], lines(bare, "decode")["library_workspaces"]) == (0, 0)
    slack, scratch = (lines(asked, "decode")[name] for name in ("slack", "library_workspaces"))
    assert slack
    assert scratch is not None
    assert scratch > LIBRARIES
    assert lines(bare, "decode")["activations"] == lines(asked, "decode")["activations"]


def test_modes_are_in_the_plan_by_what_stays(tmp_path: Path) -> None:
    """All resident or refused, planned, as little as costs no time, nothing at all."""
    path = model_file(tmp_path, "flux")
    plans = {mode: tightfit.make_plan(path, card="virtual:rtx-4090", mode=mode) for mode in MODES}
    resident = {mode: lines(plan)["weights_resident"] or 0 for mode, plan in plans.items()}
    assert resident["high"] == resident["auto"] == 2 * 11_901_408_320
    assert resident["none"] < MIB < resident["low"] < resident["auto"]
    assert all(plan.mode == mode for mode, plan in plans.items())
    small = {mode: tightfit.make_plan(path, vram="8GiB", mode=mode).fits for mode in MODES}
    assert small == {"auto": True, "high": False, "low": True, "none": True}


def test_reserve_context_and_others_come_off_the_card(tmp_path: Path) -> None:
    """Each a line of its own; the budget is not less for them while the card has room."""
    path = model_file(tmp_path, "flux")
    plain = tightfit.make_plan(path, card="virtual:rtx-3060")
    kept = tightfit.make_plan(path, card="virtual:rtx-3060", reserve="2GiB")
    taken = tightfit.make_plan(path, card="virtual:rtx-3060,others=1GiB")
    assert (lines(kept)["reserve"], lines(taken)["held_by_others"]) == (2 * GIB, GIB)
    assert lines(plain)["context"] == lines(kept)["context"] == 400 * MIB
    resident = [lines(plan)["weights_resident"] or 0 for plan in (plain, taken, kept)]
    assert resident == sorted(resident, reverse=True)
    assert resident[0] - resident[2] > GIB
    within = tightfit.make_plan(path, card="virtual:rtx-3060", vram="6GiB", reserve="2GiB")
    assert within.supply.room == 6 * GIB


@pytest.mark.parametrize(
    ("vram", "budget"), [("50%", 6 * GIB), ("-1GiB", 11 * GIB), (None, 12 * GIB)]
)
def test_a_budget_may_be_a_share_of_the_card(tmp_path: Path, vram: str, budget: int) -> None:
    """Or what is left when so much is left alone."""
    path = model_file(tmp_path, "t5")
    plan = tightfit.make_plan(path, card="virtual:rtx-3060", vram=vram)
    assert (plan.supply.budget, plan.supply.total) == (budget, 12 * GIB)


def test_shards_gguf_and_bundles_are_planned_by_their_headers(tmp_path: Path) -> None:
    """A folder without a configuration too: there is nothing in it but weights."""
    whole = tightfit.make_plan(model_file(tmp_path, "flux"), vram="8GiB")
    shards = tightfit.make_plan(sharded(tmp_path / "shards", "flux"), vram="8GiB")
    assert lines(whole) == lines(shards)
    packed = tightfit.make_plan(gguf_file(tmp_path, "flux"), vram="8GiB")
    assert (lines(packed)["ring"], lines(packed)["conversion"]) == (0, 126 * MIB + 42 * 1024)
    bundle = tightfit.make_plan(model_file(tmp_path, "sdxl", "F16"), vram="8GiB")
    assert [stage.demand.stage for stage in bundle.stages] == [
        "encode text (clip-l)",
        "encode text (openclip-bigg)",
        "denoise",
        "decode",
    ]
    assert bundle.fits
    bundle.check()


def test_several_models_are_stages_of_one_job(tmp_path: Path) -> None:
    """In the order of a job; beside a denoiser, an autoencoder decodes and does not encode."""
    paths = [model_file(tmp_path, name) for name in ("flux-vae", "flux", "t5")]
    question = ask(paths, card="virtual:rtx-3060")
    assert [model.stage for model in question.models] == ["encode text", "denoise", "decode"]
    assert question.heading == "t5-xxl, flux.1-dev/transformer, flux-vae at 1024x1024"
    alone = ask(paths[0], card="virtual:rtx-3060")
    assert [model.stage for model in alone.models] == ["encode", "decode"]
    assert ask(paths[2], card="virtual:rtx-3060", batch=2).heading == "t5-xxl, 2 prompts at once"


def test_two_networks_of_one_architecture_weigh_twice(tmp_path: Path) -> None:
    """As the two experts of Wan 2.2 do: of one name, and not the same weights."""
    one, two = tmp_path / "a", tmp_path / "b"
    one.mkdir()
    two.mkdir()
    paths = [model_file(folder, "wan1.3") for folder in (one, two)]
    plan = tightfit.make_plan(paths, vram="24GiB")
    assert [stage.demand.stage for stage in plan.stages] == [
        "denoise (transformer)",
        "denoise (transformer #2)",
    ]
    assert plan.together
    assert plan.host is not None
    single = tightfit.make_plan(paths[0], vram="24GiB").host
    assert single is not None
    assert plan.host.masters == 2 * single.masters
    assert lines(plan, "denoise (transformer)")["weights_idle"] == single.masters


def test_an_unknown_architecture_is_planned_as_far_as_it_is_known(tmp_path: Path) -> None:
    """By blocks, with what is left out in the answer, in the notes and in the figures."""
    question = ask(model_file(tmp_path, "unknown"), vram="1GiB")
    plan = question.plan()
    assert plan.fits
    assert "fits, as far as it is predicted" in plan.explain().replace("\n  ", " ")
    assert "activations of run" in plan.not_predicted
    assert plan.peak_allocated is None
    values = question.as_dict()
    (model,) = values["models"]
    assert (model["dry_bytes"], model["allocated_bytes"], model["source"]) == (None, None, None)
    assert any("its architecture is not known" in note for note in question.notes)


def test_a_job_is_planned_at_the_size_that_its_models_take(tmp_path: Path) -> None:
    """Padded up, and said; the usual size where none is given; one side given keeps the other."""
    path = model_file(tmp_path, "wan1.3")
    usual = ask(path, vram="8GiB")
    assert (usual.size, usual.notes[0].startswith("a card of bare size")) == (
        Size(832, 480, 81),
        True,
    )
    padded = ask(path, vram="8GiB", width=830, frames=80, batch=2)
    assert padded.size == Size(832, 480, 81, 2)
    assert padded.notes[:2] == ("830x480 is padded to 832x480", "80 frames are padded to 81")
    assert padded.sized(Size(64, 64)).notes == usual.notes
    both = ask([path, model_file(tmp_path, "wan-vae")], vram="8GiB", height=470)
    assert both.size == Size(832, 480, 81)


def test_a_vae_of_pictures_takes_frames_as_pictures_and_a_denoiser_does_not(
    tmp_path: Path,
) -> None:
    """One item at a time where all do not fit; exact, and before tiles."""
    vae = model_file(tmp_path, "flux-vae")
    plan = tightfit.make_plan(vae, vram="2GiB", frames=16)
    assert plan.stage("decode").way.name == "batch of 1"
    assert plan.exact
    with pytest.raises(UsageError, match=r"flux\.1-dev/transformer makes pictures"):
        ask([vae, model_file(tmp_path, "flux")], vram="2GiB", frames=16)


def test_tiles_are_as_wished(tmp_path: Path) -> None:
    """Forbidden, forced, and told with the height before the width."""
    path = model_file(tmp_path, "flux-vae")
    auto, never, forced = (
        tightfit.make_plan(path, vram="1GiB", tile=tile) for tile in ("auto", "off", "256x512")
    )
    assert (auto.fits, auto.exact, never.fits) == (True, False, False)
    assert forced.stage("decode").way.name == "tiles 256x512"
    roomy = tightfit.make_plan(path, vram="24GiB", tile="512")
    assert roomy.stage("decode").way.name == "tiles 512x512"
    assert tightfit.make_plan(path, vram="24GiB").stage("decode").way.name == "whole"


def test_a_card_without_bfloat16_computes_in_what_it_has(tmp_path: Path) -> None:
    """Weights are converted, which has a line; to ask for bfloat16 there is refused."""
    path = model_file(tmp_path, "flux")
    question = ask(path, card="virtual:gtx-1660")
    assert [model.dtype for model in question.models] == ["float16"]
    assert lines(question.plan())["conversion"]
    assert any("has no bfloat16" in note for note in question.notes)
    with pytest.raises(UsageError, match="--dtype bfloat16: virtual:gtx-1660 does not compute"):
        ask(path, card="virtual:gtx-1660", dtype="bfloat16")


def test_a_dtype_that_is_asked_for_is_planned_in(tmp_path: Path) -> None:
    """Float32 takes twice the activations."""
    path = model_file(tmp_path, "flux")
    half, full = (
        lines(tightfit.make_plan(path, vram="24GiB", dtype=dtype))["activations"] or 0
        for dtype in ("auto", "float32")
    )
    assert full == pytest.approx(2 * half)


def test_the_host_is_no_card_and_is_not_counted_twice(tmp_path: Path) -> None:
    """There its memory is the ledger's own, and no second sum beside it."""
    question = ask(model_file(tmp_path, "t5"), card="cpu")
    plan = question.plan()
    assert plan.host is None
    assert "host memory" not in plan.not_predicted
    assert any("there is no card" in note for note in question.notes)


def test_what_was_planned_is_told_as_json(tmp_path: Path) -> None:
    """Integers, nulls and text under keys that stay."""
    question = ask(model_file(tmp_path, "flux"), card="virtual:rtx-3060", batch=2)
    values = json.loads(json.dumps(question.as_dict()))
    assert set(values) >= {"version", "fits", "card", "stages", "host", "size", "models", "notes"}
    assert values["size"] == {"width": 1024, "height": 1024, "frames": 1, "batch": 2}
    (model,) = values["models"]
    assert set(model) == {
        "name",
        "stage",
        "dtype",
        "weight_bytes",
        "converted_bytes",
        "blocks",
        "order",
        "dry_bytes",
        "allocated_bytes",
        "reserved_if_unbounded_bytes",
        "peak_operator",
        "source",
    }
    assert (model["name"], model["source"]) == ("flux.1-dev/transformer", "table")
    for key, value in model.items():
        if key.endswith("_bytes"):
            assert isinstance(value, int)


def test_what_cannot_be_read_is_refused_before_anything_else(tmp_path: Path) -> None:
    """One sentence each, that names the file."""
    for path, words in broken_files(tmp_path):
        with pytest.raises(InputError) as refused:
            tightfit.make_plan(path, vram="6GiB")
        assert words in str(refused.value), path
        assert path.name in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 0}, "--width `0` is out of range"),
        ({"height": -1}, "--height `-1` is out of range"),
        ({"width": 10**9}, "is out of range"),
        ({"frames": 0}, "--frames `0` is out of range"),
        ({"batch": 0}, "--batch `0` is out of range"),
        ({"vram": "6"}, "is not a size"),
        ({"vram": "101%"}, "not a share between 0 and 100%"),
        ({"vram": "13GiB", "card": "virtual:rtx-3060"}, "above what virtual:rtx-3060 has"),
        ({"reserve": "-1GiB"}, "is not a size"),
        ({"reserve": -1}, "is below zero"),
        ({"reserve": "12GiB", "card": "virtual:rtx-3060"}, "leaves nothing"),
        ({"card": "virtual:rtx-3065"}, "Did you mean"),
        ({"mode": "medium"}, "use auto, high, low, none"),
        ({"allocator": "jemalloc"}, "use native, async, expandable"),
        ({"allocator": "native", "card": "cpu"}, "the CPU has none"),
        ({"dtype": "int8"}, "use auto, float32, float16, bfloat16"),
        ({"tile": "0"}, "has a zero"),
        ({"tile": "wide"}, "is not a tile"),
        ({"tile": "32"}, "below the floor of 64 pixels"),
        ({"steps": 0}, "is below 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence(
    tmp_path: Path, options: dict[str, str | int], words: str
) -> None:
    """With what is legal."""
    path = model_file(tmp_path, "flux-vae")
    with pytest.raises(UsageError) as refused:
        ask(path, **({"vram": "6GiB"} if "card" not in options else {}) | options)  # type: ignore[arg-type]
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("models", [[], "", [""]])
def test_no_model_is_no_job(models: str | list[str]) -> None:
    """An empty name is no folder."""
    with pytest.raises(UsageError, match="Name a model"):
        ask(models, vram="6GiB")


def test_one_bad_model_of_several_is_named(tmp_path: Path) -> None:
    """The others are not planned without it."""
    good = model_file(tmp_path, "t5")
    with pytest.raises(InputError, match=r"absent\.safetensors"):
        ask([good, tmp_path / "absent.safetensors"], vram="6GiB")


def test_a_bundle_whose_parts_are_partly_unknown_is_planned_for_the_others(tmp_path: Path) -> None:
    """Flux with a part that has no name here."""
    shapes = (
        under("model.diffusion_model.", original.flux())
        | under("vae.", original.autoencoder(16, quantised=False))
        | under("text_encoders.strange.transformer.", SHAPES["unknown"]())
    )
    path = write_safetensors(
        tmp_path / "mix.safetensors", {k: ("BF16", s) for k, s in shapes.items()}
    )
    question: Question = ask(path, vram="8GiB")
    known = {model.name: question.predicts(model) for model in question.models}
    assert known == {
        "mix.safetensors/text_encoder": False,
        "flux.1-dev/transformer": True,
        "flux-vae": True,
    }
    assert question.plan().fits
