"""The benchmark is run from the root of the repository, and is not installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
