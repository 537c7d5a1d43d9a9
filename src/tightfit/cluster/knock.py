"""A process that joins a cluster, asks each of its machines, and writes what they said.

``python -m tightfit.cluster.knock ADDRESS FOLDER ANSWER``
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from tightfit.cluster.versions import asked_by_value

_PATIENCE = 40.0
"""Seconds for the machines, once the cluster was joined."""


def knock(address: str, folder: Path) -> dict[str, Any]:
    """``machines``: what each told; or ``error``: why it cannot be joined."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        ask = ray.remote(asked_by_value())
        answers = [
            ask.options(
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            ).remote(str(folder))
            for node in ray.nodes()
            if node["Alive"]
        ]
        return {"machines": ray.get(answers, timeout=_PATIENCE)}
    except Exception as error:
        return {"error": str(error) or type(error).__name__}
    finally:
        ray.shutdown()


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(
        json.dumps(knock(sys.argv[1], Path(sys.argv[2]))), encoding="utf-8"
    )
