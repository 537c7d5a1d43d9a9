"""What a picture or a clip says of how it was made, in whichever way its kind holds that."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from tightfit.errors import InputError
from tightfit.media.picture_writer import EXIF, USER_COMMENT, read_text

_UNICODE = b"UNICODE\0"
_PICTURES = (".png", ".apng", ".jpg", ".jpeg", ".webp", ".gif")


def read_inscription(path: Path) -> dict[str, str]:
    """The texts that were given to `tightfit.media.outputs.open_frames`, by their keywords.

    Nothing where there are none, as in a folder of frames, and where the file is damaged.
    """
    if path.suffix.lower() == ".png":
        return read_text(path)
    return _taken_apart(_comment(path))


def _comment(path: Path) -> str:
    try:
        if not path.is_file():
            return ""
        if path.suffix.lower() in _PICTURES:
            return _of_picture(path)
        from tightfit.media.film import comment_of  # PyAV: a still needs none

        return comment_of(path)
    except (OSError, SyntaxError, ValueError, InputError):
        return ""


def _of_picture(path: Path) -> str:
    with Image.open(path) as image:
        image.load()
        said = image.info.get("comment") or image.getexif().get_ifd(EXIF).get(USER_COMMENT, b"")
        if not isinstance(said, bytes):
            return str(said)
        if said.startswith(_UNICODE):
            return said.removeprefix(_UNICODE).decode("utf-16-be")
        return said.decode("utf-8")


def _taken_apart(comment: str) -> dict[str, str]:
    """Lines of `keyword: text`; what is no such line goes on with the text before it."""
    found: dict[str, str] = {}
    last = None
    for line in comment.split("\n"):
        keyword, colon, text = line.partition(": ")
        if colon:
            last = keyword
            found[keyword] = text
        elif last is not None:
            found[last] += f"\n{line}"
    return found
