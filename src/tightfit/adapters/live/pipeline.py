"""A pipeline of diffusers that somebody has loaded: its parts, and where it believes to run."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tightfit.adapters.traits import traits_of
from tightfit.errors import InputError, UsageError
from tightfit.run.vae import Direction

Code = Callable[[Direction, torch.Tensor], torch.Tensor]
"""Codes a tensor in the VAE's raw space: a latent to samples, or samples to moments of the
posterior (mean and log variance, [B,2C,…]); the result lies on the card."""
AsWritten = Callable[[Direction, object, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Makes a call of the VAE's own methods, with its weights on the card; told what is coded."""


@dataclass(frozen=True)
class Component:
    """A network of a pipeline.

    Attributes:
        name: in the pipeline, such as ``text_encoder_2``.
        module: itself.
        is_vae: whether it is a VAE that is known here, which has more ways to run than one.
        runs_once: whether a picture takes one call of it or two: an encoder of texts or pictures.
    """

    name: str
    module: nn.Module
    is_vae: bool
    runs_once: bool = False


_PIPELINES = ("DiffusionPipeline", "ModularPipeline")


def is_pipeline(thing: object) -> bool:
    """Whether it is one, of steps in one class or in modular blocks; nothing is imported for it."""
    return any(
        kind.__name__ in _PIPELINES and kind.__module__.partition(".")[0] == "diffusers"
        for kind in type(thing).__mro__
    )


def components_of(pipe: Any) -> tuple[Component, ...]:
    """Its networks in the order of registration, each once, under its first name.

    Raises `UsageError` where something else places them already.
    """
    found: dict[int, Component] = {}
    for name, part in pipe.components.items():
        module = getattr(part, "_orig_mod", part)
        if not isinstance(module, nn.Module) or id(module) in found:
            continue
        _refuse_placed(name, module)
        is_encoder = type(module).__module__.partition(".")[0] == "transformers"
        found[id(module)] = Component(name, module, _is_known_vae(module), is_encoder)
    if getattr(pipe, "hf_device_map", None) is not None:
        raise UsageError(
            f"`{type(pipe).__name__}` was loaded with a device_map: call "
            "pipe.reset_device_map() first, or load it without."
        )
    return tuple(found.values())


def _refuse_placed(name: str, module: nn.Module) -> None:
    hooked = next((path for path, m in module.named_modules() if _is_hooked(m)), None)
    if hooked == "" and type(module._hf_hook).__module__.startswith("diffusers.modular_pipelines"):
        raise UsageError(
            f"`{name}` is offloaded by a ComponentsManager: call its disable_auto_cpu_offload() "
            "first."
        )
    if hooked is not None:
        raise UsageError(
            f"`{name}` is offloaded by accelerate (`{hooked or name}` has its hook): call "
            "pipe.remove_all_hooks() first, or leave out the enable_…_offload call."
        )
    for path, layer in module.named_modules():
        registry = getattr(layer, "_diffusers_hook", None)
        hooks = getattr(registry, "hooks", {})
        if "group_offloading" in hooks:
            raise UsageError(
                f"`{name}` is offloaded in groups (`{path or name}` has the hook): load the "
                "pipeline anew without enable_group_offload."
            )


def _is_hooked(module: nn.Module) -> bool:
    """By somebody else: a part that two pipelines share may answer for us already."""
    return not isinstance(getattr(module, "_hf_hook", _ANSWERS), _RunsOn)


def _is_known_vae(module: nn.Module) -> bool:
    if not hasattr(module, "encode") or not hasattr(module, "decode"):
        return False
    with suppress(InputError):
        traits_of(type(module).__name__, getattr(module, "config", {}))
        return True
    return False


class _RunsOn:
    """What pipelines ask a component when they want to know where it runs.

    It looks like accelerate's hook to them, and is none: `DiffusionPipeline._execution_device`,
    `get_module_execution_device` and `apply_forward_hook` read it, `component.device` does not.
    """

    def __init__(self, device: torch.device) -> None:
        self.execution_device = device

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """There is nothing to do before a call."""
        del module
        return args, kwargs

    def detach_hook(self, module: nn.Module) -> nn.Module:
        """Nothing was changed."""
        return module


