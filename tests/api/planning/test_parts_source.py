"""Models that are built on the meta device: by name, and from folders."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tests.card.stub_nvml import StubDevice, StubNvml
from tests.weigh.header_makers import write_safetensors
from tightfit.adapters.parts import find_parts, load_part, outline_part
from tightfit.api.planning import planning
from tightfit.api.planning.planning import ask, make_plan
from tightfit.api.planning.question import Question
from tightfit.api.planning.solving import answer
from tightfit.card import nvml
from tightfit.card.cuda import convolution_library
from tightfit.card.host_memory import HostMemory
from tightfit.errors import InputError, UsageError
from tightfit.plan.plan import Plan
from tightfit.plan.size import Size
from tightfit.settings import Settings
from tightfit.units import GIB, MIB
from tightfit.weigh import weight_bytes
from tightfit.weigh.calibration import Calibration, Calibrations, Key, Seen
from tightfit.weigh.workspace import LIBRARIES

HOST = HostMemory(64 * GIB, 48 * GIB, None, None)


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same host everywhere."""
    monkeypatch.setattr(planning, "read_host_memory", lambda: HOST)


def stored(spec: str, path: Path, dtype: str = "BF16") -> Path:
    """A file with the tensors of a part, as diffusers names them, and nothing in it."""
    module = outline_part(find_parts(spec)[0], dtype=torch.bfloat16)
    tensors = {name: (dtype, tuple(value.shape)) for name, value in module.state_dict().items()}
    return write_safetensors(path, tensors)


def figures(question: Question, *, slack: bool = True) -> dict[str, list[float]]:
    """What a plan comes to, stage by stage: bytes that depend on the network."""
    found: dict[str, list[float]] = {}
    for model in question.models:
        working = question.working(model)
        numbers = [model.weights.stored_bytes, working.dry, working.allocated, working.flops]
        if slack:
            numbers += [working.least, working.reserved]
        found[model.stage] = [float(number or 0) for number in numbers]
    for stage in question.plan().stages:
        assert stage.residency is not None
        found[stage.demand.stage] += [
            stage.residency.resident_bytes,
            stage.residency.streamed_bytes,
            stage.ledger.ours,
        ]
    return found


def test_flux_1_dev_at_6_gib_is_the_worked_sum(tmp_path: Path) -> None:
    """5.3 GiB stay, two slots of 108 MiB, 16.8 GiB are streamed in each step."""
    path = stored("random:flux.1-dev/transformer", tmp_path / "flux1.safetensors")
    stage = tightfit.make_plan(path, vram="6GiB").stage("denoise")
    assert stage.residency is not None
    assert (stage.residency.ring.slots, stage.residency.ring.slot_bytes) == (2, 108 * MIB)
    assert stage.residency.resident_bytes == pytest.approx(5.33 * GIB, rel=0.005)
    assert stage.residency.streamed_bytes == pytest.approx(16.84 * GIB, rel=0.005)


@pytest.mark.parametrize(
    ("spec", "dtype", "options"),
    [
        ("random:flux.1-dev/transformer", "BF16", {"card": "virtual:rtx-3060", "batch": 2}),
        ("random:flux-vae", "F32", {"card": "virtual:rtx-3060"}),
        ("random:flux-vae", "F32", {"vram": "6GiB", "frames": 9}),
    ],
)
def test_a_header_and_a_dry_run_tell_the_same(
    tmp_path: Path, spec: str, dtype: str, options: dict[str, Any]
) -> None:
    """Every figure within 5 %, the slack of a table's line apart, which is never less."""
    path = stored(spec, tmp_path / "model.safetensors", dtype)
    by_header, by_run = ask(path, **options), ask(spec, **options)
    assert [model.stage for model in by_header.models] == [model.stage for model in by_run.models]
    assert by_header.size == by_run.size
    told, seen = (figures(question, slack=False) for question in (by_header, by_run))
    for stage, numbers in told.items():
        assert numbers == pytest.approx(seen[stage], rel=0.05), stage
    for header, run in zip(by_header.models, by_run.models, strict=True):
        least = by_header.working(header).least, by_run.working(run).least
        assert (least[0] or 0) >= 0.98 * (least[1] or 0)
        assert header.dtype == run.dtype


