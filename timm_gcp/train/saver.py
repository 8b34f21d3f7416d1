"""timm's checkpoint saver, writing whole files only: a full disk or a kill leaves nothing half-written."""

from __future__ import annotations

import contextlib
import os
import shutil

from timm.utils import CheckpointSaver

from timm_gcp.common.files import replacing


class WholeSaver(CheckpointSaver):
    """timm's saver; a file of it that can't be written is removed, and the one that it was to replace stays."""

    def _save(self, save_path: str, epoch: int, metric: float | None = None) -> None:
        try:
            super()._save(save_path, epoch, metric)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(save_path)
            if not isinstance(error, OSError | RuntimeError):  # torch raises the latter for a full disk
                raise
            folder = self.checkpoint_dir
            last = os.path.join(folder, "last" + self.extension)
            go_on = f", then go on with --resume {last}" if os.path.isfile(last) else ""
            raise OSError(
                f"the checkpoint of epoch {epoch + 1} can't be written to {folder!r} ({error}): make room on its disk "
                f"or choose another --output{go_on}."
            ) from error

    def _replace(self, src: str, dst: str) -> None:
        os.replace(src, dst)

    def _duplicate(self, src: str, dst: str) -> None:
        """A second name of a file, or a copy where the disk has no hard links; an older one stays until it is there."""
        with replacing(dst) as partial:
            partial.unlink(missing_ok=True)  # of a process with this number that was killed
            try:
                os.link(src, partial)
            except (OSError, NotImplementedError):
                shutil.copy2(src, partial)
