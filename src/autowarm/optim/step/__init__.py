"""One update of a group's tensors, from its gradients to its parameters.

- `reference`: the whole step in plain code.
- `update`: the same, fast: finite → momentum → direction → oracle → move. `adamw` is Muon's other rule.
- `buckets`: what is updated together, and the tensors of one update.
- `batches`: the parts and stacks that are processed at a time.
- `agreement`: what ranks compare before they update tensors that they share; `sharing`: how they share out the work.
- `dtensors`, `nonfinite`: shards, and gradients that are skipped.
"""
