"""Group F: files, as they come and as they are left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import tightfit
from tests.cases.common import virtual
from tightfit.adapters import find_parts, find_vae, load_part, load_vae
from tightfit.card import open_card
from tightfit.cli import run
from tightfit.errors import InputError, MemoryShortage
from tightfit.media.latents import FurtherLatent, LatentFile, load_latent, save_latent
from tightfit.media.sound import read_sound
from tightfit.units import MIB
from tightfit.weigh.files.hash_lists import file_hash

VAE = "random:flux-vae-mini"
PICTURE = torch.linspace(0, 1, 3 * 32 * 32).view(3, 32, 32)
LAYERS, SIDE = 16, 2048
TENSOR = SIDE * SIDE * 4
"""256 MiB in tensors of 16 MiB."""
ASIDE = 12 * MIB
"""Of the interpreter, while it works."""


def sparse(path: Path) -> Path:
    """A safetensors file of zeros that takes no room on the disk."""
    entries = {
        f"{n}.weight": {
            "dtype": "F32",
            "shape": [SIDE, SIDE],
            "data_offsets": [n * TENSOR, (n + 1) * TENSOR],
        }
        for n in range(LAYERS)
    }
    text = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + LAYERS * TENSOR)
    return path


def unfilled() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*[nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)])


def own_bytes() -> int:
    """Memory of this process that is no file's."""
    resident, of_files = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(of_files)) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def watched() -> Iterator[list[int]]:
    """The rise of `own_bytes`, looked at all the time; known afterwards."""
    rise: list[int] = []
    before = highest = own_bytes()
    on = True

    def look() -> None:
        nonlocal highest
        while on:
            highest = max(highest, own_bytes())
            time.sleep(0.0005)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield rise
    finally:
        on = False
        looking.join()
        rise.append(max(highest, own_bytes()) - before)


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_f01_a_load_to_the_host_takes_no_more_than_the_file(tmp_path: Path) -> None:
    """The map is what is computed with: no copy of it is made, and it is closed with the model."""
    path = sparse(tmp_path / "a.safetensors")
    model = unfilled()
    with watched() as rise, torch.no_grad():
        tightfit.load_weights(model, path)
        model(torch.zeros(1, SIDE))
    assert rise[0] <= TENSOR + ASIDE
    assert is_mapped(path)
    del model
    assert not is_mapped(path)


def test_f01_a_load_to_the_card_takes_one_tensor_of_the_host(tmp_path: Path) -> None:
    """A virtual card's memory is the host's, so that is taken off; the rest is not twice there."""
    path = sparse(tmp_path / "a.safetensors")
    model, card = unfilled(), open_card("virtual:1GiB")
    with watched() as rise, torch.no_grad():
        tightfit.load_weights(model, path)
        fitted = tightfit.fit(model, card=card)
        fitted(torch.zeros(1, SIDE))
    held = card.read().allocated
    assert held is not None
    assert held >= LAYERS * TENSOR
    assert rise[0] - held <= TENSOR + ASIDE
    tightfit.unfit(fitted)
    del fitted, model
    assert not is_mapped(path)


FLAWS: dict[str, Callable[[bytes], bytes]] = {
    "cut by 1 KB": lambda data: data[:-1024],
    "cut in its header": lambda data: data[:100],
    "512 bytes appended": lambda data: data + bytes(512),
    "a header of 2^60": lambda data: (2**60).to_bytes(8, "little") + data[8:],
    "offsets that overlap": lambda data: _overlapping(data),
}


