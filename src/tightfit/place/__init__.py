"""PUT IT THERE: weights onto a device, and off it again."""

from tightfit.place.alone import alone
from tightfit.place.whole import placed

__all__ = ["alone", "placed"]
