import os
import sys

from benchmarks.chaos.command import main

os.environ["PYTHONUNBUFFERED"] = "1"
sys.exit(main())
