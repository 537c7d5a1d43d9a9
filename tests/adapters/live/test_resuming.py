"""A call that was stopped and is gone on with: the bits of one that was not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tightfit
from tests.pipelines import tiny
from tightfit.adapters.live.resuming import Keeping, kept
from tightfit.card import open_card
from tightfit.errors import InputError
from tightfit.units import KIB

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
)
KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "flux": (tiny.flux, {"height": 32, "width": 32, "max_sequence_length": 8}),
    "sdxl": (tiny.sdxl, {"height": 16, "width": 16}),
    "wan": (
        tiny.wan,
        {"height": 16, "width": 16, "num_frames": 5, "max_sequence_length": 8},
    ),
}
MAIN = {"flux": "transformer", "sdxl": "unet", "wan": "transformer"}
TIGHT = {"flux": 1400 * KIB, "sdxl": 2100 * KIB, "wan": 400 * KIB}
SCHEDULERS = (
    "EulerAncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "UniPCMultistepScheduler",
    "HeunDiscreteScheduler",
)
STEPS = 3
WHAT = {"prompt": "a cat", "seed": "1"}


class Stopped(Exception):
    """Somebody pulled the plug."""


def pipeline(kind: str, scheduler: str | None = None) -> Any:
    pipe = KINDS[kind][0]()
    if scheduler is not None:
        pipe.scheduler = getattr(diffusers, scheduler).from_config(pipe.scheduler.config)
    return pipe


def call(
    pipe: Any, kind: str, draw: torch.Generator, *, output: str = "latent", **more: Any
) -> torch.Tensor:
    """On the host."""
    made = pipe(
        prompt="a cat",
        num_inference_steps=STEPS,
        generator=draw,
        output_type=output,
        **KINDS[kind][1],
        **more,
    )
    value: torch.Tensor = made.frames if kind == "wan" else made.images
    return value.to("cpu", copy=True)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def stop_at(step: int) -> Callable[..., dict[str, Any]]:
    """A callback of a pipeline that stops it when so many steps are done."""
    done = 0

    def each(pipe: Any, at: int, time: Any, given: dict[str, Any]) -> dict[str, Any]:
        nonlocal done
        del pipe, at, time
        done += 1
        if done == step:
            raise Stopped
        return given

    return each


@contextmanager
def fits(pipe: Any, vram: int | None) -> Iterator[None]:
    """On a card, of which it may use so much and does not use more; or as it is."""
    card = open_card("virtual:1GiB")
    if vram is not None:
        tightfit.fit(pipe, card=card, vram=vram)
    try:
        yield
    finally:
        if vram is not None:
            tightfit.unfit(pipe)
            assert (card.read().peak_allocated or 0) <= vram


def stopped(pipe: Any, kind: str, path: Path, step: int, **more: Any) -> Keeping:
    """A call of `pipe` that is kept, and ends with an error after that step."""
    with suppress(Stopped), kept(pipe, path, identity=WHAT, **more) as keeping:
        call(pipe, kind, seeded(), callback_on_step_end=stop_at(step))
    return keeping


def agree(kind: str, path: Path, make: Callable[[], Any]) -> None:
    """Stopped after each of its steps and gone on with, a call has the bits of an undisturbed one.

    Generators end where they would have, too.
    """
    pipe, draw = make(), seeded()
    whole = call(pipe, kind, draw)
    drawn = torch.rand(3, generator=draw)
    steps = len(pipe.scheduler.timesteps)
    assert steps >= STEPS
    for step in range(1, steps + 1):
        keeping = stopped(make(), kind, path, step)
        assert (keeping.steps, keeping.saves, keeping.refused) == (step, 1, None)
        pipe, draw = make(), seeded()
        with kept(pipe, path, identity=WHAT, resume=True) as keeping:
            again = call(pipe, kind, draw)
        assert (keeping.resumed_at, keeping.steps) == (step, steps)
        assert torch.equal(again, whole)
        assert torch.equal(torch.rand(3, generator=draw), drawn)
        keeping.done()
        assert not path.exists()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_stopped_call_goes_on_with_the_same_bits(scheduler: str, tmp_path: Path) -> None:
    """With schedulers that draw noise, remember outputs, or make two steps for one time.

    By a pipeline that was loaded anew.
    """
    agree("sdxl", tmp_path / "job.safetensors", lambda: pipeline("sdxl", scheduler))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fitted_pipeline_goes_on_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    """At a budget that its networks do not fit in."""
    pipe = pipeline(kind)
    with fits(pipe, TIGHT[kind]):
        agree(kind, tmp_path / "job.safetensors", lambda: pipe)


@pytest.mark.parametrize("kind", ["flux", "wan"])
def test_a_pipeline_that_is_not_fitted_goes_on_too(kind: str, tmp_path: Path) -> None:
    """Nothing of it needs us."""
    agree(kind, tmp_path / "job.safetensors", lambda: pipeline(kind))


@pytest.mark.parametrize("vram", [None, TIGHT["flux"]], ids=["as it is", "fitted"])
def test_what_is_done_is_not_computed_again(vram: int | None, tmp_path: Path) -> None:
    """Nor do the weights for it come to the card."""
    pipe, path = pipeline("flux"), tmp_path / "job.safetensors"
    stopped(pipe, "flux", path, STEPS)
    ran = []
    pipe.transformer.register_forward_hook(lambda *_: ran.append(1))
    pipe.text_encoder.register_forward_hook(lambda *_: ran.append(0))
    if vram is not None:
        path.unlink()
        with fits(pipe, vram):
            stopped(pipe, "flux", path, STEPS)
    with fits(pipe, vram):
        ran.clear()
        with kept(pipe, path, identity=WHAT, resume=True):
            call(pipe, "flux", seeded())
        assert 1 not in ran
        assert 0 in ran
        if vram is not None:
            network = tightfit.fitted(pipe).networks["transformer"]
            assert (network.calls, network.taken) == (0, 0)


def test_a_decode_that_fails_costs_no_step(tmp_path: Path) -> None:
    """The file is written before it, so nothing is lost even where nobody can write any more."""
    pipe, path = pipeline("sdxl"), tmp_path / "job.safetensors"
    whole = call(pipe, "sdxl", seeded(), output="pt")
    decode, seen = pipe.vae.decode, []

    def fail(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        seen.append(path.exists())
        raise Stopped

    pipe.vae.decode = fail
    with suppress(Stopped), kept(pipe, path, identity=WHAT, every=1e9) as keeping:
        call(pipe, "sdxl", seeded(), output="pt")
    assert pipe.vae.decode is fail
    assert (seen, keeping.saves) == ([True], 1)
    pipe.vae.decode = decode
    with kept(pipe, path, identity=WHAT, resume=True) as keeping:
        again = call(pipe, "sdxl", seeded(), output="pt")
    assert keeping.resumed_at == STEPS
    assert torch.equal(again, whole)


def test_a_job_can_be_stopped_more_than_once(tmp_path: Path) -> None:
    """What was gone through again is kept again."""
    pipe, path = pipeline("sdxl", "UniPCMultistepScheduler"), tmp_path / "job.safetensors"
    whole = call(pipe, "sdxl", seeded())
    stopped(pipe, "sdxl", path, 1)
    keeping = stopped(pipe, "sdxl", path, 2, resume=True)
    assert (keeping.resumed_at, keeping.steps) == (1, 2)
    keeping = stopped(pipe, "sdxl", path, 2, resume=True)
    assert (keeping.resumed_at, keeping.steps, keeping.saves) == (2, 2, 0)
    with kept(pipe, path, identity=WHAT, resume=True):
        assert torch.equal(call(pipe, "sdxl", seeded()), whole)


def test_numbers_that_nobody_seeded_are_drawn_as_they_were(tmp_path: Path) -> None:
    """PyTorch's own generator begins where it began, and goes on where it stopped."""
    pipe, path = pipeline("sdxl", "EulerAncestralDiscreteScheduler"), tmp_path / "job.safetensors"

    def made(**more: Any) -> torch.Tensor:
        found: torch.Tensor = pipe(
            "a cat", num_inference_steps=STEPS, output_type="latent", **KINDS["sdxl"][1], **more
        ).images
        return found

    torch.manual_seed(7)
    whole = made()
    torch.manual_seed(7)
    with suppress(Stopped), kept(pipe, path, identity=WHAT):
        made(callback_on_step_end=stop_at(2))
    torch.manual_seed(8)
    with kept(pipe, path, identity=WHAT, resume=True):
        assert torch.equal(made(), whole)


