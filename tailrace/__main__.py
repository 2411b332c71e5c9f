"""`python -m tailrace`."""

import os
import sys

# Python puts the working directory first. A folder `service` of the user's own would then be
# imported in place of ours, unless Tailrace itself runs from there.
if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
    del sys.path[0]

from tailrace.cli.main import main

sys.exit(main())
