"""One update of a group's tensors.

- `move`: x ← keep·x + η·LMO(direction), in as few passes over memory as the geometry allows.
- `batches`: which matrices to orthogonalise in one stack.
- `agreement`: what ranks compare before they update tensors that they share.
- `distributed`: tensors that are sharded over ranks or copied to them.
- `nonfinite`: skips tensors whose gradient is not finite.
"""
