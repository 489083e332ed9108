"""Puts the contract's page, which lies among the docs of the repository, into the distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ContractHook(BuildHookInterface[Any]):
    """A source distribution has the page where the package expects it, so a wheel that is built from one finds it there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the page, unless this is built from a source distribution."""
        page = Path(self.root).parent / "docs" / "contract.md"
        if page.is_file():
            inside = "rmqstore_conformance/contract.md"
            build_data["force_include"][str(page)] = inside if self.target_name == "wheel" else f"src/{inside}"