def test_it_is_written_when_so_many_seconds_went_by(tmp_path: Path) -> None:
    """Each step with none; else once, at the end."""
    pipe, path = pipeline("wan"), tmp_path / "job.safetensors"
    for every, saves in ((0.0, STEPS), (1e9, 1)):
        with kept(pipe, path, identity=WHAT, every=every) as keeping:
            call(pipe, "wan", seeded())
        assert keeping.saves == saves


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_as_it_was_afterwards(kind: str, tmp_path: Path) -> None:
    """No name of ours stays on a part, after an error either."""
    pipe = pipeline(kind)
    call(pipe, kind, seeded())  # pipelines leave registries of hooks themselves
    before = {name: dict(vars(part)) for name, part in pipe.components.items() if part is not None}
    stopped(pipe, kind, tmp_path / "job.safetensors", 2)
    with kept(pipe, tmp_path / "job.safetensors", identity=WHAT, resume=True):
        call(pipe, kind, seeded())
    for name, names in before.items():
        assert set(vars(pipe.components[name])) == set(names)
    for name in (MAIN[kind], "vae"):
        assert all(vars(pipe.components[name])[key] is each for key, each in before[name].items())


def test_schedulers_are_still_asked_what_they_take(tmp_path: Path) -> None:
    """Pipelines look whether a step takes a generator."""
    pipe = pipeline("sdxl", "EulerAncestralDiscreteScheduler")
    with kept(pipe, tmp_path / "job.safetensors", identity=WHAT):
        assert "generator" in pipe.prepare_extra_step_kwargs(seeded(), 0.0)


