"""`sphinx-build WORDS…`, for a launcher, which has what the documented modules import."""

import sys

from sphinx.cmd.build import main

sys.exit(main(sys.argv[1:]))
