"""Mutate real files, open them by every door that reads such files, and see how that ends.

    python tools/fuzz_files.py --count 10000              # of each kind; findings at the end
    python tools/fuzz_files.py --kind mp4 --number 4711   # one again

Each has to end in a proper result or in an error of tightfit that names the file and a reason:
never in an error of another library, never in more than `PATIENCE` seconds, never with a file left
behind that is not whole, and never by ending the process. Each kind runs in processes of its own,
which may be killed. The tests run the same with a few hundred mutations of each kind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
from PIL import Image, ImageCms, features
from safetensors import safe_open
from safetensors.torch import save_file

from tightfit.api import pack, unpack, verify
from tightfit.api.reading import OtherLength, Reading
from tightfit.api.sources import Selection, looking, read
from tightfit.errors import TightfitError
from tightfit.media.latents import LatentFile, load_latent, probe_latent, save_latent
from tightfit.media.outputs import Terms, open_frames
from tightfit.media.sound import Sound, SoundPart, read_sound, write_sound
from tightfit.place.packing.stored_files import StoredFiles
from tightfit.run.halfway import file as halfway
from tightfit.run.vae import Traits
from tightfit.weigh.files.hash_lists import hashes_of
from tightfit.weigh.files.headers import read_header
from tightfit.weigh.files.parts import parts_of_header
from tightfit.weigh.files.pickles import pickles_allowed

PATIENCE = 20.0
"""Seconds for one file; what takes longer counts as a hang."""
MOST_MEMORY = 2**30
"""Bytes that reading one of these small files may take."""
_HEAD = 600
_NUMBERS = (0, 1, 2, 127, 128, 255, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63)
_WIDTHS = ("<H", ">H", "<I", ">I", "<Q", ">Q")
_TEXTS = (b"0", b"-1", b"1e999", b"99999999999999999999", b"null", b"[]", b"{}", b'"', b"\xff")

Door = Callable[[Path], object]


@dataclass(frozen=True)
class Edit:
    """A change of some bytes.

    Attributes:
        kind: which.
        at: where, of one; small ones are meant to hit headers.
        head: count from the first bytes alone.
        number, length, text: what to, by kind.
    """

    kind: str
    at: float
    head: bool
    number: int
    length: int
    text: bytes

    def of(self, data: bytes) -> bytes:
        """`data`, changed."""
        reach = min(len(data), _HEAD) if self.head else len(data)
        at = int(self.at * reach)
        end = min(len(data), at + self.length)
        before, inside, after = data[:at], data[at:end], data[end:]
        if self.kind == "flip":
            return (
                before
                + bytes(each ^ (1 << self.number % 8) for each in data[at : at + 1])
                + (data[at + 1 :])
            )
        if self.kind == "number":
            form = _WIDTHS[self.length % len(_WIDTHS)]
            size = struct.calcsize(form)
            value = _NUMBERS[self.number % len(_NUMBERS)] % 2 ** (8 * size)
            return before + struct.pack(form, value) + data[at + size :]
        if self.kind == "text":
            text = _TEXTS[self.number % len(_TEXTS)]
            return before + text + data[at + self.length % 4 :]
        if self.kind == "fill":
            return before + bytes([self.number % 256]) * len(inside) + after
        if self.kind == "random":
            return before + self.text + data[at + len(self.text) :]
        if self.kind == "cut":
            return before
        if self.kind == "drop":
            return before + after
        if self.kind == "twice":
            return before + inside + inside + after
        return data + self.text * (1 + self.length % 64)


EDITS = ("flip", "number", "text", "fill", "random", "cut", "drop", "twice", "append")


def drawn(seed: int) -> list[Edit]:
    """Edits by a seed."""
    chance = random.Random(seed)
    return [
        Edit(
            kind=chance.choice(EDITS),
            at=chance.random(),
            head=chance.random() < 0.5,
            number=chance.randrange(2**16),
            length=chance.randrange(1, 200),
            text=chance.randbytes(chance.randrange(1, 24)),
        )
        for _ in range(chance.choice((1, 1, 2, 3, 6)))
    ]


def mended(kind: str, data: bytes) -> bytes:
    """With the sums right that would otherwise hide everything behind them."""
    if kind.startswith("png"):
        return _png_with_sums(data)
    if kind in _WITH_LENGTH and len(data) > 16:
        end = data.rfind(b"}", 8, 8 + 4096) + 1
        if end > 8:
            return (end - 8).to_bytes(8, "little") + data[8:]
    return data


_WITH_LENGTH = ("latent", "latent, no hash", "plain latent", "safetensors", "resume", "packed")


def _png_with_sums(data: bytes) -> bytes:
    out, at = bytearray(data[:8]), 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        body = data[at + 4 : at + 8 + length]
        out += data[at : at + 4] + body + zlib.crc32(body).to_bytes(4, "big")
        at += 12 + length
    return bytes(out)


def _media(path: Path) -> object:
    asked = Selection(keep_alpha=True)
    with looking(path, asked) as seen:
        return read(path, asked, seen)


def _some(path: Path) -> object:
    return read(path, Selection(frames=slice(1, None, 2), keep_alpha=True))


def _meanwhile(path: Path) -> object:
    """As an encode reads a clip while it comes."""
    with Reading(path, Selection()) as reading:
        reading.whom(Traits("P", 8))
        reading.go()
        coming = reading.coming()
        if coming is not None:
            with suppress(OtherLength):
                reading.frames(len(coming), lambda: None)
        return reading.footage()


def _stored(path: Path) -> object:
    from contextlib import ExitStack

    with ExitStack() as stack:
        files = StoredFiles(path, stack)
        return [files.tensor(name).clone() for name in files.headers]


def _headed(path: Path) -> object:
    return parts_of_header(read_header(path))


def _unpacked(path: Path) -> object:
    return unpack(path, path.with_name("unpacked.safetensors"))


def _pickled(path: Path) -> object:
    with pickles_allowed(True):
        return _stored(path), _headed(path)


def _resumed(path: Path) -> object:
    return halfway.read(path, {"seed": "1"})


def _sound(path: Path) -> object:
    return read_sound(path, SoundPart())


def _beside(ending: str, door: Door) -> Door:
    """Of a file that belongs to another one beside it."""
    return lambda path: door(path.with_name(path.name.removesuffix(ending)))


_PICTURE = (_media,)
_CLIP = (_media, _some, _meanwhile)
_WEIGHTS = (_headed, _stored, verify)
_SEEDS: dict[str, tuple[str, tuple[Door, ...]]] = {
    "png": ("a.png", _PICTURE),
    "png palette": ("b.png", _PICTURE),
    "png 16": ("c.png", _PICTURE),
    "jpeg": ("a.jpg", _PICTURE),
    "webp": ("a.webp", _PICTURE),
    "jpeg profile": ("b.jpg", _PICTURE),
    "tiff": ("a.tif", _PICTURE),
    "tiff profile": ("b.tif", _PICTURE),
    "tiff 16": ("c.tif", _PICTURE),
    "tiff float": ("d.tif", _PICTURE),
    **({"avif": ("a.avif", _PICTURE)} if features.check("avif") else {}),
    "gif": ("a.gif", _CLIP),
    "webp moving": ("b.webp", _CLIP),
    "png moving": ("a.apng", _CLIP),
    "png moving 16": ("b.apng", _CLIP),
    "mp4": ("a.mp4", _CLIP),
    "mkv": ("a.mkv", _CLIP),
    "wav": ("a.wav", (_sound,)),
    "flac": ("a.flac", (_sound,)),
    "latent": ("a.safetensors", (probe_latent, load_latent)),
    "latent, no hash": ("g.safetensors", (probe_latent, load_latent)),
    "plain latent": ("b.safetensors", (probe_latent, load_latent)),
    "safetensors": ("c.safetensors", _WEIGHTS),
    "index": ("d.safetensors.index.json", (_headed, _stored)),
    "gguf": ("a.gguf", (_headed, hashes_of)),
    "resume": ("e.safetensors", (_resumed,)),
    "packed": ("f.safetensors", (_headed, _stored, _unpacked)),
    "hash list": ("c.safetensors.sha256.json", (_beside(".sha256.json", verify),)),
    "pickle": ("a.ckpt", (_pickled,)),
    "pickle, old": ("b.pt", (_pickled,)),
}
KINDS = tuple(_SEEDS)


class Seeds:
    """The files that are mutated, made in `folder`; `check` opens one after its edits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        _make(folder)
        self._whole = {kind: (folder / name).read_bytes() for kind, (name, _) in _SEEDS.items()}
        self._there = set(folder.iterdir())

    def check(self, kind: str, edits: list[Edit], *, mend: bool) -> str:
        """``refused`` or ``read``; raises `AssertionError` for an end that must not be."""
        name, doors = _SEEDS[kind]
        data = self._whole[kind]
        for edit in edits:
            data = edit.of(data)
        path = self.folder / name
        path.write_bytes(mended(kind, data) if mend else data)
        ends = set()
        try:
            for door in doors:
                ends.add(self._opened(door, path))
        finally:
            path.write_bytes(self._whole[kind])
            for each in set(self.folder.iterdir()) - self._there:
                each.unlink()
        return "read" if ends == {"read"} else "refused"

    def _opened(self, door: Door, path: Path) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                door(path)
        except TightfitError as error:
            said = str(error)
            named = any(each.name in said for each in self._there)
            assert named, f"an error does not name the file: {said}"
            assert len(said) < 2000, f"an error of {len(said)} letters"
            left = set(self.folder.iterdir()) - self._there
            assert not left, f"left behind: {sorted(each.name for each in left)}"
            return "refused"
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}") from error
        return "read"


