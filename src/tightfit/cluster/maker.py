"""What runs on a card: a pipeline that is loaded once, and the prompts that it is given."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack
from dataclasses import replace

import torch

from tightfit.adapters.live.variants import in_silence
from tightfit.api.batches.batch import ItemDone, failure
from tightfit.api.generation.asked import Asked
from tightfit.api.generation.timeline import Timeline
from tightfit.api.generation.workplace import Workplace
from tightfit.api.sharing.shared_vae import Codes
from tightfit.api.work import Watching
from tightfit.card import Card
from tightfit.cluster.prompt_task import PromptDone, PromptOrder, PromptTask
from tightfit.errors import Cancelled, InputError
from tightfit.plan.tilesize import parse_tile
from tightfit.run.ladder import empty_frames
from tightfit.weigh.files.pickles import pickles_allowed


class Maker:
    """One pipeline on one card, which makes one prompt after the other."""

    def __init__(self, order: PromptOrder, card: str | Card) -> None:
        """The pipeline is loaded. Raises as `generate` does."""
        torch.set_num_threads(order.threads)
        _enter(order)
        started = time.perf_counter()
        self._pickles = order.pickles
        self._open = ExitStack()
        with in_silence(), pickles_allowed(order.pickles):
            asked = Asked.of(order.pipeline, prompts=order.count, **order.options)
            coding = dict(order.coding)
            wish = parse_tile(coding.pop("tile"), coding.pop("overlap"))
            codes = Codes(wish, **coding)
            place = Workplace.opened(asked, card=card, codes=codes, **order.memory)
            self._card = place.memory.card
            if codes.estimate and asked.weights is None:
                place.refuse_too_large(Timeline(self._card, Watching()), started)
            self._ready = self._open.enter_context(place.ready())

    def __call__(self, task: PromptTask) -> PromptDone:
        """Make it, or tell why not; only `Cancelled` is raised.

        What is there and right is kept where the job resumes. One whose worker died goes on with
        what that left.
        """
        with in_silence(), pickles_allowed(self._pickles):
            try:
                done = self._made(task)
            except Cancelled:
                raise
            except Exception as error:
                done = failure(task.item, error)
                done = replace(done, error=f"`{task.text}`: {done.error}")
                empty_frames(error)
        return PromptDone(task.number, replace(done, held_bytes=self._card.read().allocated))

    def close(self) -> None:
        """Give the card back."""
        self._open.close()

    def _made(self, task: PromptTask) -> ItemDone:
        resume = self._ready.place.asked.resume
        if not task.fallen:
            return self._once(task, resume=resume)
        try:
            return self._once(task, resume=True)
        except InputError:
            if resume:
                raise
            return self._once(task, resume=False)  # what was left there is of another job

    def _once(self, task: PromptTask, *, resume: bool) -> ItemDone:
        timeline = Timeline(self._card, Watching())
        now = time.perf_counter()
        made, report = self._ready.make_one(
            task.number, task.text, timeline, started=now, resume=resume
        )
        there = all(each.frames is None for each in made)
        outcome = "kept" if there and not task.fallen else "written"
        return ItemDone(task.source, task.out, outcome, report=report)


def _enter(order: PromptOrder) -> None:
    """Paths mean here what they mean where the job was started. Raises `InputError`."""
    if order.folder.is_dir():
        os.chdir(order.folder)
    elif not os.path.isabs(order.options["out"]):
        raise InputError(
            f"{socket.gethostname()} does not see {order.folder}: give -o as a path that all "
            "machines of the cluster share."
        )
