"""Downloads a repository at a fixed revision from a Hugging Face hub, file by file, and continues where it broke off.

`huggingface_hub.snapshot_download` throws a file's beginning away when its download breaks (2.4.0,
`_download_to_tmp_and_move`), and takes a part of a folder for the whole when the hub is away. Shards are 5 GB, so
this uses the library's own transfer with a part file of ours, and holds each file against the hash that the hub
publishes for it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import httpx2
from huggingface_hub import HfApi, constants, get_token, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get

from appliance.errors import ApplianceError, CheckError, ConfigurationError
from appliance.models.progress import in_units
from appliance.models.verify import file_sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.models.progress import Progress, Task

PARTS = ".parts"
"""Folder of files that are not whole yet, inside the folder of a download that is not."""

LISTING_TIMEOUT = 30.0
"""Seconds that the hub may take for its list of files (chosen); the library waits for ever by default."""

CONNECTIONS = 4
"""Files fetched at once (chosen): a hub's storage limits the speed of one connection."""


@dataclass(frozen=True)
class RemoteFile:
    """A file as the hub lists it: size in bytes, and the SHA-256 of an LFS file or else the git blob's SHA-1."""

    name: str
    bytes: int
    sha256: str | None
    blob: str


def download(
    repository: str,
    revision: str,
    published: Mapping[str, str],
    partial: Path,
    place: Path,
    progress: Progress,
    token: str | None = None,
) -> dict[str, str]:
    """Fetch every file of `repository` at `revision` (a commit id) into `partial`; return each file's SHA-256.

    `published` are the hashes that the files must have, by name; `place` is named to people as the model's folder.
    Without `token` the library's own is taken: HF_TOKEN, or the file that `hf auth login` writes.
    Whole files in `partial` were proven when they were fetched and stay; a part is continued.
    Raises CheckError or ConfigurationError, one line; what was fetched stays for the next try.
    """
    # The library warns of each retry with the address, which clutters the progress.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    token = token or get_token()
    try:
        files = _listing(repository, revision, token)
        _agree(repository, files, published)
        done = sum(_present(partial, file) for file in files)
        total = sum(file.bytes for file in files)
        _room(repository, total - done, partial)
        with progress.task(f"downloading {repository}", total=total, done=done) as task:
            _fetch_all(repository, revision, files, partial, task, token)
        shutil.rmtree(partial / PARTS, ignore_errors=True)
        return {file.name: file.sha256 or file_sha256(partial / file.name) for file in files}
    except (httpx2.HTTPError, httpx2.InvalidURL, OfflineModeIsEnabled, HFValidationError, OSError) as error:
        raise _explained(error, repository, revision, partial, place, has_token=bool(token)) from error


def _listing(repository: str, revision: str, token: str | None) -> list[RemoteFile]:
    hub = HfApi(endpoint=_endpoint(), token=token)
    listed = hub.model_info(repository, revision=revision, files_metadata=True, timeout=LISTING_TIMEOUT)
    refusal = f"{_named_endpoint()} cannot serve {repository}"
    if listed.sha != revision:
        raise CheckError(f"{refusal}: it answers revision {listed.sha}, wanted {revision}; set HF_ENDPOINT to a hub")
    files = []
    for entry in listed.siblings or []:
        name = PurePosixPath(entry.rfilename)
        if name.is_absolute() or ".." in name.parts or name.parts[:1] == (PARTS,):
            raise CheckError(f"{refusal}: it lists {entry.rfilename!r}, wanted names of files in it; do not trust it")
        if entry.size is None or entry.blob_id is None:
            raise CheckError(f"{refusal}: it gives no size or hash of {name}; set HF_ENDPOINT to a full mirror")
        files.append(RemoteFile(str(name), entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id))
    return files


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def _named_endpoint() -> str:
    """Name the hub to people, without a user and password that its address may hold."""
    scheme, separator, rest = _endpoint().rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]


def _agree(repository: str, files: list[RemoteFile], published: Mapping[str, str]) -> None:
    """Refuse before anything is fetched what could not be proven after it."""
    listed = {file.name: file for file in files}
    for name, sha256 in published.items():
        if name not in listed:
            raise ConfigurationError(f"{repository} has no file {name}, wanted by the profile; correct the profile")
        theirs = listed[name].sha256
        if theirs is not None and theirs != sha256:
            raise CheckError(
                f"{repository} publishes SHA-256 {theirs[:12]}… for {name}, the profile wants {sha256[:12]}…; "
                "correct the profile or the revision"
            )


def _present(partial: Path, file: RemoteFile) -> int:
    """Count the bytes of a file that are there."""
    for path in (partial / file.name, partial / PARTS / file.name):
        if path.is_file():
            return min(path.stat().st_size, file.bytes)
    return 0


def _room(repository: str, needed: int, partial: Path) -> None:
    partial.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(partial).free
    if needed > free:
        raise CheckError(
            f"{partial.parent} has {in_units(free, 'bytes')} free and {repository} needs {in_units(needed, 'bytes')} "
            "more; free space there or set APPLIANCE_MODELS_DIR to a larger volume"
        )


class _Stopped(Exception):  # noqa: N818 - not an error: another file failed, or a person pressed Ctrl-C
    """Ends a transfer that runs in a thread."""


