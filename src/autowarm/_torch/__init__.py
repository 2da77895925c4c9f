"""PyTorch's habits that several rooms have to live with: devices, modes, graphs, warnings."""
