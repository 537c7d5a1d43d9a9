"""A pipeline's call that is kept on disk while it runs, and gone on with after whatever ends it.

A pipeline cannot be entered half way, so it is called again from the start; what was done is gone
through without the work. Text is encoded again. Networks that the loop calls are not: they give
zeros, which nobody uses, since the scheduler makes no step of them; at the last step that was done
it takes the state that it had, generators do too, and the latents are those that were kept. What
comes after it has the bits that it would have had.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from tightfit.errors import InputError
from tightfit.place.streaming.compiled import Door
from tightfit.run.halfway.file import Halfway, check_place, damaged, read, write
from tightfit.run.halfway.randomness import draw_on, drawn_so_far
from tightfit.run.halfway.tape import Tape
from tightfit.run.halfway.trees import Packed, Records, blank, on_host, pack, unpack

_CONSTANT = (BuiltinFunctionType, FunctionType, MethodType, ModuleType, type)
_NOT_OF_THE_STATE = ("step", "_internal_dict")


@contextmanager
def kept(
    pipe: Any,
    path: Path,
    *,
    identity: Mapping[str, str],
    generators: Sequence[torch.Generator] = (),
    every: float = 60.0,
    resume: bool = False,
) -> Iterator[Keeping]:
    """While inside, one call of `pipe` is kept in `path`, and gone on with from there.

    The file is written after the first step that ends `every` seconds after the last writing,
    before a decode, and on every way out, also by an error or Ctrl-C. It is whole at any time, and
    stays until `Keeping.done`. A file that cannot be written is noted and ends no job.

    Args:
        pipe: a pipeline of diffusers, fitted or not.
        path: of the file, ``….safetensors``.
        identity: what the call is: prompt, seed, sizes, steps, model, versions. The pipeline's
            class, its scheduler and the kind of device are added.
        generators: that the call is given, in the same order each time.
        every: seconds.
        resume: go on with what `path` holds. The call has to be the same, with generators as they
            were. Where there is no such file, all is done from the beginning.

    Raises:
        InputError: where no file can be written there; with `resume`, for a file that is damaged,
            or kept for something else, and for a call that turns out to be another.
    """
    check_place(path)
    keeping = Keeping(pipe, path, identity, generators, every)
    if resume:
        keeping.go_on()
    with keeping.around():
        yield keeping


class Keeping:
    """A call that is kept.

    Attributes:
        resumed_at: how many steps were not made again; None where all is done from the beginning.
        steps: of schedulers that are done; several for one time where a scheduler works so.
        saves: how often the file was written.
        refused: why this call cannot be kept; None where it can.
        notes: what its user should be told.
    """

    def __init__(
        self,
        pipe: Any,
        path: Path,
        identity: Mapping[str, str],
        generators: Sequence[torch.Generator],
        every: float,
    ) -> None:
        self.resumed_at: int | None = None
        self.steps = 0
        self.saves = 0
        self.refused: str | None = None
        self.notes: list[str] = []
        self._pipe = pipe
        self._path = path
        self._device = torch.device(pipe._execution_device)
        self._identity = {**_identity_of(pipe, self._device), **identity}
        self._generators = list(generators)
        self._every = every
        self._saved = time.monotonic()
        self._unsaved = False
        self._records = _records()
        self._steppers: list[_Step] = []
        self._thread = threading.get_ident()
        self._inside = False
        self._open = False
        self._tape = Tape(self._drawn())
        self._refuse(_keeps_more(pipe))

    def done(self) -> None:
        """What the call was for is written: the file goes. Harmless where there is none."""
        self._path.unlink(missing_ok=True)

    def go_on(self) -> None:
        """From what the file holds, if there is one."""
        if not self._path.exists():
            self.notes.append(f"There is no {self._path}: all is done from the beginning.")
            return
        if self.refused is not None:
            raise InputError(f"Cannot resume from {self._path}: {self.refused}")
        found = read(self._path, self._identity)
        try:
            self._tape = Tape.of_state(found.state, found.tensors)
            draw_on(self._unpacked(self._tape.begins), self._generators, self._device)
        except (ValueError, TypeError, LookupError, RuntimeError) as error:
            raise damaged(self._path, error) from error
        self.steps = self.resumed_at = self._tape.steps

    @contextmanager
    def around(self) -> Iterator[None]:
        """While inside, the pipeline's networks and schedulers come here first."""
        with ExitStack() as undo:
            undo.callback(self._end)
            for name, part in _networks(self._pipe).items():
                undo.callback(Door(part, functools.partial(self._call, name), first=True).remove)
                if callable(getattr(part, "decode", None)):
                    undo.callback(_stand_in(part, "decode", self._before_decode(part)))
            for scheduler in _schedulers(self._pipe):
                undo.callback(_stand_in(scheduler, "step", self._stepper(scheduler)))
            self._open = True
            try:
                yield
            finally:
                self._save()
        behind, self._tape = self._tape.is_behind, Tape(self._tape.begins)
        if behind:
            raise damaged(self._path, "the call ended before what was kept did")

    def _end(self) -> None:
        self._open = False
        self._steppers.clear()

    @property
    def _is_elsewhere(self) -> bool:
        """Whether what is called now is no business of the loop that is kept."""
        return not self._open or self._inside or threading.get_ident() != self._thread

    def _call(
        self, name: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._is_elsewhere or (self.refused is not None and not self._tape.is_behind):
            return run(*args, **kwargs)
        if self._tape.is_behind:
            event = self._next("call", name)
            if event.kept is not None:
                return self._unpacked(event.kept)
            if event.form is not None:
                return self._blank(event.form)
            return self._within(run, args, kwargs)
        value = self._within(run, args, kwargs)
        self._note_call(name, value)
        return value

    def _note_call(self, name: str, value: Any) -> None:
        keeps = not self._tape.steps and _is_of_diffusers(getattr(self._pipe, name, None))
        packed = None
        if keeps or self._tape.steps:
            try:
                packed = pack(value, name, self._records)
            except TypeError:
                packed = None
        if packed is not None and keeps:
            packed = packed.changed(on_host)
        self._tape.called(name, packed, keeps=keeps)

    def step(self, stepper: _Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A scheduler is asked for one."""
        if self._is_elsewhere or (self.refused is not None and not self._tape.is_behind):
            return stepper.inner(*args, **kwargs)
        self._meet(kwargs.get("generator"))
        if self._tape.is_behind:
            return self._step_again(stepper, args)
        value = self._within(stepper.inner, args, kwargs)
        self._note_step(stepper, args, value)
        self.steps += 1
        if time.monotonic() - self._saved >= self._every:
            self._save()
        return value

    def _note_step(self, stepper: _Step, args: tuple[Any, ...], value: Any) -> None:
        times = vars(stepper.scheduler).get("timesteps")
        try:
            output = pack(value, "step", self._records)
            state = pack(_state_of(stepper.scheduler), stepper.kind, self._records)
        except TypeError as error:
            self._refuse(f"{error}, which cannot be stored, so this call cannot be resumed.")
            return
        output = output.changed(torch.clone)
        parts = (output, state, self._drawn())
        if not self._tape.steps:
            self._tape.given = _given(args)
        new_lap = times is not stepper.times
        stepper.times = times
        self._tape.stepped(stepper.name, output.form, _joined(parts), new_lap=new_lap)
        self._unsaved = True

    def _step_again(self, stepper: _Step, args: tuple[Any, ...]) -> Any:
        if not any(event.kind == "step" for event in self._tape.events[: self._tape.at]):
            given = _given(args)
            if given != self._tape.given:
                raise damaged(self._path, f"the call is about {given}, not {self._tape.given}")
        event = self._next("step", stepper.name)
        if event.kept is None:
            return self._blank(event.form)
        output, state, drawn = (self._unpacked(part) for part in _parted(event.kept))
        scheduler = stepper.scheduler
        vars(scheduler).update(state)
        stepper.times = vars(scheduler).get("timesteps")
        draw_on(drawn, self._generators, self._device)
        self._tape.reached(event)
        return output

    def _next(self, kind: Any, name: str) -> Any:
        try:
            return self._tape.next(kind, name)
        except ValueError as error:
            raise damaged(self._path, error) from error

    def _save(self) -> None:
        if not self._unsaved or self.refused is not None:
            return
        try:
            self._tape.to_host()
            state, tensors = self._tape.as_state()
            write(self._path, Halfway(self._identity, state, tensors))
            self.saves += 1
            self._unsaved = False
        except (OSError, RuntimeError) as error:
            note = f"{self._path} could not be written ({error}); the work goes on without."
            self.notes += [] if note in self.notes else [note]
        self._saved = time.monotonic()

    def _before_decode(self, part: Any) -> Callable[..., Any]:
        inner = part.decode

        @functools.wraps(inner)
        def decode(*args: Any, **kwargs: Any) -> Any:
            if not self._is_elsewhere:
                self._save()
            return inner(*args, **kwargs)

        return decode

    def _stepper(self, scheduler: Any) -> _Step:
        made = _Step(self, scheduler, str(len(self._steppers)))
        self._steppers.append(made)
        return made

    def twin(self, scheduler: Any) -> _Step:
        """For a copy of a scheduler, which pipelines make for what goes beside the pictures."""
        return self._stepper(scheduler)

    def _meet(self, found: Any) -> None:
        """Generators that a step is given belong to the call, whoever named them."""
        for each in found if isinstance(found, (list, tuple)) else [found]:
            known = any(each is one for one in self._generators)
            if isinstance(each, torch.Generator) and not known:
                self._generators.append(each)

    def _within(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What it calls itself is its own business."""
        self._inside = True
        try:
            return run(*args, **kwargs)
        finally:
            self._inside = False

    def _refuse(self, why: str | None) -> None:
        if why is not None and self.refused is None:
            self.refused = why
            self.notes.append(why)

    def _drawn(self) -> Packed:
        return pack(drawn_so_far(self._generators, self._device), "generators", {})

    def _unpacked(self, packed: Packed) -> Any:
        return self._made(lambda: unpack(packed, self._records, self._device))

    def _blank(self, form: Any) -> Any:
        return self._made(lambda: blank(form, self._records, self._device))

    def _made(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except (ValueError, TypeError, LookupError) as error:
            raise damaged(self._path, error) from error


class _Step:
    """Stands in a scheduler for its `step`."""

    def __init__(self, keeping: Keeping, scheduler: Any, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.kind = type(scheduler).__name__
        self.times: Any = None
        own = vars(scheduler).get("step")
        plain = own is None or isinstance(own, _Step)
        self.inner = type(scheduler).step.__get__(scheduler) if plain else own
        self._keeping = keeping
        functools.update_wrapper(self, self.inner)  # pipelines look at what it takes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A step, or what came of it when it was made."""
        return self._keeping.step(self, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Step:
        twin = memo.get(id(self.scheduler))
        return self if twin is None else self._keeping.twin(twin)


def _networks(pipe: Any) -> dict[str, nn.Module]:
    """By name, each once."""
    found: dict[int, tuple[str, nn.Module]] = {}
    for name, part in pipe.components.items():
        module = getattr(part, "_orig_mod", part)
        if isinstance(module, nn.Module):
            found.setdefault(id(module), (name, module))
    return dict(found.values())


def _schedulers(pipe: Any) -> list[Any]:
    found: dict[int, Any] = {}
    for part in pipe.components.values():
        if callable(getattr(part, "step", None)) and hasattr(part, "set_timesteps"):
            found.setdefault(id(part), part)
    return list(found.values())


def _stand_in(thing: Any, name: str, instead: Any) -> Callable[[], None]:
    """Let `thing.name` be `instead`; call what is returned to end that."""
    names = vars(thing)
    had, before = name in names, names.get(name)
    names[name] = instead

    def end() -> None:
        if names.get(name) is not instead:
            return
        if had:
            names[name] = before
        else:
            del names[name]

    return end


def _state_of(scheduler: Any) -> dict[str, Any]:
    """What it keeps on itself, but for what its code is made of."""
    return {
        name: value
        for name, value in vars(scheduler).items()
        if name not in _NOT_OF_THE_STATE and not isinstance(value, _CONSTANT)
    }


def _keeps_more(pipe: Any) -> str | None:
    """Why what a loop carries from step to step is not all in its latents and schedulers."""
    cannot = "so this call cannot be resumed."
    for name, part in pipe.components.items():
        if getattr(part, "_cache_config", None) is not None:
            return f"`{name}` keeps results of a step for the next (enable_cache), {cannot}"
        if hasattr(part, "momentum_buffer"):
            return f"`{name}` keeps a momentum from step to step, {cannot}"
    if hasattr(sys.modules.get(type(pipe).__module__), "MomentumBuffer"):
        return f"`{type(pipe).__name__}` keeps a momentum from step to step, {cannot}"
    return None


def _identity_of(pipe: Any, device: torch.device) -> dict[str, str]:
    kinds = [_settings_of(each) for each in _schedulers(pipe)]
    return {
        "pipeline": type(pipe).__name__,
        "scheduler": ", ".join(kinds),
        "device": device.type,
    }


def _settings_of(scheduler: Any) -> str:
    text = json.dumps(dict(getattr(scheduler, "config", {})), sort_keys=True, default=str)
    return f"{type(scheduler).__name__} ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def _records() -> Records:
    from diffusers.utils import BaseOutput

    found: dict[str, Callable[..., Any]] = {}
    kinds = [BaseOutput]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        found[f"{kind.__module__}.{kind.__qualname__}"] = kind
    return found


def _is_of_diffusers(part: Any) -> bool:
    """Networks of transformers encode; what those give is made again instead."""
    from diffusers import ModelMixin

    return isinstance(getattr(part, "_orig_mod", part), ModelMixin)


def _given(args: tuple[Any, ...]) -> list[Any]:
    """Shapes and dtypes of tensors among them."""
    return [
        [*each.shape, str(each.dtype).removeprefix("torch.")]
        for each in args
        if isinstance(each, torch.Tensor)
    ]


def _joined(parts: Sequence[Packed]) -> Packed:
    """Several values as one, with their numbers of tensors beside."""
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    return Packed([[len(part.tensors), part.form] for part in parts], tensors)


def _parted(packed: Packed) -> Iterator[Packed]:
    start = 0
    for count, form in packed.form:
        yield Packed(form, packed.tensors[start : start + count])
        start += count
