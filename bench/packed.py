"""Weights packed without loss on a card too small for them, beside the same weights as they are.

    python bench/packed.py                       # writes results/packed.json
    python bench/packed.py --only 'flux.1-dev *' # some jobs, merged into the file
    python bench/packed.py --only 'flux.2-dev * fp8 *'   # stored in eight bits, at three sizes
    python bench/packed.py --traced              # say where the time of each step goes
    python bench/packed.py --cpu                 # the same steps, no GPU

The steps, their options and their processes are those of `stream.py`, which can write this file
in a run of its own, with ``--packed FILE``. Side by side in each job:

``resident``      on the free card: C
``tightfit``      weights packed where that is faster; B is what it copies, as it is stored
``tightfit-raw``  the same without packing, in a process of its own, but for what is so large that
                  one process does all of it
peers             where they have to run

FLUX.2 in fp8 has linear weights of eight bits, each tensor with a scale, which are moved as they
are stored and converted just before each layer. Its weights are drawn once for all sizes. There
``resident`` converts too, each layer by hooks of this benchmark, in memory of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch

from stream import PACKED_RESULTS, measure, parser
from stream_jobs import EIGHT, EIGHT_MINI, FULL, LEAF, MINI, OURS, PACKED, Job


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all rows, each written when it is done, and print a table."""
    about = __doc__.splitlines()[0] if __doc__ else ""
    options = parser(about, who=(PACKED, OURS, LEAF), results=PACKED_RESULTS).parse_args(arguments)
    every = packed_jobs((*MINI, *EIGHT_MINI) if options.cpu else (*FULL, *EIGHT))
    jobs = [job for job in every if fnmatch(job.name, options.only)]
    output = options.output or (None if options.cpu else PACKED_RESULTS)
    return measure(options, jobs, raw=None, packed=output)


def packed_jobs(jobs: Sequence[Job]) -> list[Job]:
    """Those that packed streaming has, with the peers that have to run."""
    return [replace(job, extras=()) for job in jobs if job.packed]


if __name__ == "__main__":
    sys.exit(main())
