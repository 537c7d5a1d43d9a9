"""The environment, read in one place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tightfit.errors import UsageError
from tightfit.settings import ALLOCATORS, Settings, choose_allocator

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked for, and what a test sets is gone after it."""
    for name in (OLD, NEW):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("text", "allocator"),
    [
        ("backend:cudaMallocAsync", "async"),
        ("expandable_segments:True", "expandable"),
        ("Expandable_Segments: true, max_split_size_mb:64", "expandable"),
        ("backend:native", "native"),
        ("backend:native,expandable_segments:True", "expandable"),
        ("expandable_segments:False", None),
        ("max_split_size_mb:64", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("name", [OLD, NEW])
def test_the_allocator_that_the_environment_asks_for(
    name: str, text: str, allocator: str | None
) -> None:
    """By either variable; None where it is silent."""
    assert Settings.from_environ({name: text}).allocator == allocator


def test_the_cache_is_where_the_desktop_says() -> None:
    """Or below the home folder."""
    assert Settings.from_environ({"XDG_CACHE_HOME": "/c"}).cache_dir == Path("/c/tightfit")
    assert Settings.from_environ({}).cache_dir == Path.home() / ".cache" / "tightfit"


def test_what_cuda_is_told_of_its_devices_is_read() -> None:
    """Unset is None; set to nothing hides every device, and is not the same."""
    told = Settings.from_environ({"CUDA_VISIBLE_DEVICES": "1,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert (told.visible_devices, told.device_order) == ("1,0", "PCI_BUS_ID")
    silent = Settings.from_environ({})
    assert silent.visible_devices is silent.device_order is None
    assert Settings.from_environ({"CUDA_VISIBLE_DEVICES": ""}).visible_devices == ""


@pytest.mark.parametrize("name", [OLD, NEW])
def test_what_chose_the_allocator_is_named_as_it_was_written(name: str) -> None:
    """The variable and its value; None where nothing is said."""
    assert (
        Settings.from_environ({name: "backend:native"}).allocator_words == f"{name}=backend:native"
    )
    assert Settings.from_environ({name: ""}).allocator_words is None


@pytest.mark.parametrize("name", ALLOCATORS)
def test_a_chosen_allocator_is_what_is_asked_for_afterwards(name: str) -> None:
    """Other settings of the user stay; choosing the same again changes nothing."""
    os.environ[NEW] = "max_split_size_mb:64"
    choose_allocator(name)
    assert Settings.from_environ().allocator == name
    assert os.environ[NEW].startswith("max_split_size_mb:64,")
    before = dict(os.environ)
    choose_allocator(name)
    assert dict(os.environ) == before


def test_a_users_own_choice_is_never_changed() -> None:
    """The contradiction is refused, with the variable that it is in."""
    os.environ[OLD] = "backend:cudaMallocAsync"
    with pytest.raises(UsageError, match=f"contradicts {OLD}=backend:cudaMallocAsync"):
        choose_allocator("native")
    assert os.environ[OLD] == "backend:cudaMallocAsync"


def test_an_unknown_allocator_is_refused_with_the_known_ones() -> None:
    """Nothing is set."""
    with pytest.raises(UsageError, match="use native, async, expandable"):
        choose_allocator("arena")
    assert OLD not in os.environ
