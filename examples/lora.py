"""One prompt with a LoRA at several strengths, by a pipeline that is loaded once.

python examples/lora.py LORA.safetensors [PIPELINE]

PIPELINE is a diffusers folder or a hub id. The default has random weights.
"""

import sys

import tightfit

lora, pipeline = (*sys.argv[1:], "random:flux.1-dev-mini")[:2]

pipe = tightfit.fit(tightfit.load_pipeline(pipeline))
for strength in (0.0, 0.5, 1.0):
    made = tightfit.generate(
        pipe,
        prompt="a lighthouse in the fog",
        loras=[(lora, strength)],
        width=128,  # what small random models make; 1024 for one with weights
        height=128,
        steps=2,
        seed=7,  # the same noise each time: what differs is the LoRA
        out=f"lora-{strength:g}.png",
    )
    print(f"{made.value[0].path}: {made.value[0].settings['LoRA']}")
tightfit.unfit(pipe)
