"""Syncing beside the work: how often, what fails, and the end."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from orchestrator.agent import syncing
from orchestrator.agent.syncing import Syncer
from tests.support.waiting import wait_for


def test_all_who_ask_during_a_sync_share_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, may_end, synced = threading.Semaphore(0), threading.Semaphore(0), []

    def slow_disk(fd: int) -> None:
        begun.release()
        may_end.acquire()
        synced.append(fd)

    monkeypatch.setattr(syncing.os, "fsync", slow_disk)
    syncer = Syncer(7)
    syncer.ask()
    begun.acquire()
    for _ in range(5):
        syncer.ask()
    may_end.release(2)
    begun.acquire()
    syncer.stop()
    assert synced == [7, 7]


def test_what_fails_is_told_once_and_the_next_sync_is_tried() -> None:
    reader, writer = os.pipe()  # which nothing can sync
    syncer = Syncer(writer)
    for _ in range(2):
        syncer.ask()
        assert wait_for(syncer.take_error).errno == errno.EINVAL
        assert syncer.take_error() is None
    syncer.stop()
    os.close(reader)
    os.close(writer)


def test_nothing_is_synced_after_the_end(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        syncer = Syncer(file.fileno())
        syncer.ask()
        syncer.stop()
    syncer.ask()  # of a descriptor that may be another file's by now
    assert syncer.take_error() is None
