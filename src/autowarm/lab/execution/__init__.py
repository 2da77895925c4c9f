"""Many runs, each once, on this machine or on a cluster."""
