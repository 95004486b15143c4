"""Runs the command as `python -m stagewire`, which is how a cluster starts its processes."""

from __future__ import annotations

import sys

from stagewire.cli.main import main

sys.exit(main())
