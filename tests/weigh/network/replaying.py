"""Plays a graph on values, one node after the other."""

from __future__ import annotations

import torch
from torch import nn

from tightfit.weigh import weights
from tightfit.weigh.network.graph import Graph, filled


def replay(
    graph: Graph,
    module: nn.Module,
    source: torch.Tensor,
    seen: dict[int, torch.Tensor] | None = None,
) -> torch.Tensor:
    """The result for `source`; `seen` gets every value that was made."""
    held = {each.path: each.tensor for each in weights(module)}
    values = {v.number: held[v.weight] for v in graph.values if v.weight is not None}
    values[graph.given] = source
    for node in graph.nodes:
        args = filled(node.args, values.__getitem__)
        kwargs = {
            key: torch.device("cpu") if key == "device" else filled(value, values.__getitem__)
            for key, value in node.kwargs.items()
        }
        with torch.no_grad():
            made = node.func(*args, **kwargs)
        for number, one in zip(node.makes, made if node.many else [made], strict=True):
            if number is not None:
                values[number] = one
                if seen is not None:
                    seen[number] = one
    return values[graph.result]
