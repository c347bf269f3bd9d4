"""Downloads against a hub on the loopback interface: whole, broken off, refused, altered, away."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from typing import TYPE_CHECKING

import pytest

from appliance.errors import CheckError, ConfigurationError
from appliance.models import hub as downloads
from appliance.models.progress import LogProgress, SilentProgress
from tests.models import fakehub

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = b'{"model_type": "llama"}'
WEIGHTS = os.urandom(25 << 20)  # more than two of the library's 10 MB chunks, so that a break leaves a part
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()


def tiny(**changes: object) -> fakehub.Hub:
    files = {"config.json": CONFIG, "sub/tokenizer.json": b"{}", "model.safetensors": WEIGHTS}
    return fakehub.Hub(files, {"model.safetensors"}, **changes)  # type: ignore[arg-type]


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    return tmp_path / ".tiny.partial"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))


def fetch(
    hub: fakehub.Hub, partial: Path, published: dict[str, str] | None = None, revision: str = fakehub.REVISION
) -> dict[str, str]:
    os.environ["HF_ENDPOINT"] = hub.url
    try:
        return downloads.download(
            fakehub.REPOSITORY, revision, published or {}, partial, partial.with_name("tiny"), SilentProgress()
        )
    finally:
        del os.environ["HF_ENDPOINT"]


def refused(hub: fakehub.Hub, partial: Path, kind: type[Exception] = CheckError, **more: str) -> str:
    with fakehub.running(hub), pytest.raises(kind) as caught:
        fetch(hub, partial, **more)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(hub.url, "HUB").replace(str(partial.parent), "DIR")


def test_every_file_comes_with_the_hash_that_the_hub_publishes(partial: Path) -> None:
    with fakehub.running(tiny()) as hub:
        hashes = fetch(hub, partial, {"model.safetensors": SHA256})
    assert hashes == {
        "config.json": hashlib.sha256(CONFIG).hexdigest(),
        "sub/tokenizer.json": hashlib.sha256(b"{}").hexdigest(),
        "model.safetensors": SHA256,
    }
    assert sorted(str(path.relative_to(partial)) for path in partial.rglob("*") if path.is_file()) == sorted(hashes)
    assert (partial / "model.safetensors").read_bytes() == WEIGHTS


def test_progress_counts_every_byte_once_though_the_connection_broke(
    partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.models.progress.LINE_EVERY", 0.0)
    lines: list[str] = []
    with fakehub.running(tiny(break_after={"model.safetensors": [11 << 20]})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        downloads.download(fakehub.REPOSITORY, fakehub.REVISION, {}, partial, partial, LogProgress(lines.append))
    assert lines[0] == "downloading maker/tiny: 0 B of 26.2 MB (0 %)"
    assert lines[-2].startswith("downloading maker/tiny: 26.2 MB of 26.2 MB (100 %)")
    assert hub.ranges("model.safetensors") == [None, f"bytes={10 << 20}-"]


def test_an_interrupted_download_is_continued_by_the_next(partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    # The library tries a broken connection five times more, so the hub breaks each of them.
    with fakehub.running(tiny(break_after={"model.safetensors": [11 << 20, *[10 << 20] * 5]})) as hub:
        with pytest.raises(CheckError, match="run the same command again, which continues"):
            fetch(hub, partial)
        assert not (partial / "model.safetensors").exists()
        assert (partial / ".parts/model.safetensors").stat().st_size == 10 << 20
        hub.requests.clear()
        fetch(hub, partial)
    assert hub.ranges("model.safetensors") == [f"bytes={10 << 20}-"]
    assert (partial / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges("config.json") == []


def test_a_file_that_is_not_what_the_hub_publishes_is_deleted_and_named(partial: Path) -> None:
    hub = tiny(served={"model.safetensors": bytes(len(WEIGHTS))})
    assert refused(hub, partial).startswith("model.safetensors came with hash ")
    assert not list(partial.rglob("model.safetensors"))


def test_a_small_file_is_held_against_the_hash_that_git_gives_it(partial: Path) -> None:
    hub = tiny(served={"config.json": b"x" * len(CONFIG)})
    wanted = fakehub.blob_id(CONFIG)[:12]
    assert f"config.json came with hash {fakehub.blob_id(b'x' * len(CONFIG))[:12]}…, the hub publishes {wanted}…" in (
        refused(hub, partial)
    )


@pytest.mark.parametrize("served", [b"short", bytes(30 << 20)])
def test_a_file_of_another_size_is_refused_and_fetched_anew(partial: Path, served: bytes) -> None:
    hub = tiny(served={"model.safetensors": served})
    assert "sent a file of maker/tiny with another size than it lists" in refused(hub, partial)
    with fakehub.running(tiny()) as good:
        assert fetch(good, partial)["model.safetensors"] == SHA256


def test_a_hash_that_the_profile_does_not_know_is_refused_before_anything_is_fetched(partial: Path) -> None:
    hub = tiny()
    text = refused(hub, partial, published={"model.safetensors": "0" * 64})  # type: ignore[arg-type]
    assert text == (
        f"maker/tiny publishes SHA-256 {SHA256[:12]}… for model.safetensors, the profile wants 000000000000…; "
        "correct the profile or the revision"
    )
    assert hub.ranges("model.safetensors") == []


def test_a_file_of_the_profile_that_the_hub_does_not_have(partial: Path) -> None:
    text = refused(tiny(), partial, ConfigurationError, published={"more.safetensors": "0" * 64})  # type: ignore[arg-type]
    assert text == "maker/tiny has no file more.safetensors, wanted by the profile; correct the profile"


def test_a_revision_that_does_not_exist(partial: Path) -> None:
    text = refused(tiny(), partial, ConfigurationError, revision="b" * 40)
    assert text == f"maker/tiny has no revision {'b' * 40}; correct the revision in the profile"


def test_a_mirror_that_answers_another_revision(partial: Path) -> None:
    text = refused(tiny(sha="c" * 40), partial)
    assert text.startswith(f"HUB cannot serve maker/tiny: it answers revision {'c' * 40}, wanted {'a' * 40}")


def test_a_gated_repository_asks_for_a_token(partial: Path) -> None:
    text = refused(tiny(wanted_token="hf_right"), partial)
    assert text == ("maker/tiny is gated: accept its terms on HUB/maker/tiny; set HF_TOKEN to a token that may read it")


def test_a_token_that_may_not_read_it_is_never_shown(partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_secret")
    text = refused(tiny(wanted_token="hf_right"), partial)
    assert text.endswith("the token that is set may not read it")
    assert "secret" not in text


def test_the_token_goes_with_every_request(
    partial: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    hub = tiny(wanted_token="hf_right", break_after={"model.safetensors": [11 << 20]})
    with fakehub.running(hub):
        fetch(hub, partial)
    assert set(hub.tokens) == {"Bearer hf_right"}
    assert "hf_right" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((401, None), "HUB refuses maker/tiny (HTTP 401): private, or no such name; set HF_TOKEN to a token that may"),
        ((403, None), "HUB refuses maker/tiny (HTTP 403): private, or no such name; set HF_TOKEN to a token that may"),
        ((404, "RepoNotFound"), "maker/tiny is not on HUB, or private: check its name"),
        ((500, None), "HUB answered HTTP 500 for maker/tiny; run the same command again later"),
    ],
)
def test_a_hub_that_refuses(partial: Path, refusal: tuple[int, str | None], words: str) -> None:
    assert refused(tiny(refusal=refusal), partial).startswith(words)


def test_a_hub_that_is_away(partial: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(CheckError) as caught:
            fetch(tiny(url=f"http://user:secret@{address}"), partial)
    assert str(caught.value).startswith(f"http://{address} cannot be reached for maker/tiny (ConnectError): check the")
    assert "secret" not in str(caught.value)
    assert str(caught.value).endswith(f"or place the files in {partial.with_name('tiny')} by hand")


def test_a_hub_that_never_answers(partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "LISTING_TIMEOUT", 0.2)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with pytest.raises(CheckError, match=r"cannot be reached for maker/tiny \(ReadTimeout\)"):
            fetch(tiny(url=f"http://127.0.0.1:{deaf.getsockname()[1]}"), partial)


@pytest.mark.parametrize("url", ["no-address", "ftp://host"])
def test_an_endpoint_that_is_no_address(partial: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address; wanted one such as https://HOST"):
        fetch(tiny(url=url), partial)


def test_a_name_that_is_none(partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="is no repository's name; wanted OWNER/NAME"):
        downloads.download("a/b/c", fakehub.REVISION, {}, partial, partial, SilentProgress())


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", ".parts/x"])
def test_a_hub_cannot_write_outside_the_folder(partial: Path, name: str) -> None:
    hub = tiny()
    hub.files[name] = b"x"
    assert f"it lists {name!r}, wanted names of files in it" in refused(hub, partial)
    assert not partial.exists()


def test_too_little_room_is_said_before_anything_is_fetched(partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1_000_000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    hub = tiny()
    text = refused(hub, partial)
    assert text == (
        "DIR has 1.0 MB free and maker/tiny needs 26.2 MB more; "
        "free space there or set APPLIANCE_MODELS_DIR to a larger volume"
    )
    assert hub.ranges("model.safetensors") == []


def test_a_disk_that_fills_up_keeps_what_was_fetched(partial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(downloads, "http_get", full)
    assert refused(tiny(), partial) == (
        "cannot write DIR/.tiny.partial (No space left on device); free space there: what was fetched stays and is "
        "continued"
    )
    assert partial.is_dir()
