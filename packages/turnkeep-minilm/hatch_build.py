"""Refuses to build a distribution without the pinned files: it would install, and fail at the first start."""

import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RequireModel(BuildHookInterface):
    """Runs before each build of a wheel or a source distribution."""

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        """Fail unless the files are the pinned ones. An editable install reads them where they are, later."""
        del build_data
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from turnkeep_minilm import wrong_files  # noqa: PLC0415 - found through the path above

        wrong = wrong_files(Path(self.root) / "turnkeep_minilm")
        if wrong:
            files = " and ".join(wrong)
            raise FileNotFoundError(
                f"turnkeep-minilm cannot be built: {files} in turnkeep_minilm is missing or not the pinned file."
                " Run `make assets` in the checkout of Turnkeep first."
            )