def _make(folder: Path) -> None:
    """Small real files of every kind."""
    chance = np.random.default_rng(0)
    pixels = chance.integers(0, 256, (9, 12, 4), np.uint8)
    picture = Image.fromarray(pixels)
    picture.save(folder / "a.png")
    picture.convert("RGB").quantize(16).save(folder / "b.png", transparency=3)
    deep = chance.integers(0, 2**16, (9, 12)).astype(np.uint16)
    Image.fromarray(deep).save(folder / "c.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.convert("RGB").save(folder / "a.jpg", exif=exif)
    picture.save(folder / "a.webp")
    usual = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    other = usual.replace(b"sRGB", b"Wide").replace(
        "sRGB".encode("utf-16-be"), "Wide".encode("utf-16-be")
    )
    picture.convert("RGB").save(folder / "b.jpg", icc_profile=other)
    picture.save(folder / "a.tif", compression="tiff_lzw")
    picture.save(folder / "b.tif", icc_profile=other)
    more_chance = np.random.default_rng(1)
    colours = more_chance.integers(0, 2**16, (9, 12, 3)).astype(np.uint16)
    tifffile.imwrite(folder / "c.tif", colours, photometric="rgb", iccprofile=other)
    tifffile.imwrite(
        folder / "d.tif",
        more_chance.random((9, 12, 4)).astype(np.float32),
        photometric="rgb",
        extrasamples=["unassalpha"],
        compression="zlib",
        iccprofile=other,
    )
    if features.check("avif"):
        picture.save(folder / "a.avif")
    frames = [Image.fromarray(chance.integers(0, 256, (9, 12, 3), np.uint8)) for _ in range(3)]
    more: dict[str, Any] = {"save_all": True, "append_images": frames[1:], "duration": 40}
    frames[0].save(folder / "a.gif", **more)
    frames[0].save(folder / "b.webp", **more)
    frames[0].save(folder / "a.apng", format="PNG", **more)
    deep_terms = Terms(bits=16)
    with open_frames(
        folder / "b.apng", width=12, height=9, frames=3, alpha=True, terms=deep_terms
    ) as writer:
        drawn = more_chance.integers(0, 2**16, (3, 4, 9, 12)).astype(np.int32)
        writer.write(torch.from_numpy(drawn).to(torch.uint16))
    for name in ("a.mp4", "a.mkv"):
        with open_frames(folder / name, width=16, height=16, frames=4, fps=Fraction(24)) as writer:
            writer.write(torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    waves = torch.sin(torch.arange(600.0) / 9).view(2, 300)
    for name in ("a.wav", "a.flac"):
        write_sound(folder / name, Sound(waves, 8000))
    latent = LatentFile(
        latent=torch.ones(1, 16, 2, 3),
        vae="AutoencoderKL",
        ratio=(1, 8),
        dtype="float32",
        width=20,
        height=12,
        fps=Fraction(24),
        frames=1,
        alpha=torch.ones(1, 1, 12, 20),
        background=(1.0, 1.0, 1.0),
    )
    save_latent(folder / "a.safetensors", latent)
    _without_hash(folder / "a.safetensors", folder / "g.safetensors")
    plain = {"latent_tensor": torch.ones(1, 4, 2, 2), "latent_format_version_0": torch.tensor([])}
    save_file({**plain, "batch_index": torch.tensor([3])}, folder / "b.safetensors")
    values = torch.randn(128, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    weights = {"model.a.weight": values[:4, :4].clone(), "model.b.bias": torch.ones(3)}
    save_file(weights, folder / "c.safetensors", metadata={"format": "pt"})
    verify(folder / "c.safetensors", write=True)
    for number, (name, tensor) in enumerate(weights.items()):
        save_file({name: tensor}, folder / f"d{number}.safetensors")
    places = {name: f"d{number}.safetensors" for number, name in enumerate(weights)}
    index = {"metadata": {"total_size": 44}, "weight_map": places}
    (folder / "d.safetensors.index.json").write_text(json.dumps(index))
    _make_gguf(folder / "a.gguf")
    state = halfway.Halfway({"seed": "1"}, {"step": 3}, [torch.ones(4), torch.zeros(2)])
    halfway.write(folder / "e.safetensors", state)
    save_file({"w": values, "b": torch.ones(3)}, folder / "whole.safetensors")
    pack(folder / "whole.safetensors", folder / "f.safetensors")
    torch.save({"state_dict": weights}, folder / "a.ckpt")
    torch.save(weights, folder / "b.pt", _use_new_zipfile_serialization=False)


def _without_hash(path: Path, out: Path) -> None:
    """As version 1 was written at first, so that edits reach what is behind the hash."""
    with safe_open(path, framework="pt") as file:
        text = {key: value for key, value in file.metadata().items() if key != "sha256"}
        save_file({name: file.get_tensor(name) for name in file.keys()}, out, metadata=text)  # noqa: SIM118


def _make_gguf(path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(str(path), "flux")
    writer.add_uint32("flux.size", 3)
    writer.add_array("flux.names", ["a", "b"])
    writer.add_tensor("a.weight", np.ones((4, 8), np.float32))
    blocks = np.zeros((2, 34), np.uint8)
    writer.add_tensor("b.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    """The exit code: 1 where anything was found."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--count", type=int, default=1000, help="mutations of each kind")
    asked.add_argument("--kind", choices=KINDS, help="of this kind alone")
    asked.add_argument("--number", type=int, help="this mutation alone, here")
    asked.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = asked.parse_args()
    torch.set_num_threads(1)
    if options.work is not None:
        start, count, told = options.work
        return _work(options.kind, int(start), int(count), Path(told))
    if options.number is not None:
        with tempfile.TemporaryDirectory() as folder:
            sys.stdout.write(_one(Seeds(Path(folder)), options.kind, options.number) + "\n")
        return 0
    found = 0
    for kind in (options.kind,) if options.kind else KINDS:
        found += _kind(kind, options.count)
    return 1 if found else 0


def _one(seeds: Seeds, kind: str, number: int) -> str:
    return seeds.check(kind, drawn(number), mend=number % 2 == 1)


def _kind(kind: str, count: int) -> int:
    """All mutations of one kind, in processes that may be killed; how many findings there are."""
    began, start, findings = time.monotonic(), 0, []
    ends = {"refused": 0, "read": 0}
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told"
        while start < count:
            told.write_bytes(b"")
            command = [sys.executable, __file__, "--kind", kind, "--work"]
            work = subprocess.Popen(
                [*command, str(start), str(count), str(told)], stderr=subprocess.DEVNULL
            )
            how = _followed(work, told)
            lines = told.read_text().splitlines()
            reached = start
            for line in lines:
                number, _, end = line.partition(" ")
                reached = int(number)
                if end in ends:
                    ends[end] += 1
                elif end != "begins":
                    findings.append(f"{number}: {end}")
            if how is not None:
                findings.append(f"{reached}: {how}")
            start = reached + 1 if lines else count
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{kind}: {count} mutations, {ends['refused']} refused, {ends['read']} read, "
        f"{len(findings)} findings, {seconds:.0f} s\n"
    )
    for finding in findings[:20]:
        sys.stdout.write(f"    {finding[:300]}\n")
    sys.stdout.flush()
    return len(findings)


def _followed(work: subprocess.Popen[bytes], told: Path) -> str | None:
    """How a process that did not come to its end ended."""
    size, changed = 0, time.monotonic()
    while work.poll() is None:
        time.sleep(0.2)
        now = told.stat().st_size
        if now != size:
            size, changed = now, time.monotonic()
        elif size and time.monotonic() - changed > PATIENCE * 3:
            work.kill()
            work.wait()
            return "a hang"
    return None if work.returncode == 0 else f"the process ended with {work.returncode}"


def _work(kind: str, start: int, count: int, told: Path) -> int:
    with tempfile.TemporaryDirectory() as folder, told.open("a", buffering=1) as say:
        seeds = Seeds(Path(folder))
        for number in range(start, count):
            say.write(f"{number} begins\n")
            before, began = _most_memory(), time.monotonic()
            try:
                end = _one(seeds, kind, number)
            except AssertionError as error:
                end = str(error).replace("\n", " ") or "an assertion"
            if time.monotonic() - began > PATIENCE:
                end = f"{time.monotonic() - began:.0f} seconds"
            elif _most_memory() - before > MOST_MEMORY:
                end = f"{(_most_memory() - before) / 2**20:.0f} MiB of memory"
            say.write(f"{number} {end}\n")
    return 0


def _most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    os.environ["XDG_CACHE_HOME"] = tempfile.gettempdir()
    sys.exit(main())
