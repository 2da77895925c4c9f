"""Settings for every test: one thread, and property tests that are the same on every run."""

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("steady")
