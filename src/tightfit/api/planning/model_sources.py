"""From what a user wrote to models that can be weighed: files, folders, names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tightfit.card.outlook import Outlook
from tightfit.errors import InputError
from tightfit.plan.size import Size
from tightfit.run.planning.model import Model, Shaped
from tightfit.run.planning.weighed import weigh_path

if TYPE_CHECKING:
    from tightfit.run.planning.weighed import Weighed

USUAL = Size(1024, 1024)
_CONFIGURED = ("model_index.json", "config.json")
"""A folder with one of these says how its networks are built."""


class Weigher(Protocol):
    """Does what takes long, for a job of some size."""

    def __call__(self, size: Size, *, encodes: bool) -> Weighed:
        """`encodes`: an autoencoder that stands alone is asked about both ways."""


@dataclass(frozen=True)
class ModelSource:
    """A model that was found, and is not weighed yet.

    Attributes:
        usual: the size that it is usually asked for; None is unknown.
        shapes: its stages, with the sizes that they take.
        weigh: tells what it holds.
    """

    usual: Size | None
    shapes: Sequence[Shaped]
    weigh: Weigher


def find_model(
    spec: str, card: Outlook, dtype: str | None, steps: int, dry_run: bool
) -> ModelSource:
    """By headers where that is enough, else through the libraries that know the model.

    Raises `UsageError` for a name that is unknown, and `InputError` for what cannot be read.
    """
    path = Path(spec).expanduser()
    if spec.partition(":")[0] in ("random", "mini"):
        return _built(spec, card, dtype=dtype, steps=steps)
    if not path.exists():
        raise InputError(
            f"Model `{spec}` is no file or folder here; use random:NAME for the true size of a "
            "known model. One on a hub has to be downloaded first."
        )
    weighed = weigh_path(path, card, dtype=dtype, steps=steps)
    if path.is_dir() and any((path / name).is_file() for name in _CONFIGURED):
        try:
            return _built(spec, card, dtype=dtype, steps=steps)
        except InputError as error:
            said = f"no dry run of {spec}: {str(error).rstrip('.')}"
            weighed = replace(weighed, notes=(*weighed.notes, said))
            dry_run = False

    def weigh(size: Size, *, encodes: bool) -> Weighed:
        models = tuple(one for one in weighed.models if encodes or one.stage != "encode")
        if not dry_run:
            return replace(weighed, models=models)
        from tightfit.api.planning.parts_source import gauges_of

        models, notes = gauges_of(models, size, card)
        return replace(weighed, models=models, notes=(*weighed.notes, *notes))

    return ModelSource(weighed.usual, weighed.models, weigh)


def _built(spec: str, card: Outlook, *, dtype: str | None, steps: int) -> ModelSource:
    """On the meta device, by those who know how."""
    from tightfit.api.planning.parts_source import PartsSource

    parts = PartsSource.of(spec)

    def weigh(size: Size, *, encodes: bool) -> Weighed:
        return parts.weigh(size, card, dtype=dtype, steps=steps, encodes=encodes)

    return ModelSource(parts.usual, parts.shapes, weigh)


def usual_size(sources: Sequence[ModelSource]) -> Size:
    """Of what denoises, else of the first that has one."""
    denoise = [s for s in sources if any(shape.stage == "denoise" for shape in s.shapes)]
    return next((s.usual for s in (*denoise, *sources) if s.usual is not None), USUAL)


def told_apart(weighed: Sequence[Weighed]) -> list[Model]:
    """Every network under a name of its own, since stages of one name share their weights."""
    found: Counter[str] = Counter()
    models: list[Model] = []
    for each in weighed:
        before: Counter[tuple[str, str]] = Counter()
        names: dict[tuple[str, int], str] = {}
        for model in each.models:
            network = (model.name, before[model.name, model.stage])
            before[model.name, model.stage] += 1
            if network not in names:
                found[model.name] += 1
                number = found[model.name]
                names[network] = model.name if number == 1 else f"{model.name} #{number}"
            models.append(replace(model, name=names[network]))
    return models
