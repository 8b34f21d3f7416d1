"""Where weight folders live on this machine: the local store and the folders shipped with the package.

A weight folder is what the Hub holds: `config.json`, `model.safetensors`, `README.md`. The store is a folder of them:
`$TIMM_GCP_HOME/weights/ARCH.TAG` (default: the user's cache folder); the package ships more in `weights_bundled/`.
A folder appears under its name in one rename, complete, or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from timm_gcp.common.messages import listed
from timm_gcp.weights import catalog as table

HOME_VARIABLE = "TIMM_GCP_HOME"
WEIGHTS_FILE = "model.safetensors"
_NAME = r"([A-Za-z0-9_]+)\.([A-Za-z0-9][A-Za-z0-9_.-]*)"
_KEPT = {"config.json", WEIGHTS_FILE, "README.md"}
_INCOMING = ".incoming-"
_REPLACED = ".replaced-"  # an old folder while the new one takes its place
_STALE = 24 * 3600  # seconds after which an unfinished folder belongs to a process that was killed


def home() -> Path:
    """Folder of everything that this package keeps on the machine: $TIMM_GCP_HOME or the user's cache folder."""
    given = os.environ.get(HOME_VARIABLE)
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "timm_gcp"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "timm_gcp"


def check_name(name: str) -> tuple[str, str]:
    """Architecture and tag of `arch.tag`.

    Raises:
        ValueError: `name` is not of that form.
    """
    found = re.fullmatch(_NAME, name)
    if found is None:
        raise ValueError(
            f"Weights are named ARCH.TAG, in letters, digits, `_`, `-` and `.`, such as resnet50_gcp.norm_in1k. "
            f"Got {name!r}."
        )
    return found[1], found[2]


def stored_folder(name: str) -> Path:
    """Where the local store keeps, or would keep, the weights called `name`."""
    check_name(name)
    return home() / "weights" / name


def stored_names() -> list[str]:
    """Names in the local store; a folder of another name is somebody else's."""
    _put_back(home() / "weights")
    names = (path.parent.name for path in (home() / "weights").glob("[!.]*/config.json"))
    return sorted(name for name in names if re.fullmatch(_NAME, name))


def stored_folders() -> dict[str, Path]:
    """Complete weight folders of the local store, by `arch.tag`; none where the store can't be looked at."""
    try:
        folders = {name: home() / "weights" / name for name in stored_names()}
        return {name: folder for name, folder in folders.items() if (folder / WEIGHTS_FILE).is_file()}
    except (OSError, RuntimeError):  # no permission, or no home folder
        return {}


def find(name: str) -> Path | None:
    """Weight folder of `arch.tag`: in the local store, else in the package, else None."""
    _put_back(home() / "weights")
    for folder in (stored_folder(name), table.BUNDLED / name):
        if (folder / "config.json").is_file() and (folder / WEIGHTS_FILE).is_file():
            return folder
    return None


def state(name: str) -> str:
    """Where weights can be had: `'stored'`, `'bundled'`, `'on the Hub'` or `"from the authors' file"`."""
    folder = find(name)
    if folder is not None:
        return "bundled" if folder.parent == table.BUNDLED else "stored"
    return "on the Hub" if name in table.ON_THE_HUB else "from the authors' file"


def check_target(target: Path, replace: bool) -> None:
    """Check that a weight folder can be put at `target`: nothing is there, or a weight folder to be replaced.

    Raises:
        ValueError: Something else is there, or it is not to be replaced.
    """
    _put_back(target.parent)
    if not os.path.lexists(target):
        return
    if not replace:
        raise ValueError(f"{target} exists already. Add --force to replace it, or choose another name with --as.")
    try:
        names = {path.name for path in target.iterdir()}
    except FileNotFoundError:  # another process has just replaced it
        return
    except NotADirectoryError:
        names = {target.name}
    own = target.parent == home() / "weights"  # a broken folder of our own store may be replaced too
    if names - _KEPT or (names and WEIGHTS_FILE not in names and not own):
        held = f" (it holds {listed(sorted(names - _KEPT or names), 3)})" if target.is_dir() else ""
        raise ValueError(
            f"{target} is not a weight folder{held}, and --force replaces nothing else: choose another folder, or "
            "remove it yourself."
        )


def add(target: Path, fill: Callable[[Path], None], replace: bool = False) -> Path:
    """Create the folder `target` in one step: `fill` writes into a hidden folder beside it, which is then renamed.

    Of two processes that add the same folder at once, one wins and the other reports that it exists (or replaces it).

    Args:
        target: Folder to create.
        fill: Writes the content into the folder that it is given.
        replace: Put it in the place of an existing folder.

    Raises:
        ValueError: `target` exists and is not a weight folder or not to be replaced.
        RuntimeError: The disk is full or not writable.
    """
    check_target(target, replace)
    incoming: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        incoming = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=target.parent))
        incoming.chmod(0o755)  # mkdtemp makes it private; a store may be shared
        fill(incoming)
        _rename(incoming, target, replace)
    except FileExistsError:
        check_target(target, False)
        raise
    except OSError as error:
        raise RuntimeError(_disk_text(target, error)) from error
    except Exception as error:
        if "os error" in str(error):  # safetensors reports what the system says in an exception of its own
            raise RuntimeError(_disk_text(target, error)) from error
        raise
    finally:
        if incoming is not None:
            shutil.rmtree(incoming, ignore_errors=True)
    return target


def _rename(incoming: Path, target: Path, replace: bool) -> None:
    """Move `incoming` to `target`; an existing folder is moved aside, and deleted once the new one is in its place."""
    for _ in range(100):
        try:
            incoming.rename(target)
            return
        except OSError as error:
            # Occupied: by the folder to replace, or by one that another process has put there or is about to remove.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not replace:
                raise FileExistsError(str(target)) from None
        check_target(target, replace)
        old = Path(tempfile.mkdtemp(prefix=f"{_REPLACED}{os.getpid()}-", dir=target.parent))
        try:
            target.rename(old / target.name)
        except FileNotFoundError:
            old.rmdir()  # another process has just replaced it too
            continue
        except OSError:
            old.rmdir()
            raise
        try:
            incoming.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                (old / target.name).rename(target)
                old.rmdir()
                raise
            shutil.rmtree(old, ignore_errors=True)  # another process was faster: its folder is there
            continue
        shutil.rmtree(old, ignore_errors=True)
        return
    raise FileExistsError(str(target))


def _put_back(parent: Path) -> None:
    """Put back the folders that a killed process had moved aside, where nothing has taken their place."""
    with contextlib.suppress(OSError):
        for aside in parent.glob(f"{_REPLACED}*"):
            if _is_running(aside.name) and time.time() - aside.stat().st_mtime < _STALE:
                continue  # another process is at it
            for old in aside.iterdir():
                if not (parent / old.name).exists():
                    old.rename(parent / old.name)
            shutil.rmtree(aside, ignore_errors=True)


def _is_running(name: str) -> bool:
    """Whether the process that moved a folder aside under this name still runs."""
    try:
        os.kill(int(name.removeprefix(_REPLACED).split("-")[0]), 0)
    except (ValueError, ProcessLookupError):
        return False
    except OSError:  # somebody else's
        return True
    return True


def _sweep(parent: Path) -> None:
    """Remove what killed processes left behind."""
    for path in parent.glob(_INCOMING + "*"):
        try:
            if time.time() - path.stat().st_mtime > _STALE:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            continue


def _disk_text(target: Path, error: Exception) -> str:
    return (
        f"Could not write {target}: {error}. Nothing was kept. Free some space, or set {HOME_VARIABLE} to a folder on "
        "another disk."
    )