def _fetch_all(
    repository: str, revision: str, files: list[RemoteFile], partial: Path, task: Task, token: str | None
) -> None:
    """Fetch several files at once; the first failure stops the others at their next chunk and is raised."""
    stop = threading.Event()
    headers = {"Accept-Encoding": "identity"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    failures: list[BaseException] = []

    def fetch(file: RemoteFile) -> None:
        try:
            if not stop.is_set():
                url = hf_hub_url(repository, file.name, revision=revision, endpoint=_endpoint())
                _fetch(url, headers, file, partial, _Counter(task, stop))
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            stop.set()
            failures.append(error)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        try:
            # Largest first, so that no large file is left to run alone at the end.
            list(pool.map(fetch, sorted(files, key=lambda file: -file.bytes)))
        finally:
            stop.set()
    if failures:
        raise failures[0]


class _Counter:
    """What `http_get` takes for a progress bar."""

    def __init__(self, task: Task, stop: threading.Event) -> None:
        self._task, self._stop = task, stop

    def __call__(self, **_: Any) -> _Counter:  # noqa: ANN401 - tqdm's options, none of which matter here
        return self

    def __enter__(self) -> _Counter:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, count: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        self._task.advance(count)


def _fetch(url: str, headers: dict[str, str], file: RemoteFile, partial: Path, counter: _Counter) -> None:
    whole, part = partial / file.name, partial / PARTS / file.name
    if whole.is_file() and whole.stat().st_size == file.bytes:
        return
    for path in (whole, part):
        path.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab") as target:
        have = target.tell()
        if have > file.bytes:
            target.truncate(0)
            have = 0
        try:
            http_get(
                url,
                target,
                resume_size=have,
                headers=headers,
                expected_size=file.bytes,
                displayed_filename=file.name,
                tqdm_class=counter,  # type: ignore[arg-type] # the library asks for tqdm's class and calls only this much
            )
        except OSError as error:
            if error.errno is None:
                # Not the disk but the wrong size, which no further bytes can mend.
                part.unlink()
            raise
    found, wanted = _identity(part, file)
    if found != wanted:
        part.unlink()
        raise CheckError(
            f"{file.name} came with hash {found[:12]}…, the hub publishes {wanted[:12]}…; it was deleted: run the same "
            "command again, and if that repeats, a proxy or mirror changes files"
        )
    part.replace(whole)


def _identity(path: Path, file: RemoteFile) -> tuple[str, str]:
    """Return the hash a file has and the one it must have: SHA-256 of LFS files, git's blob SHA-1 of small ones."""
    if file.sha256 is not None:
        return file_sha256(path), file.sha256
    content = path.read_bytes()
    header = b"blob %d\0" % len(content)
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest(), file.blob


def _explained(
    error: Exception, repository: str, revision: str, partial: Path, place: Path, *, has_token: bool
) -> ApplianceError:
    """Turn what the library raises into one line that says what to do. No text of the library is passed on."""
    by_hand = f"or place the files in {place} by hand"
    match error:
        case HfHubHTTPError():
            return _refused(error, repository, revision, has_token=has_token)
        case OfflineModeIsEnabled():
            return CheckError(f"{repository} is not here and HF_HUB_OFFLINE forbids to fetch it; unset it, {by_hand}")
        case HFValidationError():
            return ConfigurationError(f"{repository!r} is no repository's name; wanted OWNER/NAME")
        case httpx2.InvalidURL() | httpx2.UnsupportedProtocol():
            return ConfigurationError(
                f"HF_ENDPOINT {_named_endpoint()!r} is no address; wanted one such as https://HOST"
            )
        case httpx2.HTTPError():
            return CheckError(
                f"{_named_endpoint()} cannot be reached for {repository} ({type(error).__name__}): check the network, "
                "HTTPS_PROXY, SSL_CERT_FILE and HF_ENDPOINT, then run the same command again, which continues; "
                f"{by_hand}"
            )
        case OSError(strerror=str(why)):
            return CheckError(
                f"cannot write {partial} ({why}); free space there: what was fetched stays and is continued"
            )
    return CheckError(
        f"{_named_endpoint()} sent a file of {repository} with another size than it lists; run the same command again, "
        "and if that repeats, a proxy or mirror changes files"
    )


def _refused(error: HfHubHTTPError, repository: str, revision: str, *, has_token: bool) -> ApplianceError:
    hub, status = _named_endpoint(), error.response.status_code
    access = "the token that is set may not read it" if has_token else "set HF_TOKEN to a token that may read it"
    match error:
        case GatedRepoError():
            return CheckError(f"{repository} is gated: accept its terms on {hub}/{repository}; {access}")
        case RevisionNotFoundError():
            return ConfigurationError(f"{repository} has no revision {revision}; correct the revision in the profile")
        case RepositoryNotFoundError():
            return CheckError(f"{repository} is not on {hub}, or private: check its name; {access}")
    if status in (401, 403):
        return CheckError(f"{hub} refuses {repository} (HTTP {status}): private, or no such name; {access}")
    return CheckError(f"{hub} answered HTTP {status} for {repository}; run the same command again later")
