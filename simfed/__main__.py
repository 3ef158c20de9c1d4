"""`python -m simfed`."""

import sys

from simfed.cli import main

sys.exit(main())
