"""Putting what was written to a file on disk, beside the work: a thread that does nothing but wait for the disk."""

from __future__ import annotations

import os
import threading
from typing import Optional


class Syncer:
    """Syncs one descriptor as often as it is asked to. Who asks while it is at it is served by the next sync, which
    begins as soon as this one ends: one a result where the disk is fast, fewer where it is not."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._changed = threading.Condition()
        self._asked = False
        self._over = False
        self._error: Optional[OSError] = None
        self._thread: Optional[threading.Thread] = None

    def ask(self) -> None:
        """All that was written up to now is to be on disk soon; returns at once."""
        with self._changed:
            self._asked = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
                self._thread.start()
            self._changed.notify()

    def take_error(self) -> Optional[OSError]:
        """What a sync has failed with since the last time."""
        with self._changed:
            error, self._error = self._error, None
            return error

    def stop(self) -> None:
        """Let go of the descriptor: a sync that is under way is waited for, no other begins."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._asked or self._over):
                    self._changed.wait()
                if self._over:
                    return
                self._asked = False
            try:
                os.fsync(self._fd)
            except OSError as error:
                with self._changed:
                    self._error = error
