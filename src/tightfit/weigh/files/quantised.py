"""How weights lie packed in safetensors, told from names and types alone.

What is taken, and where it is the layout of:

- one-byte floats (``F8_…``) hold one value a byte; their scales lie beside them as
  ``scale_weight``, ``scale_input`` (ComfyUI) or ``weight_scale``, ``input_scale``,
  ``weight_scale_inv`` (compressed-tensors and others);
- bitsandbytes nf4 and fp4: ``weight`` is U8 with two values a byte, beside
  ``weight.quant_state.bitsandbytes__…``, ``weight.absmax``, ``weight.quant_map`` and their nested
  forms (an odd last value is counted as two);
- bitsandbytes int8: ``weight`` is I8, one value a byte, beside ``SCB`` and ``weight_format``;
- nvfp4: ``weight`` is U8 with two values a byte, beside ``weight_scale`` and ``weight_scale_2``;
- optimum-quanto: ``weight._data`` I8 or F8 with one value a byte, U8 with two, beside
  ``weight._scale`` and ``weight._shift``;
- integers called ``qweight`` (GPTQ, AWQ, SVDQuant) hold four bits a value, beside ``qzeros``,
  ``scales``, ``wscales`` and ``g_idx``;
- other one-byte integers of two or more axes hold one value a byte.

Other integers (indices, counters, a tokenizer's bytes) hold no weights.
"""

from __future__ import annotations

from collections.abc import Container
from math import prod

from tightfit.weigh.files.tensor_header import WHOLE_NUMBERS

_COMPANIONS = {
    "scale_weight": "weight",
    "scale_input": "weight",
    "weight_scale": "weight",
    "weight_scale_2": "weight",
    "weight_scale_inv": "weight",
    "input_scale": "weight",
    "comfy_quant": "weight",
    "SCB": "weight",
    "weight_format": "weight",
    "weight.absmax": "weight",
    "weight.quant_map": "weight",
    "weight.nested_absmax": "weight",
    "weight.nested_quant_map": "weight",
    "weight.quant_state.bitsandbytes__nf4": "weight",
    "weight.quant_state.bitsandbytes__fp4": "weight",
    "weight._scale": "weight._data",
    "weight._shift": "weight._data",
    "output_scale": "weight._data",
    "qzeros": "qweight",
    "scales": "qweight",
    "wscales": "qweight",
    "wzeros": "qweight",
    "g_idx": "qweight",
}
"""What lies beside a packed tensor of the same module: its name, and the packed one's."""
_MARKERS = ("scaled_fp8",)
_PAIRED = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
_PAIRED_TOO = "weight_scale_2"
_BY_LAST_WORD: dict[str, list[str]] = {}
for _companion in _COMPANIONS:
    _BY_LAST_WORD.setdefault(_companion.rpartition(".")[2], []).append(_companion)


def elements_of(name: str, shape: tuple[int, ...], dtype: str, *, names: Container[str]) -> int:
    """Values of the model in a tensor of a file that holds `names`; see the module's docstring."""
    if companion_of(name, names=names) is not None or name in _MARKERS:
        return 0
    count = prod(shape)
    if dtype not in WHOLE_NUMBERS:
        return count
    module, _, last = name.rpartition(".")
    if last == "qweight":
        return count * 2 * _BYTES.get(dtype, 1)
    if dtype not in ("I8", "U8") or len(shape) < 2:
        return 0
    if dtype == "U8" and (last == "_data" or _two_a_byte(module, names)):
        return count * 2
    return count


def companion_of(name: str, *, names: Container[str]) -> str | None:
    """The packed tensor that `name` is a scale, code book or state of; None where it is none."""
    for companion in _BY_LAST_WORD.get(name.rpartition(".")[2], ()):
        if name.endswith(companion):
            packed = name.removesuffix(companion) + _COMPANIONS[companion]
            if packed in names:
                return packed
    return None


def module_of(name: str, *, names: Container[str]) -> str:
    """The module that owns the tensor `name`; empty for the root."""
    name = companion_of(name, names=names) or name
    return name.removesuffix("._data").rpartition(".")[0]


def _two_a_byte(module: str, names: Container[str]) -> bool:
    dot = f"{module}." if module else ""
    return any(f"{dot}{mark}" in names for mark in (*_PAIRED, _PAIRED_TOO))


_BYTES = {"I32": 4, "U32": 4, "I16": 2, "U16": 2, "I64": 8, "U64": 8}
