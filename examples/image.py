"""A picture from a prompt.

python examples/image.py [PIPELINE] [OUT.png]

PIPELINE is a diffusers folder or a hub id. The default has random weights: it shows that all runs,
and paints noise.
"""

import sys

import tightfit

pipeline, out = (*sys.argv[1:], "random:flux.1-dev-mini", "image.png")[:2]

made = tightfit.generate(
    pipeline,
    prompt="a lighthouse in the fog, oil on canvas",
    out=out,
    steps=4,
    seed=7,
    # vram="8GiB",  # of the card, what may be used; all that is free where nothing is said
)

(picture,) = made.value
print(f"{picture.path}: seed {picture.seed}, {made.report.seconds:.1f} s")
for stage in made.report.stages:
    print(f"  {stage['stage']}: {stage['seconds']:.2f} s")
