"""Two pipelines in one session: they share a card, and make room for one another.

python examples/two_pipelines.py [PIPELINE] [PIPELINE]

Each is a diffusers folder or a hub id. The defaults have random weights.
"""

import sys

import tightfit

specs = (*sys.argv[1:], "random:flux.1-dev-mini", "random:sdxl-mini")[:2]

with tightfit.Session() as session:  # vram="8GiB" bounds both together
    pipes = [session.fit(tightfit.load_pipeline(spec)) for spec in specs]
    for turn, prompt in enumerate(("a lighthouse", "a harbour"), 1):
        for at, pipe in enumerate(pipes, 1):
            made = tightfit.generate(
                pipe,
                prompt=prompt,
                width=128,  # what small random models make; 1024 for those with weights
                height=128,
                steps=2,
                seed=turn,
                out=f"{at}-{turn}.png",
            )
            print(f"{made.value[0].path}: {made.report.seconds:.1f} s")
    print(session.explain())
