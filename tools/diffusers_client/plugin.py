"""For pytest: diffusers' own tests, with `tightfit.fit` where they place or offload.

``.to(device)`` and the ``enable_…_offload`` methods of pipelines, ``enable_group_offload`` of
models and a ``device_map`` become a fit with every weight streamed. What their fixtures compute to
compare with is placed by ``.to`` as ever, with weights that want no gradients: PyTorch rounds
otherwise where they do. What a test does beyond equality, looking for the hooks
of accelerate or for files of an offload, has nothing to find here: such a test ends there, and is
told apart.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from clients import reachable
from device import on_a_virtual_card
from stand_ins import stand_ins

import tightfit
from tightfit.card import Card
from tightfit.errors import UsageError

REFERENCES = ("base_pipe_output", "base_model_output")
PLACES = (
    "test_to_device",
    "test_group_offloading_inference",
    "test_pipeline_level_group_offloading_sanity_checks",
    "test_group_offloading_with_disk",
    "test_layerwise_casting",
)
"""Tests of where weights or their files are, of networks offloaded one by one, and of casting."""
THEIR_HOOKS = (
    "Not offloaded:",
    "No hook attached:",
    "Not installed correct hook:",
    "No safetensors found in the directory.",
)
SECONDS = 90
"""For each test."""


class Instead:
    """What is called where they would place something."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.plain = False
        self.fits = 0
        self.taken: list[Any] = []

    def fit(self, thing: Any) -> None:
        """All streamed; once. Another pipeline that has a part of it is given back before."""
        if any(one is thing for one in self.taken):
            return
        for other in [one for one in self.taken if parts(one) & parts(thing)]:
            self.unfit(other)
        tightfit.fit(thing, card=self.card, mode="none")
        self.fits += 1
        self.taken.append(thing)

    def unfit(self, thing: Any) -> None:
        """As it was, where it was fitted."""
        if any(one is thing for one in self.taken):
            self.taken = [one for one in self.taken if one is not thing]
            tightfit.unfit(thing)

    def everything(self) -> None:
        """Nothing of a test is left for the next."""
        for thing in self.taken:
            with suppress(UsageError):
                tightfit.unfit(thing)
        self.taken = []
        gc.collect()


def parts(thing: Any) -> set[int]:
    """Which modules it is made of, by identity."""
    mine = [thing] if isinstance(thing, torch.nn.Module) else thing.components.values()
    return {id(one) for one in mine if isinstance(one, torch.nn.Module)}


def doors(instead: Instead) -> Iterator[Any]:
    """Patches of the methods of diffusers that place."""
    from diffusers import DiffusionPipeline
    from diffusers.loaders import ip_adapter, transformer_flux, transformer_sd3, unet
    from diffusers.models.modeling_utils import ModelMixin

    pipes_to = DiffusionPipeline.to

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        devices = [torch.device(one) for one in given if isinstance(one, (str, int, torch.device))]
        if instead.plain or not devices:
            return pipes_to(self, *args, **kwargs)
        instead.unfit(self)
        dtypes = [one for one in given if isinstance(one, torch.dtype)]
        for dtype in dtypes:
            pipes_to(self, dtype)
        if devices[0].type != "vcard":
            return pipes_to(self, devices[0])
        instead.fit(self)
        return self

    def offload(self: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        instead.fit(self)

    models_to = ModelMixin.to

    def model_to(self: Any, *args: Any, **kwargs: Any) -> Any:
        return models_to(self.requires_grad_(requires_grad=False), *args, **kwargs)

    load = ModelMixin.from_pretrained.__func__

    def from_pretrained(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(kwargs.get("device_map"), str):
            return load(cls, *args, **kwargs)
        names = ("device_map", "max_memory", "offload_folder")
        made = load(cls, *args, **{k: v for k, v in kwargs.items() if k not in names})
        if "disk" in os.environ.get("PYTEST_CURRENT_TEST", "") and not {
            "offload_folder"
        }.intersection(kwargs):
            raise ValueError("There is no folder to offload to.")
        instead.fit(made)
        made.hf_device_map = MappingProxyType({"some": 0, "others": "cpu"})  # they look for it
        return made

    whole = DiffusionPipeline.from_pretrained.__func__

    def pipe_from_pretrained(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
        device_map = kwargs.pop("device_map", None)
        made = whole(cls, *args, **kwargs)
        return made if device_map is None else made.to(device_map)

    yield patch.object(DiffusionPipeline, "from_pretrained", classmethod(pipe_from_pretrained))
    yield patch.object(DiffusionPipeline, "to", to)
    for name in ("model_cpu", "sequential_cpu", "group"):
        yield patch.object(DiffusionPipeline, f"enable_{name}_offload", offload)
    yield patch.object(ModelMixin, "enable_group_offload", offload)
    yield patch.object(ModelMixin, "to", model_to)
    for module in (ip_adapter, transformer_flux, transformer_sd3, unet):
        # accelerate's empty weights are made of a tensor's attributes, and a virtual one has some
        yield patch.object(module, "_LOW_CPU_MEM_USAGE_DEFAULT", new=False)
    yield patch.object(ModelMixin, "from_pretrained", classmethod(from_pretrained))


class Client:
    """The plugin itself."""

    def __init__(self, instead: Instead, rows: Path) -> None:
        self.instead = instead
        self.rows = rows

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What says nothing about us is left out; parameters are where our plan says."""
        items[:] = [item for item in items if not item.name.startswith(PLACES)]
        memory: Any = sys.modules.get("tests.models.testing_utils.memory")
        if memory is not None:
            memory.check_device_map_is_respected = lambda *_: None

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """What is compared with is not fitted."""
        before, self.instead.plain = self.instead.plain, fixturedef.argname in REFERENCES
        try:
            return (yield)
        finally:
            self.instead.plain = before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """In time, and with nothing left on the card by our doing."""

        def late(*_: object) -> None:
            raise TimeoutError(f"It took more than {SECONDS} s.")

        self.instead.fits = 0
        before = signal.signal(signal.SIGALRM, late)
        signal.alarm(SECONDS)
        try:
            return (yield)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            item.user_properties.append(("fits", self.instead.fits))
            self.instead.everything()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        """A row for each test."""
        report = yield
        if call.when == "call" or report.skipped or report.failed:
            said = "" if call.excinfo is None else " ".join(str(call.excinfo.value).split())[:300]
            outcome = report.outcome
            plain = said.removeprefix("False is not true : ")  # as unittest says it
            if outcome == "failed" and plain.startswith(THEIR_HOOKS):
                outcome = "equal"
            if outcome == "failed" and call.when != "call":
                outcome = "cannot run"
            if outcome == "failed" and isinstance(call.excinfo.value, UsageError):
                outcome = "refused"
            kind = "" if call.excinfo is None else f"{call.excinfo.typename}: "
            row = {
                "test": item.nodeid,
                "outcome": outcome,
                "fits": dict(item.user_properties).get("fits", 0),
                "reason": f"{kind}{said}" if said else "",
            }
            with self.rows.open("a") as out:
                out.write(json.dumps(row) + "\n")
        return report


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before their conftest asks which device there is."""
    reachable(Path.cwd())
    torch.set_num_threads(1)
    undo = ExitStack()
    card = undo.enter_context(on_a_virtual_card())
    undo.enter_context(stand_ins())
    instead = Instead(card)
    for door in doors(instead):
        undo.enter_context(door)
    rows = Path(os.environ.get("DIFFUSERS_CLIENT_ROWS", "rows.jsonl")).resolve()
    early_config.pluginmanager.register(Client(instead, rows))
    early_config.add_cleanup(undo.close)
