"""Cards on paper: what is known of one before it is opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.card.stub_nvml import StubDevice, StubNvml
from tightfit.card.known import known_card
from tightfit.card.machine import Machine, MeasuredCard
from tightfit.card.outlook import Outlook, look
from tightfit.card.virtual.spec import parse_virtual
from tightfit.errors import UsageError
from tightfit.settings import Settings
from tightfit.units import GIB, MIB

NOBODY = StubNvml(broken=("nvmlInit",))


def settings(folder: Path, **changes: str) -> Settings:
    """An environment that says no more than `changes`."""
    return Settings.from_environ({"XDG_CACHE_HOME": str(folder), **changes})


def seen(folder: Path, *devices: StubDevice, name: str | None = "cuda:0", **env: str) -> Outlook:
    """The outlook on a machine with these devices."""
    return look(name, settings=settings(folder, **env), ask=StubNvml(*devices))


def test_without_a_device_the_host_is_planned_for_and_that_is_said(tmp_path: Path) -> None:
    """Its memory, no allocator, no context, and a note."""
    for name in (None, "cpu", " cpu "):
        host = look(name, settings=settings(tmp_path), ask=NOBODY)
        assert (host.name, host.kind, host.allocator, host.context) == ("cpu", "cpu", "none", 0)
        assert not host.scratch
        assert host.held_by_others is not None
        assert 0 <= host.held_by_others < host.total
        assert host.note is not None
        assert "no card" in host.note


def test_a_size_alone_is_a_bare_card(tmp_path: Path) -> None:
    """No context, no scratch, no rates; reserved is allocated."""
    card = look(None, size="6GiB", settings=settings(tmp_path), ask=NOBODY)
    assert (card.name, card.total, card.allocator) == ("virtual:6GiB", 6 * GIB, "exact")
    assert (card.context, card.held_by_others, card.scratch) == (0, 0, False)
    assert (card.link, card.flops, card.product) == (None, None, None)
    assert "bare size" in (card.note or "")
    assert card == look("virtual:6GiB", settings=settings(tmp_path), ask=NOBODY)


def test_a_known_card_brings_its_figures_from_the_table(tmp_path: Path) -> None:
    """Memory, context, link and arithmetic; and the plan says that it is a table."""
    known = known_card("rtx-3060")
    card = look("virtual:rtx-3060", settings=settings(tmp_path), ask=NOBODY)
    assert (card.product, card.total, card.context) == ("rtx-3060", known.total, known.context)
    assert (card.link, card.flops, card.bf16) == (known.link_bytes_per_s, known.flops, True)
    assert (card.context_source, card.link_source, card.allocator) == ("table", "table", "native")
    assert "table of public figures" in (card.note or "")
    assert look("virtual:gtx-1660", settings=settings(tmp_path), ask=NOBODY).bf16 is False


def test_options_of_a_virtual_card_are_kept(tmp_path: Path) -> None:
    """What others hold, and an allocator, which brings scratch with it."""
    spec = "virtual:8GiB,allocator=async,others=1GiB,context=300MiB"
    card = look(spec, settings=settings(tmp_path), ask=NOBODY)
    assert (card.held_by_others, card.context, card.allocator) == (GIB, 300 * MIB, "async")
    assert (card.context_source, card.scratch, card.note) == ("measured", True, None)


def test_a_virtual_card_says_how_fast_it_is_reached(tmp_path: Path) -> None:
    """From the host before what the table has, and from another card; no rate is 0."""
    told = settings(tmp_path)
    assert look("virtual:8GiB,link=25GB", settings=told, ask=NOBODY).link == 25_000_000_000
    table = look("virtual:rtx-3060", settings=told, ask=NOBODY).link
    assert look("virtual:rtx-3060,link=1GiB", settings=told, ask=NOBODY).link == GIB != table
    assert parse_virtual("8GiB,peer=200GB")[0].peer == 200_000_000_000
    assert parse_virtual("8GiB")[0].peer is None
    with pytest.raises(UsageError, match="peer"):
        parse_virtual("8GiB,peer=0")


def test_a_device_brings_what_the_driver_says(tmp_path: Path) -> None:
    """Total, what is taken now, its slot; the rest by its name in the table."""
    card = seen(tmp_path, StubDevice())
    assert (card.kind, card.product) == ("cuda", "rtx-3060")
    assert (card.total, card.held_by_others) == (12 * GIB, 3 * GIB)
    assert (card.context, card.context_source) == (known_card("rtx-3060").context, "table")
    assert (card.allocator, card.note) == ("native", None)
    assert card == seen(tmp_path, StubDevice(), name=None)
    assert card.link == known_card("rtx-3060").link_bytes_per_s


def test_the_narrower_slot_counts(tmp_path: Path) -> None:
    """Eight lanes carry half of sixteen."""
    wide, narrow = seen(tmp_path, StubDevice()), seen(tmp_path, StubDevice(width_max=8))
    assert wide.link is not None
    assert narrow.link is not None
    assert abs(2 * narrow.link - wide.link) <= 2


def test_the_environment_says_which_allocator_runs(tmp_path: Path) -> None:
    """The one that PyTorch would take."""
    asked = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    assert seen(tmp_path, StubDevice(), **asked).allocator == "async"


def test_a_device_that_is_in_no_table_is_planned_for_with_what_is_known(tmp_path: Path) -> None:
    """Memory and link are the driver's; arithmetic is unknown, and it is said."""
    card = seen(tmp_path, StubDevice(name="NVIDIA Something 9000"))
    assert (card.product, card.flops, card.bf16) == (None, None, None)
    assert card.context == 400 * MIB
    assert "not in the table" in (card.note or "")


