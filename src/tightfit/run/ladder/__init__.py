"""The ordered ways to do a stage, and the only catcher of out-of-memory."""

from tightfit.run.ladder.keepsakes import Keepsakes
from tightfit.run.ladder.ladder import Ladder
from tightfit.run.ladder.lessons import Lessons
from tightfit.run.ladder.oom import is_device_oom
from tightfit.run.ladder.release import empty_frames, leaving_nothing
from tightfit.run.ladder.rung import PROBE, Attempt, Rung, Stage

__all__ = [
    "PROBE",
    "Attempt",
    "Keepsakes",
    "Ladder",
    "Lessons",
    "Rung",
    "Stage",
    "empty_frames",
    "is_device_oom",
    "leaving_nothing",
]
