"""Archives: what goes out comes in as it was; what is anything else does not come in at all."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.cache import archive
from appliance.cache.place import Place
from appliance.cache.stamp import Stamp, Stamped
from appliance.cache.store import Store
from appliance.errors import CheckError
from tests.cache.cachekit import ARTEFACTS, KEY, PARTS, TOKENS, contents, fill, held, opened, sealed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def made(root: Path, tmp_path: Path) -> Path:
    """An archive of a generation that is no longer in the store."""
    store = sealed(root)
    (store.folder / KEY / "sm70/dense-1.zip").chmod(0o755)
    archive.export(store, KEY, tmp_path / "made.tar")
    store.remove(KEY)
    return tmp_path / "made.tar"


def nothing_came(root: Path) -> None:
    """Nothing of an import is there, and a start finds nothing either."""
    assert list((root / "generations").iterdir()) == [] if (root / "generations").exists() else True
    assert opened(root)[0] == "cold"


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz"])
def test_what_is_exported_and_imported_is_warm_with_its_tokens(root: Path, tmp_path: Path, name: str) -> None:
    store, file = sealed(root), tmp_path / name
    seen: list[int] = []
    out = archive.export(store, KEY, file, seen.append)
    size = sum(map(len, ARTEFACTS.values()))
    assert (out.key, out.files, out.size_bytes, out.already_there) == (KEY, 4, size, False)
    assert sum(seen) == size
    store.remove(KEY)
    assert archive.import_(store, file, seen.append) == out
    assert sum(seen) == 2 * size
    found = store.generations()[0]
    assert (found.state, found.in_use, found.parts) == ("sealed", False, PARTS)
    with held(root) as lease:
        assert (lease.state, lease.tokens, contents(lease.folder)) == ("warm", TOKENS, ARTEFACTS)


def test_an_archive_is_a_tar_that_others_can_list_with_the_manifest_first(made: Path) -> None:
    with tarfile.open(made) as listed:
        names = listed.getnames()
        manifest = json.load(listed.extractfile("stamp.json") or io.BytesIO())
    assert names == ["stamp.json", *(f"files/{number:08d}" for number in range(4))]
    assert (manifest["key"], manifest["parts"], sorted(manifest["files"])) == (KEY, PARTS, sorted(ARTEFACTS))


def test_the_same_generation_makes_the_same_bytes(root: Path, tmp_path: Path) -> None:
    store = sealed(root)
    for name in ("a.tar.gz", "b.tar.gz"):
        archive.export(store, KEY, tmp_path / name)
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_the_right_to_execute_comes_along(root: Path, made: Path) -> None:
    archive.import_(Store(root), made)
    folder = root / "generations" / KEY
    assert os.access(folder / "sm70/dense-1.zip", os.X_OK)
    assert (folder / "inductor/xy/cxyz.py").stat().st_mode & 0o111 == 0


def test_only_what_is_sealed_goes_out(root: Path, tmp_path: Path) -> None:
    with sealed(root).open(KEY, PARTS) as lease:
        fill(lease.folder, {"cuda/1/index": b"driver", "triton/NEW/late": b"late"})
        assert archive.export(Store(root), KEY, tmp_path / "a.tar").files == 4
    with held(root / "other") as lease:
        fill(lease.folder)
    with pytest.raises(CheckError, match="not sealed"):
        archive.export(Store(root / "other"), KEY, tmp_path / "b.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "cache"]


def test_a_file_that_changed_since_it_was_sealed_stops_the_export_and_leaves_no_archive(
    root: Path, tmp_path: Path
) -> None:
    store = sealed(root)
    fill(store.folder / KEY, {"sm70/dense-1.zip": b"XX"})
    with pytest.raises(CheckError, match="dense-1"):
        archive.export(store, KEY, tmp_path / "a.tar")
    fill(store.folder / KEY, {"sm70/dense-1.zip": b"longer than it was"})
    with pytest.raises(CheckError, match="dense-1"):
        archive.export(store, KEY, tmp_path / "a.tar.gz")
    (store.folder / KEY / "sm70/dense-1.zip").unlink()
    (store.folder / KEY / "sm70/dense-1.zip").symlink_to("/etc/passwd")
    with pytest.raises(CheckError):
        archive.export(store, KEY, tmp_path / "a.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_an_export_overwrites_nothing(root: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"precious")
    with pytest.raises(CheckError, match="is there already"):
        archive.export(sealed(root), KEY, tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == b"precious"


@pytest.mark.parametrize("where", ["export", "import"])
def test_a_full_disk_leaves_nothing_half_done(
    root: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    store = Store(root)
    if where == "export":
        archive.import_(store, made)

    real = os.fsync
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > (2 if where == "import" else 0):
            raise OSError(28, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckError, match="No space"):
            archive.export(store, KEY, tmp_path / "b.tar") if where == "export" else archive.import_(store, made)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "made.tar"]
    if where == "import":
        nothing_came(root)


def test_importing_what_is_there_already_is_done_and_importing_over_other_content_is_refused(
    root: Path, made: Path
) -> None:
    store = Store(root)
    archive.import_(store, made)
    assert archive.import_(store, made).already_there
    with held(root) as lease:
        assert archive.import_(store, made).already_there, "nothing is touched while it is in use"
        fill(lease.folder, {"triton/NEW/late.cubin": b"late"})
        assert lease.seal().sealed
    with pytest.raises(CheckError, match="other content"):
        archive.import_(store, made)
    assert store.verify(KEY) == []
    store.remove(KEY)
    with held(root) as lease:
        fill(lease.folder)
    with pytest.raises(CheckError, match="not sealed"):
        archive.import_(store, made)


def test_a_generation_that_was_made_elsewhere_is_refused_with_the_folder_to_use(made: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=f"--cache-dir {tmp_path / 'cache'}$"):
        archive.import_(Store(tmp_path / "elsewhere"), made)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_every_truncation_is_refused(root: Path, made: Path, tmp_path: Path, packed: bool) -> None:
    whole = made.read_bytes()
    data = gzip.compress(whole, 1) if packed else whole
    # The two last blocks, and gzip's checksum after them, hold nothing that is needed.
    needed = len(data) - (40 if packed else 1024)
    steps = sorted({*range(0, needed, max(1, needed // 60)), needed - 1, 1, 2, 511, 512, 513})
    for length in steps:
        short = tmp_path / "short"
        short.write_bytes(data[:length])
        with pytest.raises(CheckError):
            archive.import_(Store(root), short)
        assert list((root / "generations").iterdir()) == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_bit_that_flips_anywhere_is_refused_or_harms_nothing(root: Path, made: Path, data: Any) -> None:
    whole = bytearray(made.read_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    harmed = made.with_name("harmed")
    harmed.write_bytes(whole)
    store = Store(root)
    try:
        archive.import_(store, harmed)
    except CheckError:
        assert list((root / "generations").iterdir()) == []
    else:
        # Owner, time and padding of a tar's header are not used.
        assert contents(store.folder / KEY) == ARTEFACTS
        assert store.verify(KEY) == []
        store.remove(KEY)


def packed(root: Path, target: Path, *, change: Callable[[Stamp], Stamp] = lambda stamp: stamp, **options: Any) -> Path:
    """Write an archive by hand: `change` the manifest, `members` by position, `extra` at the end."""
    contained = {name: ARTEFACTS[name] for name in sorted(ARTEFACTS)}
    stamp = Stamp(
        key=KEY,
        parts=PARTS,
        folder=str(root / "generations" / KEY),
        files={name: Stamped(len(data), hashlib.sha256(data).hexdigest()) for name, data in contained.items()},
        created_at=1.0,
        sealed_at=2.0,
    )
    manifest = change(stamp).dump()
    with tarfile.open(target, "w", format=options.get("format", tarfile.USTAR_FORMAT)) as tar:
        add(tar, options.get("manifest_name", "stamp.json"), manifest)
        for number, data in enumerate(contained.values()):
            replaced = options.get("members", {}).get(number)
            if replaced is None:
                add(tar, f"files/{number:08d}", data)
            else:
                tar.addfile(replaced, io.BytesIO(bytes(replaced.size)))
        for extra in options.get("extra", []):
            tar.addfile(extra)
    return target


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def test_an_archive_made_by_hand_in_the_same_form_is_taken(root: Path, tmp_path: Path) -> None:
    archive.import_(Store(root), packed(root, tmp_path / "a.tar"))
    assert contents(root / "generations" / KEY) == ARTEFACTS


BAD_NAMES = [
    "../escape", "/etc/cron.d/x", "vllm/../../escape", "vllm//x", "vllm/./x", "stamp.json", "use.json", "", "vllm",
    "elsewhere/x", "cuda/1/index", "vllm/gpu_p2p_access_cache_for_0.json", "vllm/a/cache_key_factors.json",
    "triton/tmp.pid_1_x/y", "inductor/x.tmp", "vllm/\0", "vllm/x/", "vllm/\ud800",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_no_artefacts_is_refused_before_anything_is_written(
    root: Path, tmp_path: Path, name: str
) -> None:
    def change(stamp: Stamp) -> Stamp:
        return replace(stamp, files={**stamp.files, name: Stamped(0, hashlib.sha256().hexdigest())})

    with pytest.raises(CheckError, match="no name of an artefact"):
        archive.import_(Store(root), packed(root, tmp_path / "a.tar", change=change))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar"]


MEMBERS = {
    "a link": member("files/00000001", tarfile.SYMTYPE, "/etc/passwd"),
    "a hard link": member("files/00000001", tarfile.LNKTYPE, "../../use.json"),
    "a device": member("files/00000001", tarfile.CHRTYPE),
    "a disk": member("files/00000001", tarfile.BLKTYPE),
    "a pipe": member("files/00000001", tarfile.FIFOTYPE),
    "a folder": member("files/00000001", tarfile.DIRTYPE),
    "another name": member("../escape"),
    "the first once more": member("files/00000000"),
    "too little": member("files/00000001"),
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_a_member_that_is_not_the_plain_file_that_must_come_is_refused(root: Path, tmp_path: Path, kind: str) -> None:
    file = packed(root, tmp_path / "a.tar", members={1: MEMBERS[kind]})
    with pytest.raises(CheckError, match=r"a\.tar is not taken"):
        archive.import_(Store(root), file)
    nothing_came(root)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "cache"]


@pytest.mark.parametrize(
    "options",
    [
        {"extra": [member("files/00000004")]},
        {"extra": [member("../escape")]},
        {"manifest_name": "manifest.json"},
        {"manifest_name": "../stamp.json"},
        {"change": lambda stamp: replace(stamp, key="0" * 32)},
        {"change": lambda stamp: replace(stamp, key="../../escape")},
        {"change": lambda stamp: replace(stamp, parts={**PARTS, "image": "other"})},
        {"change": lambda stamp: replace(stamp, folder="/elsewhere")},
        {"change": lambda stamp: replace(stamp, files={**stamp.files, "sm70/dense-1.zip": Stamped(2, "0" * 64)})},
        {"change": lambda stamp: replace(stamp, files={**stamp.files, "sm70/dense-1.zip/x": Stamped(0, "0" * 64)})},
        {"change": lambda stamp: replace(stamp, files={**stamp.files, "vllm/zz": Stamped(2**40, "0" * 64)})},
        {"change": lambda stamp: replace(stamp, files={**stamp.files, "vllm/zz": Stamped(-1, "0" * 64)})},
    ],
    ids=range(12),
)
def test_a_manifest_that_tells_anything_else_is_refused(root: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(CheckError):
        archive.import_(Store(root), packed(root, tmp_path / "a.tar", **options))
    nothing_came(root)


@pytest.mark.parametrize("data", [b"", b"\x1f\x8b", b"\x1f\x8b" + bytes(20), b"PK\3\4" + bytes(600), bytes(10240)])
def test_what_is_no_archive_is_told_so(root: Path, tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "a.tar"
    file.write_bytes(data)
    with pytest.raises(CheckError, match=r"a\.tar is not taken"):
        archive.import_(Store(root), file)
    with pytest.raises(CheckError, match="cannot be imported: No such file"):
        archive.import_(Store(root), tmp_path / "none.tar")


def test_an_import_that_breaks_off_leaves_no_generation(
    root: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Place, "write_stamp", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        archive.import_(Store(root), made)
    assert list((root / "generations").iterdir()) == []
