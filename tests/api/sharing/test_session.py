"""Several pipelines and modules on one card: one budget, one call at a time, everything back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.api.sharing.test_pipelines import KINDS, call, fitted_call
from tests.api.test_fitting import inputs, network, wanted
from tests.cases.common import assert_back, virtual
from tests.pipelines import tiny
from tightfit.api import fitting
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import Cancelled, MemoryShortage, UsageError
from tightfit.place.link import LinkRates
from tightfit.units import GIB, KIB, format_bytes
from tightfit.weigh import weight_bytes

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
)
TIGHT = 2100 * KIB
"""Less than two tiny pipelines take, and enough for each."""
_roomy: dict[str, torch.Tensor] = {}


def roomy(kind: str) -> torch.Tensor:
    """Latents on a card that has room for everything."""
    if kind not in _roomy:
        _roomy[kind] = fitted_call(kind, virtual(GIB), vram=None)
    return _roomy[kind]


@contextmanager
def threads(*works: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Do all of it at once; what went wrong."""
    wrong: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            wrong.append(error)

    started = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for each in started:
        each.start()
    try:
        yield wrong
    finally:
        for each in started:
            each.join(60)
            assert not each.is_alive()


def allocated(card: VirtualCard) -> int:
    found = card.read().allocated
    assert found is not None
    return found


def test_two_pipelines_and_a_module_share_one_budget() -> None:
    """Each has the bits of a large card; the peak is within the budget; all comes back."""
    card, module, x = virtual(GIB), network(), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card.reset_peaks()
    with tightfit.Session(card=card, vram=TIGHT) as session:
        flux, sdxl = session.fit(tiny.flux()), session.fit(tiny.sdxl())
        session.fit(module)
        for _ in range(2):
            assert torch.equal(call(flux, "flux"), roomy("flux"))
            with torch.no_grad():
                assert torch.equal(module(x).cpu(), expected)
            assert torch.equal(call(sdxl, "sdxl"), roomy("sdxl"))
        assert any("Flux" in note and "StableDiffusion" in note for note in _notes(session))
    assert (card.read().peak_allocated or 0) <= TIGHT
    del flux, sdxl  # their schedulers have times on the card
    gc.collect()
    assert_back(card)


def _notes(session: tightfit.Session) -> list[str]:
    return [line for line in session.explain().splitlines() if " rests while " in line]


def test_what_two_pipelines_share_is_fitted_once() -> None:
    """It goes with the last of them, and then every part is as it was."""
    from diffusers import FluxImg2ImgPipeline

    pipe = tiny.flux()
    call(pipe, "flux")  # pipelines leave registries of hooks themselves
    other = FluxImg2ImgPipeline(**pipe.components)
    before = {name: set(vars(part)) for name, part in pipe.components.items() if _is_module(part)}
    with tightfit.Session(card=virtual(GIB), vram=TIGHT) as session:
        session.fit(pipe)
        session.fit(other)
        ones, others = tightfit.fitted(pipe).networks, tightfit.fitted(other).networks
        assert all(ones[name] is others[name] for name in ones)
        assert torch.equal(call(pipe, "flux"), roomy("flux"))
        session.unfit(pipe)
        with pytest.raises(UsageError, match="not fitted"):
            tightfit.fitted(pipe)
        picture = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(2))
        made = other(
            prompt="a cat",
            image=picture,
            num_inference_steps=2,
            strength=1.0,
            height=64,
            width=64,
            max_sequence_length=16,
            generator=torch.Generator().manual_seed(1),
            output_type="pt",
        ).images
        assert made.isfinite().all()
        session.unfit(other)
        assert {name: set(vars(pipe.components[name])) for name in before} == before


def _is_module(part: object) -> bool:
    return isinstance(part, nn.Module)


def test_a_shared_vae_tells_the_pipeline_that_decodes() -> None:
    """Known by the network that this thread called before it."""
    one, two = tiny.flux(), tiny.flux()
    two.vae = one.vae
    seen: list[str] = []
    with tightfit.Session(card=virtual(GIB)) as session:
        session.fit(one)
        session.fit(two)
        session.fitted(one).before_decode = lambda latent: seen.append("one")
        session.fitted(two).before_decode = lambda latent: seen.append("two")
        for pipe in (one, two, one):
            call(pipe, "flux", output="pt")
        assert seen == ["one", "two", "one"]
        assert len(session.fitted(one).codings) == 2 * len(session.fitted(two).codings) > 0


