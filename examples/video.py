"""A clip from a prompt.

python examples/video.py [PIPELINE] [OUT.mp4]

PIPELINE is a diffusers folder or a hub id, such as Wan 2.1. The default has random weights.
"""

import sys

import tightfit

pipeline, out = (*sys.argv[1:], "random:wan2.1-t2v-1.3b-mini", "video.mp4")[:2]

made = tightfit.generate(
    pipeline,
    prompt="waves break on black rocks",
    negative="blurred",
    out=out,
    latents="video.latents.safetensors",  # to decode again: tightfit decode … --vae …
    frames=9,
    steps=2,
    seed=7,
)

(clip,) = made.value
count, _, height, width = clip.frames.pixels.shape
print(f"{clip.path}: {count} frames of {width}x{height} at {float(clip.frames.fps):g} a second")