def test_a_dry_run_of_a_file_says_predicted_where_the_table_says_table(tmp_path: Path) -> None:
    """Of the architecture that the file is; one without a name is left as its header told it."""
    path = stored("random:flux-vae", tmp_path / "vae.safetensors", "F32")
    odd = write_safetensors(tmp_path / "odd.safetensors", {"a.0.weight": ("BF16", (8, 8))})
    told, ran = (ask(path, vram="6GiB", dry_run=dry) for dry in (False, True))
    for question, source in ((told, "table"), (ran, "predicted")):
        assert {question.working(model).source for model in question.models} == {source}
    seen = figures(ran)
    for stage, numbers in figures(told).items():
        assert numbers == pytest.approx(seen[stage], rel=0.05), stage
    asked = ask(odd, vram="6GiB", dry_run=True)
    assert any("no dry run of odd" in note for note in asked.notes)


def saved(folder: Path, pipeline: str, parts: Sequence[str], class_name: str) -> Path:
    """Parts of a mini pipeline in a folder, as `save_pretrained` writes them."""
    folder.mkdir()
    index: dict[str, Any] = {"_class_name": class_name, "tokenizer": ["transformers", "Tokenizer"]}
    for part in find_parts(f"random:{pipeline}"):
        if part.name in parts:
            index[part.name] = [part.library, part.class_name]
            module: Any = load_part(part, dtype=torch.bfloat16)
            module.save_pretrained(folder / part.name)
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


FLUX_PARTS = ("text_encoder", "text_encoder_2", "transformer", "vae")


@pytest.fixture(scope="module")
def flux_mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole small FLUX pipeline."""
    folder = tmp_path_factory.mktemp("pipelines") / "flux-mini"
    return saved(folder, "flux.1-dev-mini", FLUX_PARTS, "FluxPipeline")


def test_a_pipelines_folder_plans_every_stage(flux_mini: Path) -> None:
    """By its own configuration, run dry; the same pipeline by name tells the same."""
    options: dict[str, Any] = {"vram": "64MiB", "width": 128, "height": 128}
    folder, named = ask(flux_mini, **options), ask("random:flux.1-dev-mini", **options)
    assert [model.name for model in folder.models] == [f"flux-mini/{part}" for part in FLUX_PARTS]
    stages = [stage.demand.stage for stage in folder.plan().stages]
    assert stages == [
        "encode text (text_encoder)",
        "encode text (text_encoder_2)",
        "denoise",
        "decode",
    ]
    for ours, theirs in zip(folder.models, named.models, strict=True):
        assert folder.working(ours).dry == named.working(theirs).dry
        assert folder.working(ours).at
        assert ours.weights.order == "dry run"
        assert ours.weights.stored_bytes == pytest.approx(theirs.weights.stored_bytes, rel=0.01)
    assert folder.plan().fits
    assert not any("not predicted" in note for note in folder.notes)


def test_a_part_of_a_pipeline_can_be_planned_alone(flux_mini: Path) -> None:
    """Its VAE then also encodes, as a file's does."""
    vae = ask(flux_mini / "vae", vram="64MiB", width=128, height=128)
    assert [model.stage for model in vae.models] == ["encode", "decode"]
    denoiser = ask(flux_mini / "transformer", vram="64MiB", width=128, height=128)
    assert [model.stage for model in denoiser.models] == ["denoise"]


