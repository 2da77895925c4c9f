"""From rows to statistics, figures and pages.

- `statistics`: paired differences and their intervals, as pure functions of losses.
- `summary`: summarises rows per cell, in numbers and words.
- `results`: writes and reads `results.json`.      - `figures`, `report`: figures, tables and the HTML page.
"""