def test_two_threads_get_what_each_would_alone() -> None:
    """Their steps take turns on the card, within the budget."""
    card = virtual(GIB)
    expected = {kind: roomy(kind) for kind in ("flux", "sdxl")}
    card.reset_peaks()
    with tightfit.Session(card=card, vram=TIGHT) as session:
        pipes = {"flux": session.fit(tiny.flux()), "sdxl": session.fit(tiny.sdxl())}

        def work(kind: str) -> Callable[[], None]:
            def run() -> None:
                assert torch.equal(call(pipes[kind], kind), expected[kind])

            return run

        with threads(*map(work, pipes)) as wrong:
            pass
        assert not wrong
        assert not any(fitted.attempts for fitted in _networks(session, pipes.values()))
    assert (card.read().peak_allocated or 0) <= TIGHT
    pipes.clear()  # their schedulers have times on the card
    gc.collect()
    assert_back(card)


def test_networks_leave_a_little_to_what_other_threads_do_between_theirs() -> None:
    """Once a second thread calls: its latents come and go while the first one's network runs."""
    module, x, card = network(), inputs(), virtual(GIB)
    with tightfit.Session(card=card) as session, torch.no_grad():
        session.fit(module)
        expected = module(x).cpu()

        def peak() -> int:
            module(x)
            card.reset_peaks()
            assert torch.equal(module(x).cpu(), expected)
            return card.read().peak_allocated or 0

        def fills(budget: int) -> bool:
            session.budget = budget
            return peak() > budget - budget // 32

        budget = next(size * KIB for size in range(230, 170, -4) if fills(size * KIB))
        filled = peak()
        with threads(lambda: _called(module, x)) as wrong:
            pass
        assert not wrong
        assert peak() <= budget - budget // 32 < filled <= budget
        for _ in range(70):
            module(x)
        assert peak() == filled