def test_another_job_is_refused_and_told_what_differs(tmp_path: Path) -> None:
    """By name: what was asked for, and the scheduler."""
    pipe, path = pipeline("sdxl"), tmp_path / "job.safetensors"
    stopped(pipe, "sdxl", path, 1)
    other = {**WHAT, "seed": "2", "steps": "9"}
    with pytest.raises(InputError, match="seed was `1`, and is `2`; steps was not given, and is"):
        kept(pipe, path, identity=other, resume=True).__enter__()
    another = pipeline("sdxl", "HeunDiscreteScheduler")
    with pytest.raises(InputError, match="scheduler was `EulerDiscrete"):
        kept(another, path, identity=WHAT, resume=True).__enter__()


def test_a_call_that_turns_out_to_be_another_is_refused(tmp_path: Path) -> None:
    """Whatever its name says: by what its first step is given, and by what is called when."""
    pipe, path = pipeline("sdxl"), tmp_path / "job.safetensors"
    stopped(pipe, "sdxl", path, 2)
    with (
        pytest.raises(InputError, match="the call is about"),
        kept(pipe, path, identity=WHAT, resume=True),
    ):
        pipe("a cat", num_inference_steps=STEPS, height=32, width=32)
    with (
        pytest.raises(InputError, match="the call ended before"),
        kept(pipe, path, identity=WHAT, resume=True),
    ):
        pass
    with (
        pytest.raises(InputError, match="call of `unet` where a call of `text_encoder"),
        kept(pipe, path, identity=WHAT, resume=True),
    ):
        pipe.unet(torch.zeros(1))


@pytest.mark.parametrize("how", ["cut", "foreign", "no tensors", "senseless"])
def test_files_that_are_not_whole_or_not_ours_are_refused(how: str, tmp_path: Path) -> None:
    """With a sentence, before anything runs."""
    pipe, path = pipeline("sdxl"), tmp_path / "job.safetensors"
    stopped(pipe, "sdxl", path, 1)
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif how == "foreign":
        save_file({"latent": torch.zeros(3)}, path)
    elif how == "no tensors":
        path.write_bytes(b"")
    else:
        identity = '{"prompt": "a cat", "seed": "1"}'
        data = {"kind": "tightfit resume", "version": "1", "identity": identity, "state": "{}"}
        save_file({"0": torch.zeros(3)}, path, metadata=data)
    with pytest.raises(InputError, match="Cannot resume from"):
        kept(pipe, path, identity=WHAT, resume=True).__enter__()


def test_without_a_file_it_starts_from_the_beginning_and_says_so(tmp_path: Path) -> None:
    """`resumed_at` is None, which is not 0."""
    pipe = pipeline("wan")
    whole = call(pipe, "wan", seeded())
    with kept(pipe, tmp_path / "job.safetensors", identity=WHAT, resume=True) as keeping:
        assert torch.equal(call(pipe, "wan", seeded()), whole)
    assert keeping.resumed_at is None
    assert "from the beginning" in keeping.notes[0]


