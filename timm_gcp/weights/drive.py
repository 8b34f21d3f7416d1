"""One file from Google Drive to this disk, by gdown, which knows Drive's pages of confirmation."""

from __future__ import annotations

from pathlib import Path

from timm_gcp.weights.transfer import TIMEOUT, RoomError, TransferError, bar, check_room, throw_away

DRIVE_URL = "https://drive.google.com/uc?id={id}"


def from_drive(url: str, target: Path, reserve: int = 0, quiet: bool = False) -> None:
    """Download to `target`, from where an earlier attempt stopped.

    Args:
        url: Address on Google Drive.
        target: Where to; it appears whole.
        reserve: Bytes to be left on the disk afterwards.
        quiet: Without progress bar.

    Raises:
        ImportError: gdown is not installed.
        RoomError: The disk is too small.
        TransferError: The download fails.
    """
    try:
        import gdown
    except ImportError as error:
        raise ImportError("Downloading from Google Drive needs gdown: pip install 'gdown>=6.3'.") from error
    _clear_parts(target)
    with bar(target.name, quiet) as shown:

        def progress(done: int, total: int | None) -> None:
            if not shown.n:  # the first bytes: Drive tells the size along with them
                check_room(target.parent, (total or done) - done + reserve, target.name)
                shown.total = total
            shown.n = done
            shown.refresh()

        try:
            gdown.download(url=url, output=str(target), quiet=True, resume=True, progress=progress, timeout=TIMEOUT)
        except RoomError:
            raise
        except Exception as error:  # gdown, requests and the system each have their own
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            if "range" in reason.lower() or "416" in reason:  # what was kept is not part of what is there
                throw_away(target)
            raise TransferError(reason.rstrip(".")) from error


def _clear_parts(target: Path) -> None:
    """Keep the longest of gdown's unfinished downloads alone, unless it is the start of a web page."""
    parts = [path for path in target.parent.glob("*.part") if path.name.startswith(target.name)]
    parts = sorted((path for path in parts if path.name != f"{target.name}.part"), key=lambda path: path.stat().st_size)
    for path in parts:
        with path.open("rb") as file:
            start = file.read(64).lstrip()
        if path is not parts[-1] or not start or start.startswith(b"<"):
            path.unlink()
