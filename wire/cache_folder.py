"""Where this user's fetched files are kept: model files and model cards; it creates nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns where fetched files are kept: `$STAGEWIRE_CACHE`, or `stagewire` in the user's cache folder.

    A `~` at the beginning is expanded: a shell does not do it everywhere, and other programs not at all.
    """
    if environment.get("STAGEWIRE_CACHE"):
        chosen = os.path.expanduser(environment["STAGEWIRE_CACHE"])  # noqa: PTH111  # pathlib's raises without a home
        return Path(chosen).absolute()
    # The XDG specification says to ignore a relative path.
    if environment.get("XDG_CACHE_HOME", "").startswith("/"):
        return Path(environment["XDG_CACHE_HOME"], "stagewire")
    try:
        return Path(environment.get("HOME") or Path.home()) / ".cache" / "stagewire"
    except RuntimeError:  # no HOME, and a user id without an account, as in some containers
        return Path(tempfile.gettempdir()) / f"stagewire-{os.getuid()}"
