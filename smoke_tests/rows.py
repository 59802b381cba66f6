"""The dataset of the DataLoader checks."""

from __future__ import annotations

import os
from typing import Any


class Rows:
    """The rows of a tensor, each with the id of the process that read it."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        return self.rows[at], os.getpid()
