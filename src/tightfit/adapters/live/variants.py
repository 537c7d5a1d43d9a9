"""The same pipeline for other work: from a picture, within a mask, by another scheduler."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tightfit.adapters.libraries import class_named, quiet, said_by_us
from tightfit.adapters.loading.schedulers import exchanged
from tightfit.errors import UsageError


def class_for(class_name: str, *, image: bool = False, mask: bool = False) -> type:
    """The class of pipeline that does this work: `class_name` itself, or its variant.

    Raises `UsageError` where diffusers has none, and `InputError` for an unknown class.
    """
    with quiet():
        own: type = class_named("diffusers", class_name)
        takes = inspect.signature(own.__call__).parameters
        wanted = "mask_image" if mask else "image"
        if not (image or mask) or wanted in takes:
            return own
        variant = _mapped(class_name, mask=mask)
    if variant is None:
        option = "--mask" if mask else "--image"
        raise UsageError(f"{class_name} takes no {option}, and diffusers has no variant that does.")
    return variant


def variant_of(pipe: Any, kind: type) -> Any:
    """`pipe` as a pipeline of class `kind`, which shares its networks; itself where it is one."""
    if isinstance(pipe, kind):
        return pipe
    mask = "mask_image" in inspect.signature(kind.__call__).parameters
    door = "AutoPipelineForInpainting" if mask else "AutoPipelineForImage2Image"
    with said_by_us(f"{kind.__name__} from {type(pipe).__name__}"):
        return class_named("diffusers", door).from_pipe(pipe)


@contextmanager
def by_scheduler(pipe: Any, name: str | None) -> Iterator[None]:
    """While inside, `pipe` goes by the scheduler called `name`, set up as its own is.

    None is a copy of its own, so that that one keeps no step of the calls, nor tensors on a card.
    Raises `UsageError` for a name that is none, or whose kind does not go with this pipeline.
    """
    own = pipe.scheduler
    pipe.scheduler = copy.deepcopy(own) if name is None else exchanged(own, name)
    try:
        yield
    finally:
        pipe.scheduler = own


@contextmanager
def in_silence() -> Iterator[None]:
    """While inside, diffusers and transformers neither log nor warn.

    For a process of its own, such as the command line: it holds the one door to them. They set up
    their loggers when they are first imported, so that comes first.
    """
    with quiet():
        class_named("transformers", "PreTrainedModel")
        class_named("diffusers", "DiffusionPipeline")
    with quiet():
        yield


@contextmanager
def without_bar(pipe: Any) -> Iterator[None]:
    """While inside, the pipeline shows no progress bar of its own."""
    before = vars(pipe).get("_progress_bar_config")
    pipe.set_progress_bar_config(**{**(before or {}), "disable": True})
    try:
        yield
    finally:
        if before is None:
            del pipe._progress_bar_config
        else:
            pipe._progress_bar_config = before


def _mapped(class_name: str, *, mask: bool) -> type | None:
    from diffusers.pipelines import auto_pipeline

    table = (
        auto_pipeline.AUTO_INPAINT_PIPELINES_MAPPING
        if mask
        else auto_pipeline.AUTO_IMAGE2IMAGE_PIPELINES_MAPPING
    )
    found: type | None = auto_pipeline._get_task_class(
        table, class_name, throw_error_if_not_exist=False
    )
    return found