def test_what_doctor_measured_counts_before_the_table(tmp_path: Path) -> None:
    """Link, other copies, context and disk, of this very device."""
    device = StubDevice()
    measured = MeasuredCard(link=20 * 10**9, staged=5 * 10**9, context=333 * MIB)
    Machine({device.uuid: measured}, disk=10**9).keep(tmp_path / "tightfit")
    card = seen(tmp_path, device)
    assert (card.link, card.link_source, card.staged) == (20 * 10**9, "measured", 5 * 10**9)
    assert (card.context, card.context_source, card.disk) == (333 * MIB, "measured", 10**9)
    other = seen(tmp_path, StubDevice(uuid="GPU-other"))
    assert (other.link_source, other.context_source, other.disk) == ("table", "table", 10**9)
    bare = look("virtual:6GiB", settings=settings(tmp_path), ask=NOBODY)
    assert (bare.link, bare.disk) == (None, 10**9)


def test_devices_are_numbered_as_cuda_numbers_them(tmp_path: Path) -> None:
    """The visible ones alone, in the order of the variable."""
    two = (StubDevice(), StubDevice(name="NVIDIA A100-SXM4-80GB", uuid="GPU-b", total=80 * GIB))
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert seen(tmp_path, *two, name="cuda:1", **order).total == 80 * GIB
    assert seen(tmp_path, *two, CUDA_VISIBLE_DEVICES="GPU-b").total == 80 * GIB


def test_of_devices_that_are_alike_any_is_planned_for(tmp_path: Path) -> None:
    """Which is `cuda:0` only CUDA can tell: what is taken of it is then unknown, not a guess."""
    two = (StubDevice(), StubDevice(uuid="GPU-b", bus="00000000:02:00.0"))
    for name in (None, "cuda:1"):
        card = seen(tmp_path, *two, name=name)
        assert (card.total, card.product, card.held_by_others) == (12 * GIB, "rtx-3060", None)


def test_devices_that_differ_are_not_guessed_between(tmp_path: Path) -> None:
    """The sentence says how to make it known."""
    two = (StubDevice(), StubDevice(name="NVIDIA A100-SXM4-80GB", uuid="GPU-b", total=80 * GIB))
    for name in (None, "cuda:0"):
        with pytest.raises(UsageError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
            seen(tmp_path, *two, name=name)


def test_devices_that_are_hidden_are_not_there(tmp_path: Path) -> None:
    """As for PyTorch."""
    assert seen(tmp_path, StubDevice(), name=None, CUDA_VISIBLE_DEVICES="").kind == "cpu"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpu", "use cuda:0, cpu, virtual:SIZE"),
        ("", "use cuda:0, cpu, virtual:SIZE"),
        ("rtx-3060", "Did you mean virtual:rtx-3060?"),
        ("RTX 3060", "rtx-3060"),
        ("cuda:one", "is unknown"),
        ("virtual:", "write virtual:SIZE"),
        ("virtual:rtx-4060-ti", "rtx-4060-ti-8gb or rtx-4060-ti-16gb"),
        ("virtual:2x4GiB", "names 2 cards"),
        ("cuda:3", "1 CUDA devices are visible"),
    ],
)
def test_what_is_no_card_is_refused_in_one_sentence(tmp_path: Path, name: str, words: str) -> None:
    """With the legal forms, or the near names."""
    with pytest.raises(UsageError, match=r".") as refused:
        seen(tmp_path, StubDevice(), name=name)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_machine_without_a_driver_says_so(tmp_path: Path) -> None:
    """And how to plan for a card that is not here."""
    with pytest.raises(UsageError, match=r"no CUDA device is visible.*virtual:rtx-3060"):
        look("cuda:0", settings=settings(tmp_path), ask=NOBODY)


def test_looking_imports_no_torch() -> None:
    """A plan must answer before torch would have been loaded."""
    code = (
        "import sys; from tightfit.card.outlook import look; look('virtual:rtx-3060'); look(None);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
