import sys
from pathlib import Path

# `theory_strategies` is shared by the modules here; pytest's importlib mode does not put their folder on the path.
sys.path.insert(0, str(Path(__file__).parent))