def _overlapping(data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    entries = sorted((k for k in header if k != "__metadata__"), key=lambda k: header[k]["shape"])
    one, other = entries[:2]
    header[other] = dict(header[one])
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vae") / "vae.safetensors"
    save_file(load_vae(find_vae(VAE)).module.state_dict(), path)
    return path


@pytest.mark.parametrize("flaw", FLAWS)
def test_f03_every_door_refuses_a_damaged_checkpoint_before_anything_else(
    flaw: str, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its path and both sizes, wherever it is opened; nothing is on the card."""
    path = tmp_path / "bad.safetensors"
    path.write_bytes(FLAWS[flaw](weights.read_bytes()))
    folder = tmp_path / "folder"
    module = load_vae(find_vae(VAE)).module
    module.save_config(folder)
    (folder / "diffusion_pytorch_model.safetensors").write_bytes(path.read_bytes())
    card = virtual("64MiB")
    latent = torch.zeros(1, 16, 4, 4)
    doors: dict[str, Callable[[], object]] = {
        "encode": lambda: tightfit.encode(PICTURE, vae=str(path), card=card),
        "encode, folder": lambda: tightfit.encode(PICTURE, vae=str(folder), card=card),
        "decode": lambda: tightfit.decode(latent, vae=str(path), card=card),
        "load_weights": lambda: tightfit.load_weights(module, path),
        "pack": lambda: tightfit.pack(path, tmp_path / "packed.safetensors"),
        "make_plan": lambda: tightfit.make_plan(path, card="virtual:64MiB"),
    }
    for door, enter in doors.items():
        with pytest.raises(InputError) as refused:
            enter()
        said = str(refused.value)
        assert ("folder" if "folder" in door else "bad.safetensors") in said, door
        if "overlap" not in flaw:
            real = (folder if "folder" in door else path.parent) / (
                "diffusion_pytorch_model.safetensors" if "folder" in door else path.name
            )
            assert f"{real.stat().st_size:,}" in said, door
            assert "byte " in said, door
    assert card.read().peak_allocated == 0
    assert run(["plan", str(path), "--card", "virtual:64MiB"]) == 2
    assert run(["verify", str(path)]) == 1
    assert "bad.safetensors" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bad.safetensors", "folder"]


def test_f04_verify_names_the_tensor_whose_bytes_are_wrong(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 bytes flipped in one weight: same size, same header, another picture."""
    path = tmp_path / "vae.safetensors"
    path.write_bytes(weights.read_bytes())
    assert run(["verify", str(path)]) == 2
    assert "verify --write" in capsys.readouterr().err
    assert run(["verify", "--write", str(path)]) == 0
    assert run(["verify", str(path)]) == 0
    damaged = bytearray(path.read_bytes())
    name = "decoder.conv_in.weight"
    length = int.from_bytes(damaged[:8], "little")
    begin = 8 + length + json.loads(damaged[8 : 8 + length])[name]["data_offsets"][0]
    damaged[begin : begin + 16] = bytes(each ^ 0xFF for each in damaged[begin : begin + 16])
    path.write_bytes(damaged)
    capsys.readouterr()
    assert run(["verify", str(path), "--json"]) == 1
    (told,) = json.loads(capsys.readouterr().out)["files"]
    assert [(each["name"], each["kind"]) for each in told["differences"]] == [
        (name, "changed"),
        ("__file__", "changed"),
    ]
    assert run(["verify", str(path)]) == 1
    assert f"`{name}` (changed)" in capsys.readouterr().err


def test_f04_the_report_of_a_run_carries_the_hash_where_it_is_known(
    weights: Path, tmp_path: Path
) -> None:
    """As `sha256sum` tells it; nothing is said of a file that nobody hashed."""
    path = tmp_path / "vae.safetensors"
    path.write_bytes(weights.read_bytes())
    card = virtual("64MiB")
    unknown = tightfit.encode(PICTURE, vae=str(path), card=card).report.model
    assert unknown["files"] == {}
    tightfit.verify(path, write=True)
    told = tightfit.encode(PICTURE, vae=str(path), card=card).report.model["files"]
    summed = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True)
    assert told == {str(path): summed.stdout.split()[0]}


def test_f04_the_report_of_a_pipeline_carries_the_hashes_of_its_files(tmp_path: Path) -> None:
    """Of the networks that come from files which somebody hashed."""
    path, report = tmp_path / "vae.safetensors", tmp_path / "r.json"
    part = next(each for each in find_parts("random:sdxl-mini") if each.name == "vae")
    save_file(load_part(part, dtype=torch.float32).state_dict(), path)
    tightfit.verify(path, write=True)
    job = ["generate", "random:sdxl-mini", "--prompt", "x", "--steps", "1", "--vae", str(path)]
    made = ["-o", str(tmp_path / "a.png"), "--card", "cpu", "--report", str(report)]
    assert run([*job, *made]) == 0
    assert json.loads(report.read_text())["model"]["files"] == {str(path): file_hash(path)}


def streams() -> LatentFile:
    """Of a film: picture in bfloat16 and sound in float32, with what samplers keep beside them."""
    generator = torch.Generator().manual_seed(0)
    return LatentFile(
        latent=torch.randn(1, 16, 4, 8, 8, generator=generator).bfloat16(),
        vae="AutoencoderKLWan",
        vae_hash="cd" * 32,
        scale=(0.5, 0.25),
        shift=(-0.5,),
        ratio=(4, 8),
        dtype="bfloat16",
        width=64,
        height=64,
        frames=13,
        streams={
            "audio": FurtherLatent(
                latent=torch.randn(1, 64, 100, generator=generator),
                vae="AutoencoderOobleck",
                vae_hash="ef" * 32,
                scale=(2.0,),
                ratio=(2048,),
                dtype="float32",
            )
        },
        mask=torch.rand(1, 1, 4, 8, 8, generator=generator).half(),
        batch_index=(3,),
    )


def test_f05_a_latent_of_several_streams_comes_back_and_is_decoded(tmp_path: Path) -> None:
    """All fields, dtypes, and what is known of each VAE; the picture's stream is decoded."""
    saved, path = streams(), tmp_path / "z.safetensors"
    save_latent(path, saved)
    loaded = load_latent(path)
    for name in ("vae", "vae_hash", "scale", "shift", "ratio", "dtype", "frames", "batch_index"):
        assert getattr(loaded, name) == getattr(saved, name), name
    assert loaded.mask is not None
    assert saved.mask is not None
    pairs = [(loaded.latent, saved.latent), (loaded.mask, saved.mask)]
    assert set(loaded.streams) == {"audio"}
    own, other = loaded.streams["audio"], saved.streams["audio"]
    for name in ("vae", "vae_hash", "scale", "shift", "ratio", "dtype"):
        assert getattr(own, name) == getattr(other, name), name
    for one, two in (*pairs, (own.latent, other.latent)):
        assert one.dtype == two.dtype
        assert torch.equal(one, two)
    done = tightfit.decode(path, vae="random:wan2.1-vae-mini", card=virtual("1GiB"))
    assert done.value.pixels.shape == (13, 3, 64, 64)


def test_f05_the_sound_of_a_latent_is_decoded_by_its_own_vae(tmp_path: Path) -> None:
    """The VAE that is given says which stream is meant."""
    path, out = tmp_path / "z.safetensors", tmp_path / "a.wav"
    sound = FurtherLatent(
        latent=torch.randn(1, 8, 3, generator=torch.Generator().manual_seed(0)) / 9,
        vae="AutoencoderOobleck",
    )
    save_latent(path, replace(streams(), streams={"audio": sound}))
    vae = ["--vae", "random:stable-audio-vae-mini", "--card", "virtual:1GiB"]
    assert run(["decode", str(path), "-o", str(out), *vae]) == 0
    assert read_sound(out).samples.shape == (2, 3 * 2048)


@pytest.mark.parametrize("named", [True, False], ids=["ours", "another tool's"])
def test_f05_a_latent_of_4_channels_is_refused_by_a_vae_of_16(named: bool, tmp_path: Path) -> None:
    """By name, before the weights are read: what it is, which VAEs are like it, what was given."""
    path = tmp_path / "z.safetensors"
    if named:
        made = LatentFile(
            latent=torch.zeros(1, 4, 8, 8),
            vae="AutoencoderKL",
            ratio=(1, 8),
            dtype="float32",
            width=64,
            height=64,
        )
        save_latent(path, made)
    else:
        save_file({"samples": torch.zeros(1, 4, 8, 8)}, path)
    card = virtual("64MiB")
    with pytest.raises(InputError, match=r"z\.safetensors has 4 channels.*sdxl-vae.* takes 16"):
        tightfit.decode(path, vae="random:flux-vae", card=card)
    assert card.read().peak_allocated == 0


def test_f05_latents_of_other_tools_are_read(tmp_path: Path) -> None:
    """`latent_tensor` with its marker as it is, without it by the old factor; `samples`."""
    latent = torch.randn(2, 16, 4, 4, generator=torch.Generator().manual_seed(0))
    files = {
        "new": {"latent_tensor": latent, "latent_format_version_0": torch.tensor([])},
        "old": {"latent_tensor": latent * 0.18215},
        "plain": {
            "samples": latent,
            "noise_mask": torch.ones(2, 1, 32, 32),
            "batch_index": torch.tensor([5, 9]),
        },
    }
    for name, tensors in files.items():
        path = tmp_path / f"{name}.latent"
        save_file(tensors, path)
        read = load_latent(path)
        torch.testing.assert_close(read.latent, latent)
        assert read.vae is None
        done = tightfit.decode(path, vae=VAE, card=virtual("64MiB"))
        assert done.value.pixels.shape == (2, 3, 32, 32)
    assert read.batch_index == (5, 9)
    assert read.mask is not None
    assert read.mask.shape == (2, 1, 32, 32)


def test_f05_a_latent_whose_content_was_changed_is_refused(tmp_path: Path) -> None:
    """A flipped bit in a tensor or in the metadata; a file without a hash is read."""
    path = tmp_path / "z.safetensors"
    save_latent(path, streams())
    whole = path.read_bytes()
    for at in (len(whole) - 3, whole.index(b"AutoencoderKLWan")):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(InputError, match=r"z\.safetensors: its content is not what its hash"):
            load_latent(path)
    tensors = load_file(path)
    keys = {"version": "1", "vae": "v", "ratio": "[4,8]", "dtype": "x", "width": "8", "height": "8"}
    save_file({"latent": tensors["latent"]}, path, metadata=keys)
    assert load_latent(path).vae == "v"


WRITERS = {
    "latent": "save_latent(goal, latent)",
    "png": "write_picture(goal.with_suffix('.png'), torch.rand(3, 64, 64))",
    "frames": "frames(goal.with_suffix(''))",
    "clip": "clip(goal.with_suffix('.mp4'))",
    "report": "show.write_report(Voice(False, False, goal), Report('x', {}, {}, {}, 0))",
    "trace": "trace(goal)",
    "resume file": "halfway.write(goal, halfway.Halfway({}, {}, [torch.zeros(9)]))",
    "hash list": "verify(source, write=True)",
    "packed": "pack(source, goal)",
    "packed folder": "pack(source.parent, goal.with_suffix(''))",
}
PROGRAM = """
import json, os, signal, sys, traceback
from fractions import Fraction
from pathlib import Path
import torch
from tightfit import pack, verify
from tightfit.cli import show
from tightfit.cli.options import Voice
from tightfit.media.files import whole_file
from tightfit.media.latents import LatentFile, save_latent
from tightfit.media.outputs import open_frames
from tightfit.media.picture_writer import write_picture
from tightfit.report.record import Report
from tightfit.run.halfway import file as halfway
from tightfit.watch import Recorder

root, source = Path(sys.argv[1]), Path(sys.argv[2])
latent = LatentFile(
    latent=torch.zeros(1, 4, 8, 8), vae="v", ratio=(1, 8), dtype="float32", width=8, height=8
)

def clip(path):
    with open_frames(path, width=64, height=64, frames=4, fps=Fraction(24)) as writer:
        writer.write(torch.rand(4, 3, 64, 64))

frames = clip

def trace(path):
    with whole_file(path) as part:
        Recorder().write(part)

ended = {}
for what, program in json.loads(sys.argv[3]).items():
    goal = root / what.replace(" ", "-") / "a.safetensors"
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        os.fsync = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        try:
            exec(program)
        except BaseException:
            traceback.print_exc()
        os._exit(7)
    status = os.waitpid(child, 0)[1]
    ended[what] = os.waitstatus_to_exitcode(status)
print(json.dumps(ended))
"""


def test_f07_a_kill_in_mid_save_leaves_the_old_file_or_none(tmp_path: Path) -> None:
    """Killed when all is written and nothing is on the disk for sure: every writer gets there."""
    source = tmp_path / "source" / "a.safetensors"
    source.parent.mkdir()
    values = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_file({"a.weight": values}, source)
    listed = source.with_name(f"{source.name}.sha256.json")
    listed.write_bytes(b"old")
    old = [listed]
    for what in WRITERS:
        folder = tmp_path / what.replace(" ", "-")
        folder.mkdir()
        for name in ("a.safetensors", "a.png", "a.mp4"):
            (folder / name).write_bytes(b"old")
            old.append(folder / name)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(source), json.dumps(WRITERS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout) == dict.fromkeys(WRITERS, -signal.SIGKILL), done.stderr
    assert {each.read_bytes() for each in old} == {b"old"}
    assert not any((tmp_path / what.replace(" ", "-") / "a").exists() for what in WRITERS)


def test_f07_a_full_disk_is_said_with_the_bytes_and_leaves_nothing(tmp_path: Path) -> None:
    """On a disk of 1 MB, where one can be mounted; else by a limit on the size of files."""
    latent = LatentFile(
        latent=torch.zeros(1, 16, 256, 256),
        vae="v",
        ratio=(1, 8),
        dtype="float32",
        width=8,
        height=8,
    )
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("a disk of 1 MB cannot be mounted here; test_files.py has one that says so")
    try:
        with pytest.raises(InputError, match=r"disk is full; the file needs 4\.0 MiB"):
            save_latent(disk / "z.safetensors", latent)
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_f_pickles_are_refused_unless_they_are_allowed(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then their tensors alone are read, to the same latent; code in one is never run."""
    path, evil = tmp_path / "vae.ckpt", tmp_path / "evil.ckpt"
    torch.save({"state_dict": load_file(weights), "epoch": 3}, path)
    card = virtual("64MiB")
    with pytest.raises(InputError, match=r"vae\.ckpt: it is a pickle.*--allow-pickle"):
        tightfit.encode(PICTURE, vae=str(path), card=card)
    with tightfit.pickles_allowed(True):
        own = tightfit.encode(PICTURE, vae=str(path), card=card).value.latent
    assert torch.equal(own, tightfit.encode(PICTURE, vae=str(weights), card=card).value.latent)
    plan = ["plan", str(path), "--card", "virtual:64MiB", "-q"]
    assert run(plan) == 2
    assert run([*plan, "--allow-pickle"]) == 0

    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path / 'done'}",)

    torch.save({"a": torch.zeros(2), "b": Evil()}, evil)
    for damaged in (evil.read_bytes(), path.read_bytes()[:-100], b"\x80\x02nonsense"):
        evil.write_bytes(damaged)
        capsys.readouterr()
        assert run(["plan", str(evil), "--card", "cpu", "--allow-pickle"]) == 2
        assert "evil.ckpt: the pickle" in capsys.readouterr().err
    assert not (tmp_path / "done").exists()


def test_f_the_card_is_as_it_was_when_a_decode_is_refused(tmp_path: Path) -> None:
    """The latent stays where it is, and a smaller need finishes."""
    path = tmp_path / "z.safetensors"
    made = tightfit.encode(PICTURE, vae=VAE, card=virtual("64MiB")).value
    save_latent(path, made)
    card = virtual("1MiB")
    with pytest.raises(MemoryShortage):
        tightfit.decode(path, vae=VAE, card=card)
    assert card.read().allocated == 0
    assert load_latent(path).latent.shape == made.latent.shape
