"""Imported as a plug-in by the processes of the suite: gives them the build that the environment names, for good."""

from __future__ import annotations

import os

import pytest

from plugins.wheel.tests.power.builds import VARIABLE, take_on

take_on(os.environ[VARIABLE], pytest.MonkeyPatch())