def test_a_folder_that_the_libraries_cannot_build_is_planned_by_its_headers(
    tmp_path: Path, flux_mini: Path
) -> None:
    """Part by part, and each says why; the others are run dry."""
    folder = tmp_path / "odd"
    folder.mkdir()
    index = json.loads((flux_mini / "model_index.json").read_text())
    index = {
        "_class_name": "OddPipeline",
        "transformer": ["diffusers", "NoSuchTransformer2DModel"],
        "vae": index["vae"],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    (folder / "vae").symlink_to(flux_mini / "vae")
    (folder / "transformer").mkdir()
    config = {"_class_name": "NoSuchTransformer2DModel"}
    (folder / "transformer" / "config.json").write_text(json.dumps(config))
    source = flux_mini / "transformer" / "diffusion_pytorch_model.safetensors"
    (folder / "transformer" / source.name).symlink_to(source)
    question = ask(folder, vram="1GiB")
    predicted = {model.stage: question.predicts(model) for model in question.models}
    assert predicted == {"denoise": False, "decode": True}
    assert any("no dry run of odd/transformer" in note for note in question.notes)
    assert question.plan().fits


def test_a_network_whose_call_is_not_known_says_so(tmp_path: Path) -> None:
    """Its weights are planned in blocks all the same."""
    config = {"_class_name": "PixArtTransformer2DModel", "num_layers": 2, "sample_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {f"transformer_blocks.{at}.ff.weight": ("BF16", (64, 64)) for at in range(2)}
    write_safetensors(tmp_path / "diffusion_pytorch_model.safetensors", tensors)
    question = ask(tmp_path, vram="1GiB")
    assert [question.predicts(model) for model in question.models] == [False]
    assert any("are not predicted" in note for note in question.notes)
    assert len(question.models[0].weights.blocks) == 2


GROWN = [Size(64, 64), Size(96, 64), Size(64, 96), Size(64, 64, 1, 2), Size(112, 128, 1, 3)]
CLIPS = [*GROWN, Size(64, 64, 5), Size(96, 64, 9), Size(112, 128, 13, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ("random:flux.1-dev-mini/transformer", GROWN),
        ("random:flux-vae-mini", GROWN),
        ("random:wan2.1-t2v-1.3b-mini/transformer", CLIPS),
    ],
)
def test_a_larger_job_never_fits_where_a_smaller_one_does_not(
    spec: str, sizes: Sequence[Size]
) -> None:
    """Every size run dry on its own: the least that it takes does not fall."""
    least: dict[Size, int] = {}
    for size in sizes:
        sides: dict[str, Any] = asdict(size)
        stages = ask(spec, vram="1GiB", tile="off", **sides).plan().stages
        least[size] = max(min(way.least for way in stage.ways) for stage in stages)
    for one, two in itertools.permutations(sizes, 2):
        grown = zip(asdict(one).values(), asdict(two).values(), strict=True)
        if all(a <= b for a, b in grown):
            assert least[one] <= least[two], (one, two)


def test_a_search_over_a_network_that_is_in_no_table_is_tight() -> None:
    """Lines through a few small runs tell other sizes, and agree with the run at the job's."""
    question = ask("random:wan2.1-t2v-1.3b-mini/transformer", vram="24MiB", width=64, height=64)
    for kind in ("size", "frames"):
        found = answer(question, kind)
        assert found.found
        size = found.question.size
        assert found.question.plan().fits
        step = Size(size.width + 16, size.height + 16, size.frames)
        if kind == "frames":
            step = Size(size.width, size.height, size.frames + 4)
        assert not question.sized(step).plan().fits
    value = answer(question, "vram").value
    assert isinstance(value, int)
    assert question.budgeted(value).plan().fits
    assert not question.budgeted(value - MIB).plan().fits


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("random:flux", "near it are flux-vae"),
        ("random:flux.1-dev/transfomer", "near it are flux.1-dev/transformer"),
        ("random:", "use one of"),
        ("mini:flux", "shipped is mini:wan2.1-vae"),
    ],
)
def test_a_name_that_is_unknown_is_answered_with_those_near_it(spec: str, words: str) -> None:
    """As for cards."""
    with pytest.raises(UsageError) as refused:
        ask(spec, vram="6GiB")
    assert words in str(refused.value)


def test_a_pipeline_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    """By the part that is missing."""
    index = {"_class_name": "FluxPipeline", "transformer": ["diffusers", "FluxTransformer2DModel"]}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="names `transformer`"):
        ask(tmp_path, vram="6GiB")


def test_what_jobs_measured_on_this_card_corrects_its_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A decode that took twice what was predicted: the next plan says so, for that stage alone."""
    monkeypatch.setattr(nvml, "_library", lambda: StubNvml(StubDevice(free=12 * GIB)))
    before = make_plan("random:flux-vae-mini", width=512, height=512, card="cuda:0")
    part = find_parts("random:flux-vae-mini")[0]
    module = outline_part(part, dtype=torch.float32)
    key = Key(
        f"AutoencoderKL {weight_bytes(module)}",
        "decode",
        "float32",
        "NVIDIA GeForce RTX 3060 native",
        torch.__version__,
        convolution_library(),
    )
    run = Seen(4096, predicted=10 * MIB, measured=20 * MIB)
    path = Settings.from_environ().cache_dir / "calibrations.json"
    Calibrations(path).keep(key, Calibration().with_run(run))
    after = make_plan("random:flux-vae-mini", width=512, height=512, card="cuda:0")

    def working(plan: Plan, stage: str) -> int:
        lines = plan.stage(stage).ledger.lines
        return lines["activations"].known + lines["library_workspaces"].known - LIBRARIES

    assert working(after, "decode") == pytest.approx(2 * working(before, "decode"), rel=0.01)
    assert working(after, "encode") == working(before, "encode")