def _called(module: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        module(x)


def _networks(session: tightfit.Session, pipes: Any) -> list[Any]:
    return [each for pipe in pipes for each in session.fitted(pipe).networks.values()]


@pytest.mark.parametrize("who", ["the caller", "another thread"])
def test_a_new_budget_is_obeyed_by_the_next_step(who: str) -> None:
    """While a picture is made: the same bits, and no peak above it from then on."""
    card, low = virtual(GIB), 1400 * KIB
    peaks: list[int] = []
    with tightfit.Session(card=card) as session:
        pipe = session.fit(tiny.flux())

        def lower(pipe: Any, step: int, time: Any, given: dict[str, Any]) -> dict[str, Any]:
            del pipe, time
            if step == 0 and who == "the caller":
                session.budget = low
            elif step == 0:
                with threads(lambda: setattr(session, "budget", "1400KiB")) as wrong:
                    pass
                assert not wrong
            card.reset_peaks()
            peaks.append(allocated(card))
            return given

        assert torch.equal(call(pipe, "flux", callback_on_step_end=lower), roomy("flux"))
        assert peaks[1] <= low
        assert (card.read().peak_allocated or 0) <= low
        assert session.budget == low
        assert torch.equal(call(pipe, "flux"), roomy("flux"))
        assert (card.read().peak_allocated or 0) <= low
        session.budget = "1GiB"
        for _ in range(3):
            assert torch.equal(call(pipe, "flux"), roomy("flux"))
        assert not tightfit.fitted(pipe).networks["transformer"].session.residency.streamed


def test_idle_models_leave_at_once_when_the_budget_is_lowered() -> None:
    """Nobody has to call anything for it."""
    card = virtual(GIB)
    with tightfit.Session(card=card) as session:
        call(session.fit(tiny.flux()), "flux")
        assert allocated(card) > 400 * KIB
        session.budget = 400 * KIB
        assert allocated(card) <= 400 * KIB
        with pytest.raises(UsageError, match="above what"):
            session.budget = "2GiB"
        assert session.budget == 400 * KIB


def test_free_tells_what_came_free() -> None:
    """By the card's own count; the next call brings it back."""
    card = virtual(GIB)
    with tightfit.Session(card=card) as session:
        pipe = session.fit(tiny.flux())
        call(pipe, "flux")
        before = allocated(card)
        freed = session.free()
        assert freed == before - allocated(card) > 500 * KIB
        assert all(each.taken == 0 for each in tightfit.fitted(pipe).networks.values())
        assert session.free() == 0
        assert torch.equal(call(pipe, "flux"), roomy("flux"))


@pytest.mark.parametrize("where", ["step", "network", "decode"])
def test_cancel_stops_what_runs_and_nothing_else(where: str) -> None:
    """From another thread; the card holds no more than before, and the next picture is right."""
    card = virtual(GIB)
    with tightfit.Session(card=card, vram=TIGHT) as session:
        pipe = session.fit(tiny.flux())
        assert session.cancel() == 0
        assert torch.equal(call(pipe, "flux"), roomy("flux"))
        session.free()
        gc.collect()
        before, begun, go_on = allocated(card), threading.Event(), threading.Event()

        def pause(*given: Any) -> Any:
            begun.set()
            assert go_on.wait(30)
            return given[-1] if where == "step" else None

        more: dict[str, Any] = {"callback_on_step_end": pause} if where == "step" else {}
        hook = None
        if where == "network":
            hook = pipe.transformer.transformer_blocks[0].register_forward_pre_hook(pause)
        elif where == "decode":
            session.fitted(pipe).before_decode = pause
        said: list[str] = []

        def work() -> None:
            try:
                call(pipe, "flux", output="pt", **more)
            except Cancelled as error:
                said.append(str(error))

        with threads(work) as wrong:
            assert begun.wait(30)
            assert session.cancel() == 1
            go_on.set()
        assert not wrong
        assert len(said) == 1
        if hook is not None:
            hook.remove()
        session.fitted(pipe).before_decode = None
        session.free()
        gc.collect()
        assert allocated(card) <= before + 2 * KIB  # the scheduler's own times
        assert torch.equal(call(pipe, "flux"), roomy("flux"))


def test_a_call_of_a_module_is_cancelled_when_it_is_over() -> None:
    """Its caller's next one is not meant."""
    module, x, card = network(), inputs(), virtual(GIB)
    expected = wanted(module, lambda card: module(x.to(card.device)))
    with tightfit.Session(card=card) as session, torch.no_grad():
        session.fit(module)
        hook = module.blocks[0].register_forward_pre_hook(lambda *_: session.cancel() and None)
        with pytest.raises(Cancelled):
            module(x)
        hook.remove()
        assert torch.equal(module(x).cpu(), expected)


def test_everything_comes_back_after_an_error() -> None:
    """The error passes, and the card is as it was."""
    card, pipe, module = virtual(GIB), tiny.sdxl(), network()
    session = tightfit.Session(card=card, vram=TIGHT)

    def fail(pipe: Any) -> None:
        with session:
            session.fit(pipe)
            session.fit(module)
            call(pipe, "sdxl")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(pipe)
    for thing in (pipe, module):
        with pytest.raises(UsageError, match="not fitted"):
            tightfit.fitted(thing)
    with pytest.raises(UsageError, match="closed"):
        session.fit(pipe)
    assert session.close() == 0
    del pipe, thing  # its scheduler has times on the card
    gc.collect()
    assert_back(card)


def test_what_stays_on_the_card_is_said() -> None:
    """What calls returned is the caller's, and not freed."""
    card, module, x = virtual(GIB), network(), inputs()
    with tightfit.Session(card=card) as session, torch.no_grad():
        session.fit(module)
        kept = module(x)
    assert session.notes == [
        f"{card.name}: {format_bytes(allocated(card))} more is held than at the beginning"
    ]
    del kept


def test_a_session_that_is_closed_in_a_call_says_what_it_could_not_give_back() -> None:
    """All others are given back; when the call is over, the rest is."""
    card, module, other, x = virtual(GIB), network(), network(), inputs()
    session = tightfit.Session(card=card)
    session.fit(module)
    session.fit(other)
    said: list[str] = []

    def close(*_: object) -> None:
        with pytest.raises(UsageError) as error:
            session.close()
        said.append(str(error.value))

    hook = module.blocks[0].register_forward_pre_hook(close)
    with torch.no_grad(), pytest.raises(Cancelled):
        module(x)
    hook.remove()
    assert (
        said == ["not all could be given back: `Net` is being called: unfit it after."]
        or "is being called" in said[0]
    )
    with pytest.raises(UsageError, match="not fitted"):
        tightfit.fitted(other)
    session.close()
    with pytest.raises(UsageError, match="not fitted"):
        tightfit.fitted(module)
    assert_back(card)


def test_a_part_is_fitted_by_one_session_alone() -> None:
    """A sentence says so, whether it is a network or a VAE, and nothing is half fitted."""
    pipe, other = tiny.flux(), tiny.flux()
    other.vae = pipe.vae
    with tightfit.Session(card=virtual(GIB)) as one, tightfit.Session(card=virtual(GIB)) as two:
        one.fit(pipe)
        with pytest.raises(UsageError, match="fitted already"):
            two.fit(pipe)
        with pytest.raises(UsageError, match="fitted already"):
            two.fit(other)
        with pytest.raises(UsageError, match="not fitted"):
            tightfit.fitted(other.transformer)
        with pytest.raises(UsageError, match="fitted already"):
            two.fit(pipe.transformer)
        with pytest.raises(UsageError, match="unfit the pipeline"):
            tightfit.unfit(pipe.transformer)
        with pytest.raises(UsageError, match="not fitted by this session"):
            two.unfit(pipe)
        tightfit.unfit(pipe)
        two.fit(other)


def test_a_module_of_a_session_is_unfitted_by_either_door() -> None:
    """And can be fitted again."""
    module = network()
    with tightfit.Session(card=virtual(GIB)) as session:
        session.fit(module)
        with pytest.raises(UsageError, match="fitted already"):
            session.fit(module)
        tightfit.unfit(module)
        session.fit(module)
        session.unfit(module)
        tightfit.fit(module, card=virtual(GIB))
        tightfit.unfit(module)


def test_the_ledger_is_a_screenful() -> None:
    """A line for the card, and one for each model."""
    with tightfit.Session(card=virtual(GIB), vram=TIGHT) as session:
        for kind in ("flux", "sdxl", "wan"):
            call(session.fit(KINDS[kind][0]()), kind)
        lines = session.explain().splitlines()
        assert f"budget {format_bytes(TIGHT)} of 1.0 GiB" in lines[0]
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 120
        for name in ("FluxPipeline.transformer", "StableDiffusionXLPipeline.unet"):
            assert sum(line.strip().startswith(f"{name}: ") for line in lines) == 1
        transformer = next(line for line in lines if "FluxPipeline.transformer:" in line)
        assert format_bytes(weight_bytes(tiny.flux().transformer)) in transformer


def test_what_each_network_took_is_told() -> None:
    """Calls, and seconds that together are no more than those of the pipeline."""
    import time

    with tightfit.Session(card=virtual(GIB)) as session:
        pipe = session.fit(tiny.flux())
        start = time.perf_counter()
        call(pipe, "flux", output="pt")
        times = session.fitted(pipe).times
        seconds = time.perf_counter() - start
    assert {name: spent.calls for name, spent in times.items()} == {
        "vae": 1,
        "text_encoder": 1,
        "text_encoder_2": 1,
        "transformer": 2,
    }
    assert 0 < sum(spent.seconds for spent in times.values()) <= seconds


def test_a_full_card_is_a_sentence_and_the_session_goes_on() -> None:
    """With a larger budget the same session makes the picture."""
    with tightfit.Session(card=virtual(GIB), vram=900 * KIB) as session:
        pipe = session.fit(tiny.flux())
        with pytest.raises(MemoryShortage, match="Not enough memory to run"):
            call(pipe, "flux")
        session.budget = TIGHT
        assert torch.equal(call(pipe, "flux"), roomy("flux"))


def test_two_cards_have_each_their_own() -> None:
    """What is fitted says for which it is."""
    one, two = virtual(GIB), virtual(GIB)
    modules, x = [network(), network()], inputs()
    with tightfit.Session(cards=(one, two), vram="512MiB") as session, torch.no_grad():
        for module, card in zip(modules, (0, two), strict=True):
            session.fit(module, card=card)
        results = [module(x) for module in modules]
        assert [each.device for each in results] == [one.device, two.device]
        assert torch.equal(results[0].cpu(), results[1].cpu())
        assert len(session.explain().splitlines()) == 4
        with pytest.raises(UsageError, match="has no card"):
            session.fit(network(), card=2)
    with pytest.raises(UsageError, match="both given"):
        tightfit.Session(card=one, cards=(two,))


def test_two_cards_work_at_once() -> None:
    """A thread for each: each call waits for one of the other card, and each result is right."""
    cards, both = (virtual(GIB), virtual(GIB)), threading.Barrier(2)
    modules, x = [network(), network((0, 2, 0, 1))], inputs()
    expected = [_wanted(module, x) for module in modules]

    def meet(*_: object) -> None:
        both.wait(30)

    with tightfit.Session(cards=cards, vram="300KiB") as session:
        for at, module in enumerate(modules):
            session.fit(module, card=at)
            _called(module, x)
        hooks = [module.blocks[1].register_forward_pre_hook(meet) for module in modules]

        def work(at: int) -> None:
            with torch.no_grad():
                for _ in range(4):
                    assert torch.equal(modules[at](x).cpu(), expected[at])

        with threads(lambda: work(0), lambda: work(1)) as wrong:
            pass
        assert not wrong
        for hook in hooks:
            hook.remove()
    gc.collect()
    for card in cards:
        assert (card.read().peak_allocated or 0) <= 300 * KIB
        assert_back(card)


def _wanted(module: Any, x: torch.Tensor) -> torch.Tensor:
    return wanted(module, lambda card: module(x.to(card.device)))


def test_a_link_is_measured_once_for_each_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many networks come to it; a card that was full is asked again."""
    found, asked = [LinkRates(None, None, "full"), LinkRates(5, 5, ""), LinkRates(5, 5, "")], []

    def measure(device: torch.device, *, free: int | None) -> LinkRates:
        asked.append((device, free))
        return found.pop(0)

    monkeypatch.setattr(fitting, "measure_link", measure)
    one, two = virtual(GIB), virtual(GIB)
    assert [fitting.link_of(one).pinned for _ in range(4)] == [None, 5, 5, 5]
    assert fitting.link_of(two).pinned == 5
    assert len(asked) == 3
