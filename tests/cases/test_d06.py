"""D06: two cards, and one master on the host for what both have of one file."""

from __future__ import annotations

import gc
import platform
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import tightfit
from tests.cases.common import assert_back, virtual
from tightfit.card.virtual.card import VirtualCard
from tightfit.units import KIB, MIB

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc/self/status")
WIDTH, DEPTH = 1024, 16
LARGEST = 4 * WIDTH * WIDTH


def model() -> nn.Module:
    """Of 64 MiB, without values."""
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))).eval()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)]
    found = tmp_path / "w.safetensors"
    save_file(nn.Sequential(*layers).state_dict(), found)
    return found


def masters() -> int:
    """Bytes of memory of our own that masters lie in: mappings that belong to no file."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssShmem:"):
            return int(line.split()[1]) * KIB
    raise AssertionError("the system does not tell")


def cards() -> tuple[VirtualCard, VirtualCard]:
    """Each has room for a quarter of the model."""
    return virtual(16 * MIB), virtual(16 * MIB)


def loaded(path: Path) -> list[nn.Module]:
    """Twice from the same file, as two programs of one process would."""
    return [tightfit.load_weights(model(), path) for _ in range(2)]


def test_d06_two_cards_have_one_master_of_a_file(path: Path) -> None:
    """The host's peak is the file once, and its largest tensor; both are right."""
    x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(1))
    whole = model()
    whole.load_state_dict(load_file(path), assign=True)
    big = virtual("1GiB")
    tightfit.fit(whole, card=big)
    with torch.no_grad():
        expected = whole(x).cpu()
    tightfit.unfit(whole)
    del whole
    gc.collect()
    first, second = cards()
    peaks, before = [], masters()
    with tightfit.Session(cards=(first, second)) as session, torch.no_grad():
        modules = loaded(path)
        for at, module in enumerate(modules):
            session.fit(module, card=at)
            for _ in range(2):
                value = module(x)
                assert value.device == session.cards[at].device
                assert torch.equal(value.cpu(), expected)
                peaks.append(masters() - before)
        streams = [tightfit.fitted(module).session for module in modules]
        assert all(each.residency.streamed for each in streams)
        assert streams[0].host.arena_bytes == streams[1].host.arena_bytes > path.stat().st_size // 2
        assert torch.equal(modules[0](x).cpu(), expected)
        peaks.append(masters() - before)
        assert max(peaks) <= path.stat().st_size + LARGEST
        del value
    for card in (first, second):
        assert (card.read().peak_reserved or 0) <= 16 * MIB
        assert_back(card)
    del streams
    gc.collect()
    assert masters() - before <= LARGEST


@pytest.mark.parametrize("way", ["resident", "overflow"])
def test_d06_holds_wherever_the_weights_lie(path: Path, way: str) -> None:
    """All of it on both cards; or on one card that streams from the other, and there as well."""
    x, before = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(1)), masters()
    first, second = virtual(16 * MIB if way == "overflow" else 80 * MIB), virtual(144 * MIB)
    values, peak = [], 0
    with tightfit.Session(cards=(first, second)) as session, torch.no_grad():
        for at, module in enumerate(loaded(path)):
            session.fit(module, card=at, overflow=1 if way == "overflow" and not at else None)
            values.append(module(x).cpu())
            peak = max(peak, masters() - before)
            if way == "overflow" and not at:
                assert tightfit.fitted(module).parked > 40 * MIB
                assert peak <= 16 * MIB  # of what stays: the rest is in its file, and over there
    assert torch.equal(*values)
    assert peak <= path.stat().st_size + LARGEST
    for card in (first, second):
        assert_back(card)


def fuse(module: nn.Module) -> None:
    """What a LoRA that is fused does, to weights on the host."""
    first = module[0]
    assert isinstance(first, nn.Linear)
    with torch.no_grad():
        first.weight.add_(1.0)


def test_d06_what_is_written_to_one_is_not_in_the_other(path: Path) -> None:
    """They share memory only as long as both are what the file is."""
    x = torch.ones(1, WIDTH)
    first, second = cards()
    with tightfit.Session(cards=(first, second)) as session, torch.no_grad():
        one, two = loaded(path)
        session.fit(one, card=0)
        session.fit(two, card=1)
        expected = one(x).cpu()
        assert torch.equal(two(x).cpu(), expected)
        session.unfit(one)
        fuse(one)
        assert torch.equal(two(x).cpu(), expected)
        session.fit(one, card=0)
        assert not torch.equal(one(x).cpu(), expected)
        assert torch.equal(two(x).cpu(), expected)
        values = two.state_dict()
    stored = load_file(path)
    assert all(torch.equal(values[name], stored[name]) for name in stored)
    assert all(torch.equal(value, stored[name]) for name, value in two.state_dict().items())


@pytest.mark.parametrize("changed", ["another file", "not a file"])
def test_d06_only_the_same_bytes_are_shared(path: Path, tmp_path: Path, changed: str) -> None:
    """Equal shapes are not enough, and what lies in memory has a master of its own."""
    other = tmp_path / "other.safetensors"
    save_file({name: value + 1 for name, value in load_file(path).items()}, other)
    one, two = tightfit.load_weights(model(), path), model()
    if changed == "another file":
        tightfit.load_weights(two, other)
    else:
        two.load_state_dict({k: v.clone() for k, v in load_file(other).items()}, assign=True)
    x, (first, second) = torch.ones(1, WIDTH), cards()
    results: list[torch.Tensor] = []
    with tightfit.Session(cards=(first, second)) as session, torch.no_grad():
        for at, module in enumerate((one, two)):
            session.fit(module, card=at)
            results.append(module(x).cpu())
        assert torch.equal(one(x).cpu(), results[0])
    assert not torch.equal(*results)


def test_d06_sessions_of_one_card_have_masters_of_their_own(path: Path) -> None:
    """Then nothing of a model depends on its file any more."""
    x, before = torch.ones(1, WIDTH), masters()
    one, two = loaded(path)
    with (
        tightfit.Session(card=cards()[0]) as first,
        tightfit.Session(card=cards()[0]) as second,
        torch.no_grad(),
    ):
        results = [session.fit(each)(x).cpu() for session, each in ((first, one), (second, two))]
        assert masters() - before > path.stat().st_size + LARGEST
    assert torch.equal(*results)
