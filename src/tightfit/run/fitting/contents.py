"""Which weights a module has, and whether they are those that were weighed."""

from __future__ import annotations

from torch import nn

from tightfit.errors import UsageError
from tightfit.place.streaming.streamed import Streaming
from tightfit.run.fitting.lessons import Lessons
from tightfit.run.fitting.missed import refuse_made_of_nothing
from tightfit.run.fitting.need import Call, Need
from tightfit.run.fitting.placing import Weighed
from tightfit.run.fitting.tuners import Tuners
from tightfit.weigh.tensors import weights


class Contents:
    """The weights of one module, as they were weighed last."""

    def __init__(self, module: nn.Module, lessons: Lessons) -> None:
        """Not weighed yet."""
        self._module, self._lessons = module, lessons
        self._paths: frozenset[str] = frozenset()
        self.altered = False
        """Whether something was done to them since they were weighed."""

    def weigh(self, call: Call | None) -> tuple[Need, Weighed]:
        """As they are now, all on the host, for `call`; None is one like the last.

        What was learnt of calls of other weights is forgotten. Raises `UsageError` for weights that
        could not be given back.
        """
        _refuse_inference_tensors(self._module)
        self._lessons.forget()
        need, order = self._lessons.of(call)
        weighed = Weighed.of(self._module, order, most=self._lessons.card.most_at_once)
        self._paths = _paths_of(self._module)
        self.altered = False
        return need, weighed

    def differ(self, session: Streaming | None) -> bool:
        """Whether others are there, by what `session` saw; None is that it has none on the card."""
        if self.altered:
            return True
        return _paths_of(self._module) != self._paths if session is None else session.differs

    def refuse_unsound(self, session: Streaming | None) -> None:
        """What came to the module, or was done to it, while weights were away, and past us."""
        if session is not None and session.differs:
            refuse_made_of_nothing(session.newcomers())
            Tuners(self._module).refuse_fused_unseen(self._lessons.tuners)


def _paths_of(module: nn.Module) -> frozenset[str]:
    return frozenset(held.path for held in weights(module))


def _refuse_inference_tensors(module: nn.Module) -> None:
    """They cannot be exchanged, nor given back, outside of that mode."""
    path = next((held.path for held in weights(module) if held.tensor.is_inference()), None)
    if path is not None:
        raise UsageError(
            f"`{path}` was made in torch.inference_mode(), and such weights cannot be given "
            "back: load the module outside of it."
        )