_ANSWERS = _RunsOn(torch.device("cpu"))


def answer_for(module: nn.Module, device: torch.device) -> Callable[[], None]:
    """Let pipelines believe that `module` runs on `device`; call what is returned to end that."""
    hook = _RunsOn(device)
    module._hf_hook = hook  # type: ignore[assignment]

    def end() -> None:
        if vars(module).get("_hf_hook") is hook:
            del module._hf_hook

    return end


def unload_by(pipe: Any, unload: Callable[[Any, Callable[[], Any]], Any]) -> Callable[[], None]:
    """Let `pipe.unload_textual_inversion` go through `unload`; call what is returned to end that.

    It reads the embeddings of a text encoder, which `unload` is told, and makes new ones of them.
    """
    name = "unload_textual_inversion"
    own = getattr(pipe, name, None)
    if not callable(own):
        return lambda: None

    @functools.wraps(own)
    def unloaded(*args: Any, **kwargs: Any) -> Any:
        encoder = args[2] if len(args) > 2 else kwargs.get("text_encoder")
        if encoder is None:
            encoder = getattr(pipe, "text_encoder", None)
        return unload(encoder, lambda: own(*args, **kwargs))

    vars(pipe)[name] = unloaded

    def end() -> None:
        if vars(pipe).get(name) is unloaded:
            del vars(pipe)[name]

    return end


def code_by(module: nn.Module, code: Code, as_written: AsWritten) -> Callable[[], None]:
    """Let `module.encode` and `module.decode` code by `code`; call what is returned to end that.

    What they are called with beside the tensor and ``return_dict`` is the VAE's own business (the
    time of LTX's decoder): then it runs `as_written`. So does what they call themselves, and what
    is to be encoded in sizes that are no whole latents, of which a VAE may leave some out.
    """
    vae: Any = module
    before = {name: vars(module).get(name) for name in ("encode", "decode")}
    own = {"encode": vae.encode, "decode": vae.decode}
    inside = threading.local()

    def coded(direction: Direction, made: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
        original = own[direction]

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "now", False):
                return original(*args, **kwargs)
            asked = _asked(args, kwargs)
            if direction == "encode" and asked is not None and not _is_whole(module, asked[0]):
                asked = None
            inside.now = True
            try:
                if asked is None:
                    source = args[0] if args else kwargs.get("z", kwargs.get("x"))
                    return as_written(direction, source, original, args, kwargs)
                value = made(code(direction, asked[0]))
            finally:
                inside.now = False
            return value if asked[1] else (next(iter(value.values())),)

        return call

    vae.encode = coded("encode", _posterior)
    vae.decode = coded("decode", _decoded)

    def end() -> None:
        for name, method in before.items():
            if method is None:
                vars(module).pop(name, None)
            else:
                setattr(module, name, method)

    return end


def _asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, bool] | None:
    """The tensor and ``return_dict``, where nothing else is asked for."""
    given = dict(kwargs)
    rest = [one for one in args[1:] if one is not None]
    source = args[0] if args else given.pop("z", given.pop("x", None))
    dictionary = given.pop("return_dict", rest.pop() if rest else True)
    given.pop("generator", None)
    others = [value for value in given.values() if value is not None]
    known = isinstance(source, torch.Tensor) and isinstance(dictionary, bool)
    return (source, dictionary) if known and not rest and not others else None


def _is_whole(module: nn.Module, samples: torch.Tensor) -> bool:
    """Whether `samples` are as many as some number of latents."""
    config: Any = module.config
    traits = traits_of(type(module).__name__, config)
    sizes = tuple(samples.shape[2:])
    if len(sizes) != traits.axes:
        return False
    with suppress(UsageError):
        traits.latent_sizes(sizes)
        return True
    return False


def _posterior(moments: torch.Tensor) -> Any:
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
    from diffusers.models.modeling_outputs import AutoencoderKLOutput

    return AutoencoderKLOutput(latent_dist=DiagonalGaussianDistribution(moments))


def _decoded(samples: torch.Tensor) -> Any:
    from diffusers.models.autoencoders.vae import DecoderOutput

    return DecoderOutput(sample=samples)
