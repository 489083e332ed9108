"""The seam recorder misses nothing: what it saw makes up the directory that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.wheel.tests.power.enumeration import Run
from plugins.wheel.tests.power.workloads import WORKLOADS
from rmqstore_conformance.power.content import read_image, write_image
from rmqstore_conformance.power.volume import Volume


@pytest.mark.parametrize("name", ["timers", "lives"])
def test_what_is_left_when_all_is_kept_is_the_directory(name: str, tmp_path: Path) -> None:
    run = Run(WORKLOADS[name], name)
    volume = Volume()
    for call in run.calls:
        volume.do(call)
    assert volume.image({}) == run.left
    write_image(tmp_path / "copy", run.left)
    assert read_image(tmp_path / "copy") == run.left
