"""The entry of the `autowarm` command and of `python -m autowarm`."""

import os
import sys

from autowarm._version import install

# Import names of what the extra installs.
_EXTRA = {"transformers", "tokenizers", "jsonargparse", "rich", "matplotlib", "jinja2", "tensorboard"}
_EXTRA |= {"safetensors", "yaml", "scipy", "filelock", "cloudpickle", "datasets", "tiktoken"}


def main() -> int:
    """Runs the command line; the experiments' packages are an extra, so their absence is explained."""
    try:
        from autowarm.lab.commands import main as run

        return run()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(f"autowarm: {error.name} is missing; the commands need: {install('lab')}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read on, such as `head`, has seen enough; what Python still holds back goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())