def test_a_file_stays_whole_when_its_successor_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on without, and says so; what was there can be gone on with."""
    pipe, path = pipeline("sdxl"), tmp_path / "job.safetensors"
    whole = call(pipe, "sdxl", seeded())
    stopped(pipe, "sdxl", path, 1)
    with monkeypatch.context() as patch:

        def full(file: int) -> None:
            del file
            raise OSError(28, "No space left on device")

        patch.setattr("os.fsync", full)
        with kept(pipe, path, identity=WHAT, resume=True, every=0.0) as keeping:
            assert torch.equal(call(pipe, "sdxl", seeded()), whole)
    assert keeping.saves == 0
    assert "No space left" in keeping.notes[0]
    assert list(tmp_path.glob("*")) == [path]
    with kept(pipe, path, identity=WHAT, resume=True) as keeping:
        assert torch.equal(call(pipe, "sdxl", seeded()), whole)
    assert keeping.resumed_at == 1


def test_what_cannot_be_stored_is_said_and_not_kept(tmp_path: Path) -> None:
    """A scheduler with something on it that is no tensor: the call runs, and leaves no file."""
    pipe, path = pipeline("sdxl"), tmp_path / "job.safetensors"
    whole = call(pipe, "sdxl", seeded())
    pipe.scheduler.tree = iter(())
    with kept(pipe, path, identity=WHAT, every=0.0) as keeping:
        assert torch.equal(call(pipe, "sdxl", seeded()), whole)
    assert keeping.refused is not None
    assert "EulerDiscreteScheduler.tree` is a tuple_iterator" in keeping.refused
    assert not path.exists()


def test_networks_that_keep_results_of_a_step_are_not_kept(tmp_path: Path) -> None:
    """What they keep is on nobody's list."""
    pipe, path = pipeline("flux"), tmp_path / "job.safetensors"
    pipe.transformer.enable_cache(diffusers.FirstBlockCacheConfig(threshold=0.2))
    with kept(pipe, path, identity=WHAT, every=0.0) as keeping:
        call(pipe, "flux", seeded())
    assert "`transformer` keeps results" in (keeping.refused or "")
    assert not path.exists()


def test_a_place_where_nothing_can_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    """No folder, or a folder."""
    pipe = pipeline("wan")
    for path in (tmp_path / "none" / "job.safetensors", tmp_path):
        with pytest.raises(InputError, match="Cannot keep"):
            kept(pipe, path, identity=WHAT).__enter__()


class TwoLoops:
    """As some pipelines: a copy of the scheduler beside it, and a second loop after the first."""

    _execution_device = torch.device("cpu")

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network = nn.Linear(4, 4)
        self.scheduler = diffusers.UniPCMultistepScheduler()
        self.components = {"network": self.network, "scheduler": self.scheduler}

    @torch.no_grad()
    def __call__(self, stop: int | None = None) -> torch.Tensor:
        """What the second loop makes of the first one's result; or an error on the way."""
        left = torch.ones(2, 4)
        done = 0
        for _ in range(2):
            self.scheduler.set_timesteps(3)
            beside = copy.deepcopy(self.scheduler)
            ahead, right = self.network(left) + torch.randn(2, 4), left * 2
            for time in self.scheduler.timesteps:
                left = self.scheduler.step(self.network(left) + ahead, time, left).prev_sample
                right = beside.step(self.network(right), time, right, return_dict=False)[0]
                done += 1
                if done == stop:
                    raise Stopped
            left = left + right
        return left


@pytest.mark.parametrize("stop", range(1, 7))
def test_several_loops_and_schedulers_go_on_together(stop: int, tmp_path: Path) -> None:
    """What one loop gave to the next is there again, and what was computed or drawn before it."""
    pipe, path = TwoLoops(), tmp_path / "job.safetensors"
    torch.manual_seed(7)
    whole = pipe()
    torch.manual_seed(7)
    with suppress(Stopped), kept(pipe, path, identity=WHAT) as keeping:
        pipe(stop)
    assert keeping.steps == 2 * stop
    with kept(pipe, path, identity=WHAT, resume=True) as keeping:
        again = pipe()
    assert keeping.resumed_at == 2 * stop
    assert torch.equal(again, whole)
