"""From rows to statistics, figures and pages.

- `estimates`, `statistics`: paired differences, intervals and tests; pure functions of losses.
- `summary`: rows → one summary per cell, and its outcome in words.
- `results`: `results.json`.      - `figures`, `report`: pictures, tables and the page.
"""
