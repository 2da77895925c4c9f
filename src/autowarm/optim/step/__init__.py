"""One step over a group's tensors.

- `move`: x ← keep·x + η·LMO(direction), as few passes over memory as the geometry allows.
- `batches`: which matrices are orthogonalised in one stack.
- `distributed`: where ranks hold parts or copies of the tensors.
- `nonfinite`: leaving out tensors whose gradient is not finite.
"""
