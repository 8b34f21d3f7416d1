"""Publish the authors' weights on the Hub: fetch, convert, verify, write the card, upload; one entry after the other.

What fails is reported and does not stop the rest. What the Hub has already, by digest, is left as it is, so that a
release that was interrupted goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from timm_gcp.common.files import file_sha256
from timm_gcp.common.messages import one_line
from timm_gcp.weights import catalog as table
from timm_gcp.weights import download, hub, mirror, store
from timm_gcp.weights.checkpoint import safetensors_metadata

TOLERANCE = 0.2  # points of accuracy: decoders and resizing of other versions than the authors' move it by about half
Measure = Callable[[Path], tuple[float, float]]


@dataclass(frozen=True)
class Outcome:
    """What became of one entry.

    Attributes:
        name: `arch.tag`.
        state: `'planned'`, `'uploaded'`, `'there already'` or `'failed'`.
        text: Where it is, or what went wrong.
    """

    name: str
    state: str
    text: str


def plan(names: Iterable[str], org: str) -> Iterator[Outcome]:
    """What a release of these entries would do; asks no server and writes nothing.

    Raises:
        ValueError: `TIMM_GCP_MIRROR` names neither a server nor a folder.
    """
    mirror.folder()
    for name in names:
        folder = store.find(name)
        file = download.file_name(download.find_entry(name))
        source = str(folder) if folder is not None else f"{file} from {mirror.place() or 'Google Drive'}"
        yield Outcome(name, "planned", f"{source} -> {table.hub_id(name, org)}")


def release(
    names: Iterable[str],
    org: str,
    licence: str,
    private: bool = False,
    measure: Measure | None = None,
    tolerance: float = TOLERANCE,
) -> Iterator[Outcome]:
    """Publish entries of the table, one `Outcome` each.

    Args:
        names: `arch.tag` of the table.
        org: User or organisation on the Hub.
        licence: SPDX id under which the authors permit it.
        private: Create the repositories private.
        measure: Top-1 and top-5 accuracy in % of a weight folder on the ImageNet-1k validation images.
        tolerance: How far, in points, a measured accuracy may be from the one that the release states.
    """
    for name in names:
        try:
            yield _one(name, org, licence, private, measure, tolerance)
        except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
            yield Outcome(name, "failed", one_line(error, 500))


def _one(name: str, org: str, licence: str, private: bool, measure: Measure | None, tolerance: float) -> Outcome:
    """Publish one entry."""
    from timm_gcp.weights.fetch import fetch

    fetch(name)
    folder = store.find(name)
    if folder is None:
        raise RuntimeError(f"{name} has just been removed from the store: run the command again.")
    _check_origin(name, folder)
    repo, digest = table.hub_id(name, org), file_sha256(folder / store.WEIGHTS_FILE)
    if hub.published_digest(repo) == digest:
        return Outcome(name, "there already", repo)
    measured = measure(folder) if measure is not None else None
    text = _compare(name, measured, tolerance) if measured is not None else ""
    hub.push(hub.prepare(name, org, private, licence, folder, measured=measured))
    arrived = hub.published_digest(repo)
    if arrived != digest:
        raise RuntimeError(f"{repo} holds weights with the SHA-256 {arrived}, not {digest}: run the command again.")
    return Outcome(name, "uploaded", repo + text)


def _check_origin(name: str, folder: Path) -> None:
    """Check that a folder of the store was made of the authors' file, as far as its digest is known."""
    entry = table.WEIGHTS[name]
    expected = entry.sha256 or download.pinned(entry)
    found = safetensors_metadata(folder / store.WEIGHTS_FILE).get("source_sha256")
    if expected is not None and found != expected:
        raise ValueError(
            f"{folder} was made of a file with the SHA-256 {found}, the authors' has {expected}: "
            f"`timm-gcp weights fetch {name} --force` makes it anew."
        )


def _compare(name: str, measured: tuple[float, float], tolerance: float) -> str:
    """The accuracy in words; an error where it is not the published one."""
    figure = table.WEIGHTS[name].figures[0]
    text = (
        f"top-1 {measured[0]:.2f}% (published {figure.top1:.2f}%), top-5 {measured[1]:.2f}% "
        f"(published {figure.top5:.2f}%), tolerance {tolerance:g} points"
    )
    if max(abs(measured[0] - figure.top1), abs(measured[1] - figure.top5)) > tolerance + 1e-9:
        raise ValueError(f"{text}: not published. Check that --data-dir holds the ImageNet-1k validation images.")
    return f"  {text}"
