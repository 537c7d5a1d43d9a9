"""A picture from another one, and one that is new on its right half alone.

python examples/image_to_image.py [PIPELINE] [IN.png]

PIPELINE is a diffusers folder or a hub id. The default has random weights.
"""

import sys

import torch

import tightfit

pipeline, *given = (*sys.argv[1:], "random:sdxl-mini")[:2]
height, width = 96, 128
ramp = torch.linspace(0, 1, width).expand(3, height, width)  # a picture is [3,H,W] in 0..1
start = given[0] if len(sys.argv) > 2 else ramp

made = tightfit.generate(
    pipeline, prompt="a harbour at dusk", image=start, strength=0.6, steps=5, seed=7, out="new.png"
)
print(f"{made.value[0].path}: {made.value[0].settings['size']}")

size = made.value[0].frames.pixels.shape[-2:]
mask = torch.zeros(1, *size)
mask[..., size[1] // 2 :] = 1  # white is where it is painted anew
made = tightfit.generate(
    pipeline, prompt="a ship", image=start, mask=mask, steps=5, seed=7, out="half.png"
)
print(f"{made.value[0].path}: {made.value[0].settings['size']}")
